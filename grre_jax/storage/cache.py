"""Copies of an object store's files on the local disk, checked when they are fetched and bounded
in size.
"""

import contextlib
import os
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path

from grre_jax.errors import UsageError
from grre_jax.storage import files

LIMIT_BYTES = 10 * 2**30
KILLED_SECONDS = 86400  # a part of a file unchanged for this time was left by a killed process
FOLDER_VARIABLE, LIMIT_VARIABLE = "GRRE_CACHE", "GRRE_CACHE_BYTES"


class Cache:
    """Files by key. The least recently used are removed when their size exceeds the limit.

    Processes and threads may share a folder.

    Args:
        folder: of the files; made when it is first needed.
        limit_bytes: size of all files; a single file may be larger.
        among: the folder that the limit applies to, if it contains several caches; `folder` if
            None.
    """

    def __init__(
        self, folder: Path, limit_bytes: int = LIMIT_BYTES, among: Path | None = None
    ) -> None:
        self.folder, self.limit_bytes, self._among = folder, limit_bytes, among or folder
        self._checked: set[str] = set()  # files whose digest this process has compared
        self._lock = threading.Lock()

    def file(self, key: str, sha256: str, size: int, fetch: Callable[[Path], None]) -> Path | None:
        """Returns the path of a file, which is fetched if it is missing, or is damaged when it is
        first asked for.

        Args:
            key: path below the cache's folder.
            sha256: digest of the content, hexadecimal.
            size: of the content, in bytes.
            fetch: writes the file to a path.

        Returns:
            The path; None if what `fetch` wrote has another digest (it is not kept).

        Raises:
            OSError: the file cannot be fetched or kept.
        """
        path = self.folder / key
        with self._lock:
            with contextlib.suppress(FileNotFoundError):
                if path.stat().st_size == size and (
                    key in self._checked or files.sha256(path) == sha256
                ):
                    os.utime(path)
                    self._checked.add(key)
                    return path
            path.parent.mkdir(parents=True, exist_ok=True)
            part = path.with_name(f".{path.name}.{uuid.uuid4().hex}.part")
            try:
                fetch(part)
                if files.sha256(part) != sha256:
                    return None
                os.replace(part, path)
                self._checked.add(key)
            finally:
                part.unlink(missing_ok=True)
            self._make_room(path)
        return path

    def _make_room(self, newest: Path) -> None:
        """Removes the least recently used files until the rest is within the limit.

        A process that has one open can continue to read it.
        """
        found = []
        for path in self._among.rglob("*"):
            with contextlib.suppress(FileNotFoundError):  # another process makes room too
                status = path.stat()
                if path.name.endswith(".part") and time.time() - status.st_mtime > KILLED_SECONDS:
                    path.unlink()
                elif path.is_file() and not path.name.startswith("."):
                    found.append((path != newest, status.st_mtime_ns, status.st_size, path))
        total = sum(size for _, _, size, _ in found)
        for evictable, _, size, path in sorted(found, key=lambda item: item[1]):
            if total <= self.limit_bytes:
                return
            if evictable:
                path.unlink(missing_ok=True)
                total -= size


def standard(name: str) -> Cache:
    """Returns the cache of a rollout folder, $GRRE_CACHE/rollouts/NAME. All caches below
    $GRRE_CACHE/rollouts share the limit $GRRE_CACHE_BYTES.

    Raises:
        UsageError: $GRRE_CACHE_BYTES is not a number of bytes.
    """
    limit = os.environ.get(LIMIT_VARIABLE) or str(LIMIT_BYTES)
    if not limit.isdecimal():
        raise UsageError(
            f"${LIMIT_VARIABLE} is {limit!r}; give a number of bytes, as in {LIMIT_BYTES}."
        )
    among = user_folder() / "rollouts"
    return Cache(among / name, int(limit), among=among)


def user_folder() -> Path:
    """Returns the cache folder: $GRRE_CACHE, else $XDG_CACHE_HOME/grre_jax, else
    ~/.cache/grre_jax.
    """
    user = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "grre_jax"
    return Path(os.environ.get(FOLDER_VARIABLE) or user).expanduser()
