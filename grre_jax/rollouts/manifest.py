"""The append-only manifest of a rollout folder: a data set exists when its line is here, and not
before.

`manifest.jsonl` has one JSON object per line, each ending in a CRC-32 of the rest of the line. A
last line without that ending was not finished by its writer (killed, or no space left) and does not
count. Lines are only ever added, so a reader continues from where it stopped. It shares the
writers' lock while it reads: lines that a full disk cuts short are removed before it reads. A line
that fails its checksum is refused by its number.
"""

import dataclasses
import fcntl
import json
import os
import re
import zlib
from collections.abc import Iterator
from typing import Any

from grre_jax.errors import DataError
from grre_jax.rollouts import schema
from grre_jax.storage.files import lock

FILENAME = "manifest.jsonl"
MISSING = "the manifest lists this file but it is missing"
# A finished line; the byte after it may be a newline that was damaged later.
_FINISHED = re.compile(rb',"crc32":"[0-9a-f]{8}"\}.?$', re.DOTALL)


class CorruptManifest(DataError):
    """A finished line of the manifest is damaged, or is of a schema that this version does not
    read.
    """


class CorruptShard(DataError):
    """A file of a data set is missing, truncated or damaged, or a record in it.

    Attributes:
        file: its path or URL.
        record: number of the damaged record, from 0; None if the whole file cannot be read.
    """

    def __init__(self, file: str, problem: str, record: int | None = None) -> None:
        super().__init__(file, problem, record)
        self.file = file
        self.record = record

    def __str__(self) -> str:
        where = self.file if self.record is None else f"{self.file}, record {self.record}"
        return (
            f"{where}: {self.args[1]}; restore it from a copy, or delete the data set's line from"
            f" {FILENAME}: a run that sampled it then does so again with --resume."
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Entry:
    """One sealed data set.

    Attributes:
        name: its folder's name in the rollout folder.
        writer: who wrote it.
        policy_version: version of the policy that sampled it, -1 when unknown or mixed.
        groups, completions, tokens: how many it holds.
        reward_mean: mean reward over its completions that have a verdict; 0 without any.
        positions: places in the prompt stream, in record order, as runs (first, count) of
            consecutive places; imported groups, at -1, are runs of (-1, count).
        files: `sha256`, hexadecimal, and `bytes`, the size, of its files by name.
        created: when it was sealed, ISO 8601 in UTC.
        metadata: provenance (task, model and tokenizer fingerprint, `contains`: benchmark splits
            its questions come from, ...).
        schema_version: version of the record schema.
        failures: completions without a verdict.
    """

    name: str
    writer: str
    policy_version: int
    groups: int
    completions: int
    tokens: int
    reward_mean: float
    positions: tuple[tuple[int, int], ...]
    files: dict[str, dict[str, Any]] = dataclasses.field(hash=False)
    created: str
    metadata: dict[str, Any] = dataclasses.field(default_factory=dict, hash=False)
    schema_version: str = schema.SCHEMA_VERSION
    failures: int = 0

    @property
    def data_file(self) -> str:
        """Name of its ArrayRecord file."""
        return next(name for name in self.files if ".array_record-" in name)

    def location(self, root: str | os.PathLike[str], file: str) -> str:
        """Returns the path or URL of a file of the data set in a rollout folder."""
        return f"{root}/{self.name}/{file}"


def append(folder: str | os.PathLike[str], *added: Entry) -> None:
    """Adds the lines of entries and waits until they are on the disk.

    Raises:
        OSError: they could not be written (no space, for example); the manifest is as it was.
    """
    lines = b"".join(map(to_line, added))
    # Unbuffered, so that a full disk is noticed in `write` and not when the file is closed.
    with open(os.path.join(folder, FILENAME), "a+b", buffering=0) as file:
        lock(file, fcntl.LOCK_EX)  # the processes of a run write to one folder
        file.seek(0)
        content = file.read()
        end = finished(content)
        # New lines would continue one that its writer did not finish.
        file.truncate(end)
        if end and not content.endswith(b"\n", 0, end):
            lines = b"\n" + lines
        try:
            written = file.write(lines)
            if written < len(lines):
                raise OSError(f"{written} of {len(lines)} bytes of a manifest line were written")
            os.fsync(file.fileno())
        except OSError:
            file.truncate(end)
            raise


def finished(content: bytes) -> int:
    """Returns the length of a manifest without a last line that was not finished."""
    end = content.rfind(b"\n") + 1
    return len(content) if _FINISHED.search(content, end) else end


def entries(content: bytes, shown: str, start: int = 0) -> Iterator[Entry | CorruptManifest]:
    """Yields the entries of a manifest, and the error of a damaged line in its place.

    Args:
        content: of the manifest.
        shown: its name in messages.
        start: number of the byte to begin at, behind a finished line.
    """
    lines = content[start : finished(content)].split(b"\n")
    for number, line in enumerate(lines, content.count(b"\n", 0, start) + 1):
        if line:
            yield _parsed(line, f"{shown}, line {number}")


def _parsed(line: bytes, location: str) -> Entry | CorruptManifest:
    try:
        size = len(_seal(b""))
        body = line[:-size] + b"}"  # the seal took the place of the brace
        if line[-size:] != _seal(body):
            raise ValueError("it does not end in its checksum")
        fields = json.loads(body)
        version = fields["schema_version"]
        major = schema.SCHEMA_VERSION.split(".")[0]
        if version.split(".")[0] != major:
            return CorruptManifest(
                f"{location}: its data set has schema version {version}, and this version of"
                f" grre_jax reads {major}.x: read the folder with the version that wrote it, whose"
                " `grre rollouts export` writes what any version imports."
            )
        fields["positions"] = tuple((first, count) for first, count in fields["positions"])
        # A newer minor version may have written others.
        names = [field.name for field in dataclasses.fields(Entry) if field.name in fields]
        return Entry(**{name: fields[name] for name in names})
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return CorruptManifest(
            f"{location}: damaged manifest entry ({error!r}); restore the line from a copy, or"
            " delete it: its data set then no longer counts, and the others do."
        )


def runs(positions: list[int]) -> tuple[tuple[int, int], ...]:
    """Returns positions in record order as runs (first, count) of consecutive ones, or of -1."""
    result: list[tuple[int, int]] = []
    following = None
    for position in positions:
        if position == following:
            first, count = result[-1]
            result[-1] = (first, count + 1)
        else:
            result.append((position, 1))
        following = position + 1 if position >= 0 else -1
    return tuple(result)


def to_line(entry: Entry) -> bytes:
    """Returns an entry as a line of the manifest, with its checksum and a newline."""
    fields = dataclasses.asdict(entry)
    body = json.dumps(fields, separators=(",", ":"), allow_nan=False).encode()
    return body[:-1] + _seal(body) + b"\n"


def _seal(body: bytes) -> bytes:
    return b',"crc32":"%08x"}' % zlib.crc32(body)


def sync_folder(folder: str | os.PathLike[str]) -> None:
    """Waits until the disk holds the folder's list of names."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
