"""A study's result files, each of which appears whole or not at all."""

from __future__ import annotations

import os
from io import BytesIO
from pathlib import Path
from typing import Any


def replace(path: Path, content: bytes) -> None:
    """Writes a file beside the old one and then in its place: whoever looks never sees half of one."""
    partial = path.with_name(f".{path.name}.partial")
    partial.write_bytes(content)
    os.replace(partial, path)


def png(figure: Any) -> bytes:
    """A matplotlib figure as PNG bytes."""
    content = BytesIO()
    figure.savefig(content, dpi=110, format="png")
    return content.getvalue()
