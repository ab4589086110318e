"""A study's figures as what a file holds."""

from io import BytesIO
from typing import Any


def png(figure: Any) -> bytes:
    """A matplotlib figure as PNG bytes."""
    content = BytesIO()
    figure.savefig(content, dpi=110, format="png")
    return content.getvalue()
