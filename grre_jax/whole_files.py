"""Small files that appear whole or not at all."""

import os
from pathlib import Path


def replace(path: Path, content: bytes | str) -> None:
    """Writes a file beside the old one and then in its place: whoever looks finds the old or the new one, never half of one. Raises OSError.

    Args:
      path: in a folder that exists.
      content: text is written as UTF-8.
    """
    partial = path.with_name(f".{path.name}.partial")
    partial.write_bytes(content.encode() if isinstance(content, str) else content)
    os.replace(partial, path)
