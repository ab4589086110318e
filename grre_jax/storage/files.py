"""Files that are written whole or not at all, and their digests."""

import hashlib
import os
from pathlib import Path

from grre_jax.errors import naming


def sha256(path: Path) -> str:
    """Returns the SHA-256 of a file, hexadecimal.

    Raises:
        OSError: it cannot be read.
    """
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def files_below(folder: Path) -> list[str]:
    """Returns the paths of all files in a folder, relative to it and in order."""
    return sorted(
        path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()
    )


def replace(path: Path, content: bytes | str) -> None:
    """Writes a file beside the old one and renames it, so that a reader finds the old or the new
    content, never a part.

    Args:
        path: in a folder that exists.
        content: text is written as UTF-8.

    Raises:
        OSError: it cannot be written; the old file stays.
    """
    partial = path.with_name(f".{path.name}.partial")
    try:
        with naming(path):
            partial.write_bytes(content.encode() if isinstance(content, str) else content)
        os.replace(partial, path)
    except OSError:
        partial.unlink(missing_ok=True)  # the disk may be full
        raise
