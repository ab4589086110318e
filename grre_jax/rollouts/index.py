"""An index of group identifiers, questions and policy versions beside the manifest, updated when it
is used.

`FOLDER/.index.sqlite` contains nothing that the records do not: deleting it costs the time to read
them again. Groups that cannot be read are left out with a warning, and read again by the next
reader. It is a SQLite file, so a lookup reads a few pages of it at any size of the folder, and
several processes may update it. If the folder cannot be written, the index is a temporary file of
the process.
"""

import hashlib
import sqlite3
import threading
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from grre_jax.errors import DataError
from grre_jax.rollouts.encoding import CorruptRecord
from grre_jax.rollouts.manifest import CorruptShard, Entry

LAYOUT = 2  # another number: made anew
AT_ONCE = 64  # data sets added in a transaction

_TABLES = """
    create table datasets (place integer primary key, sha256 text not null);
    create table groups (
        number integer primary key, group_id text not null, task text not null,
        question text not null
    );
    create table versions (
        version integer not null, number integer not null, primary key (version, number)
    ) without rowid;
    create table damaged (number integer primary key);
    create index by_group_id on groups (group_id);
    create index by_question on groups (question, task);
"""


class GroupIndex:
    """Numbers of the groups of a reader by identifier, question and version. Threads may share it.

    Args:
        reader: the opened rollout folder, a `RolloutReader`.
    """

    def __init__(self, reader: Any) -> None:
        self._reader = reader
        self._lock = threading.Lock()
        self._path = reader.storage.index_path()
        self._database: sqlite3.Connection | None = None
        self._damaged: set[int] = set()  # groups that this reader has found damaged

    def numbers(self, wanted: Mapping[str, str | int | None]) -> list[int]:
        """Returns the numbers of the groups that match all values, oldest first.

        Args:
            wanted: value by column: group_id, question, task and version; None for any.

        Raises:
            DataError: the index cannot be written, or a store cannot be reached.
        """
        given = {column: value for column, value in wanted.items() if value is not None}
        tables = "groups" + " join versions using (number)" * ("version" in given)
        where = " and ".join(f"{column} = ?" for column in given) or "true"
        values = [_bytes(value) if isinstance(value, str) else value for value in given.values()]
        query = f"select number from {tables} where {where} and number < ? order by number"
        return [number for (number,) in self._rows(query, (*values, len(self._reader)))]

    def remake(self) -> None:
        """Deletes the index; it is made again when it is next used."""
        with self._lock:
            self._forget()

    def _rows(self, query: str, values: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        """Returns a query's rows from the updated index; a damaged index is made again."""
        with self._lock:
            try:
                try:
                    return self._updated().execute(query, values).fetchall()
                except sqlite3.DatabaseError as error:
                    if isinstance(error, sqlite3.OperationalError):
                        raise
                    self._forget()
                    return self._updated().execute(query, values).fetchall()
            except sqlite3.Error as error:
                raise DataError(
                    f"Cannot keep the index {self._path} ({error}); check that there is space left"
                    " and that no process holds it."
                ) from error

    def _forget(self) -> None:
        if self._database is not None:
            self._database.close()
        self._database = None
        for suffix in ("", "-journal") if self._path else ():
            Path(f"{self._path}{suffix}").unlink(missing_ok=True)

    def _updated(self) -> sqlite3.Connection:
        if self._database is None:
            self._open()
        while self._known() < len(self._reader.datasets):
            self._add()
        query = "select number from damaged where number < ?"
        damaged = [number for (number,) in self._database.execute(query, (len(self._reader),))]
        if again := [number for number in damaged if number not in self._damaged]:
            with self._database:
                for number in again:
                    self._add_group(number)
        return self._database

    def _open(self) -> None:
        """Opens the file; an empty one gets its tables.

        Raises:
            sqlite3.DatabaseError: it is no intact index of the listed data sets.
        """
        path = str(self._path or "")
        self._database = sqlite3.connect(path, check_same_thread=False, timeout=60)
        with self._database as database:
            database.execute("begin immediate")
            layout = database.execute("pragma user_version").fetchone()[0]
            if layout == 0:
                for statement in filter(str.strip, _TABLES.split(";")):
                    database.execute(statement)
                database.execute(f"pragma user_version = {LAYOUT}")
                return
            if layout != LAYOUT:
                raise sqlite3.DatabaseError(f"its layout is {layout}")
            listed = dict(enumerate(map(_digest, self._reader.datasets)))
            known = database.execute("select place, sha256 from datasets")
            if any(listed.get(place, sha256) != sha256 for place, sha256 in known):
                raise sqlite3.DatabaseError("it is of other data sets")

    def _known(self) -> int:
        return self._database.execute("select count(*) from datasets").fetchone()[0]

    def _add(self) -> None:
        """Adds some of the data sets that are not in the index yet; other processes may, too."""
        entries = self._reader.datasets
        with self._database as database:
            database.execute("begin immediate")
            known = self._known()
            number = sum(entry.groups for entry in entries[:known])
            for place, entry in enumerate(entries[known : known + AT_ONCE], known):
                for one in range(number, number + entry.groups):
                    self._add_group(one)
                database.execute("insert into datasets values (?, ?)", (place, _digest(entry)))
                number += entry.groups

    def _add_group(self, number: int) -> None:
        database = self._database
        try:
            group = self._reader[number]
        except (CorruptShard, CorruptRecord) as error:
            self._damaged.add(number)
            database.execute("insert or ignore into damaged values (?)", (number,))
            warnings.warn(f"{error} Until then look-ups do not find this group.", stacklevel=2)
            return
        database.execute("delete from damaged where number = ?", (number,))
        question = group.question_id or group.prompt
        row = (number, *map(_bytes, (group.group_id, group.task, question)))
        database.execute("insert or replace into groups values (?, ?, ?, ?)", row)
        versions = {int(version) for version in (*group.policy_version, *group.token_versions)}
        database.executemany(
            "insert or ignore into versions values (?, ?)",
            [(version, number) for version in versions],
        )


def _digest(entry: Entry) -> str:
    return entry.files[entry.data_file].sha256


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")  # SQLite's own text cannot hold lone surrogates


class DigestSet:
    """A set of byte strings, kept as digests in a temporary SQLite file, so that memory does not
    grow with it. A context manager.

    with DigestSet() as seen:
        first_time = seen.add(data)
    """

    def __enter__(self) -> "DigestSet":
        self._table = sqlite3.connect("")
        self._table.execute("create table seen (digest blob primary key) without rowid")
        return self

    def __exit__(self, *_: object) -> None:
        self._table.close()

    def add(self, data: bytes) -> bool:
        """Adds a byte string; True if it is new."""
        digest = hashlib.blake2b(data, digest_size=16).digest()
        return self._table.execute("insert or ignore into seen values (?)", (digest,)).rowcount > 0
