"""Which byte strings came before, remembered on disk, so that memory does not grow with them."""

import hashlib
import sqlite3


class Seen:
    """Digests of what was asked about. A context manager, whose file is a temporary one of SQLite's own.

    with Seen() as seen:
        first_time = not seen.before(data)
    """

    def __enter__(self) -> "Seen":
        self._table = sqlite3.connect("")
        self._table.execute("create table seen (digest blob primary key) without rowid")
        return self

    def __exit__(self, *_: object) -> None:
        self._table.close()

    def before(self, data: bytes) -> bool:
        """Whether this was asked about before."""
        digest = hashlib.blake2b(data, digest_size=16).digest()
        return self._table.execute("insert or ignore into seen values (?)", (digest,)).rowcount == 0
