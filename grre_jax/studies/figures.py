"""What the figures of studies share: the colours of their curves, and files."""

from io import BytesIO
from typing import Any

# Curves of many algorithms, told apart on white.
LINES = (
    "#1f4e9c",
    "#b3261e",
    "#1a7f5a",
    "#c77700",
    "#6a3d9a",
    "#0b7a8f",
    "#8c564b",
    "#5b6770",
    "#d1478c",
    "#7a8b00",
    "#2f2f2f",
    "#a06cd5",
    "#00695c",
)


def png(figure: Any) -> bytes:
    """A matplotlib figure as PNG bytes."""
    content = BytesIO()
    figure.savefig(content, dpi=110, format="png")
    return content.getvalue()
