"""A run of a study as a value with a key, the file of finished runs, and the file of the settings
that their keys do not contain.

The file of runs has a line per run, appended by one process. A study that was killed reads it again
and does the missing runs; a line that was cut off by the kill is removed.
"""

from __future__ import annotations

import dataclasses
import json
import os
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from grre_jax import random_streams
from grre_jax.config import Regime, differences
from grre_jax.errors import DataError, UsageError
from grre_jax.storage import files


def seeds_of(count: int | None, default: int, first: int) -> range:
    """Returns the seeds of a study's runs that are judged.

    Args:
        count: how many, at least two for an interval, or None for the default.
        default: how many then.
        first: the first of them.

    Raises:
        UsageError: there are too few, or they are out of their domain.
    """
    count = default if count is None else count
    if not 2 <= count <= 1000 or not 0 <= first <= 10_000:
        raise UsageError(
            f"--seeds {count} --first-seed {first}: 2 to 1000 seeds from 0 to 10000 are needed"
        )
    return range(first, first + count)


@dataclasses.dataclass(frozen=True)
class Entry:
    """An algorithm that takes part in a study.

    Args:
        label: its name in tables and figures.
        name: for `objectives.algorithm`: a name, or FILE.py:FUNCTION.
        options: its numbers and variants.
        ess_exponent: power of the effective sample size that multiplies its learning rate.
    """

    label: str
    name: str
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    ess_exponent: float = 0.0

    @property
    def own_file(self) -> Path | None:
        """File of a user-defined loss; None for a named algorithm."""
        return Path(self.name.rpartition(":")[0]) if ".py:" in self.name else None

    @property
    def identity(self) -> dict[str, Any]:
        """Everything that is equal for two entries of one algorithm. A loss, or a part that an
        option names, that was edited is another one.
        """
        file = {} if self.own_file is None else {"file": zlib.crc32(self.own_file.read_bytes())}
        parts = {
            option: zlib.crc32(Path(value.rpartition(":")[0]).read_bytes())
            for option, value in self.options.items()
            if isinstance(value, str) and ".py:" in value
        }
        files = file | ({"part_files": parts} if parts else {})
        scaled = {"ess_exponent": self.ess_exponent} if self.ess_exponent else {}
        return {"name": self.name, "options": dict(self.options), **scaled, **files}


@dataclasses.dataclass(frozen=True)
class Run:
    """One run of a study.

    Args:
        algorithm: the label of its entry.
        regime: the degree of off-policyness.
        learning_rate: of every step.
        seed: of questions and draws; also the number of the warm start that it begins with.
        steps: of training.
        stored: distinct batches; 0 if every batch is new.
    """

    algorithm: str
    regime: Regime
    learning_rate: float
    seed: int
    steps: int
    stored: int = 0

    @property
    def key(self) -> str:
        """The run's name in the file."""
        return f"{self.cell}; seed {self.seed}"

    @property
    def cell(self) -> str:
        """The key without the seed."""
        finite = f", {self.stored} batches" if self.stored else ""
        return (
            f"{self.algorithm}; {self.regime.described}{finite}; rate {self.learning_rate:g};"
            f" {self.steps} steps"
        )


Result = dict[str, list[float | None]]  # curves by name


class Ledger:
    """The file of finished runs.

    Args:
        path: runs.jsonl; made with the first line.

    Attributes:
        results: curves by the run's key.
        records: everything that is kept of a run, by its key.
        labels: the algorithms that have finished runs.

    Raises:
        DataError: a complete line is not as `add` writes it.
    """

    def __init__(self, path: Path):
        self.path, self.results, self.records, self.labels = path, {}, {}, set()
        content = path.read_bytes() if path.exists() else b""
        whole = content[: content.rfind(b"\n") + 1]
        if len(whole) < len(content):  # cut off by a kill
            os.truncate(path, len(whole))
        for number, line in enumerate(whole.splitlines(), start=1):
            try:
                entry = json.loads(line)
                self.results[entry["key"]] = entry["result"]
                self.records[entry["key"]] = entry
                self.labels.add(entry["run"]["algorithm"])
            except (ValueError, KeyError, TypeError) as error:
                raise DataError(
                    f"{path}, line {number} is no finished run ({error}): remove the line, and the"
                    " run is done again"
                ) from error

    def __contains__(self, run: Run) -> bool:
        return run.key in self.results

    def __getitem__(self, run: Run) -> Result:
        return self.results[run.key]

    def add(self, run: Run, result: Result, program: Program | None = None) -> None:
        """Appends a finished run, with the program that computed it; it is on the disk when this
        returns.
        """
        fields = {"run": dataclasses.asdict(run), "result": result}
        if program is not None:
            fields["program"] = dataclasses.asdict(program)
        line = json.dumps({"key": run.key, **fields})
        with self.path.open("ab") as file:
            file.write(line.encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        self.results[run.key] = result
        self.labels.add(run.algorithm)


class Settings:
    """settings.json of a study's folder: the settings that all of its runs share, each label's
    algorithm, and the machines of the runs.

    Args:
        folder: of the study; made if it does not exist.
        shared: settings of all runs, by name.
        entries: the algorithms that take part.
        ledger: the finished runs: the entry of an algorithm without one is replaced.

    Attributes:
        machines: in words.

    Raises:
        UsageError: the folder cannot be written, or contains runs with other shared settings, or
            runs of another algorithm of the same label.
        DataError: the file exists and cannot be read.
    """

    def __init__(
        self, folder: Path, shared: Mapping[str, Any], entries: Sequence[Entry], ledger: Ledger
    ):
        self.path = folder / "settings.json"
        draws = {"random_streams": random_streams.VERSION}
        shared = {name: {**value, **draws} for name, value in shared.items()}
        shared = json.loads(json.dumps(shared))  # as it comes back from the file
        self._known = self._read(shared)
        # Of a folder whose first run failed to begin, nothing was made with the former settings.
        used = any(path.is_file() and path != self.path for path in folder.rglob("*"))
        for name, value in shared.items():
            if used and (differing := differences(self._known[name], value)):
                raise UsageError(
                    f"--output {folder}: it holds runs of another {name} ({self.path} differs in"
                    f" {', '.join(differing)}): name another folder"
                )
            self._known[name] = value
        for entry in entries:
            self._enter(entry, used=entry.label in ledger.labels)
        self.machines: list[str] = self._known["machines"]
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._write()
        except OSError as error:
            raise UsageError(
                f"--output {folder}: it cannot be written ({error.strerror}): name a folder that is"
                " there or can be made"
            ) from error

    def add_machine(self, machine: str) -> None:
        """Adds the machine that computes the runs from now on."""
        if machine not in self.machines:
            self.machines.append(machine)
            self._write()

    def _enter(self, entry: Entry, used: bool) -> None:
        own, was = entry.identity, self._known["entries"].get(entry.label)
        if used and was not in (None, own):
            raise UsageError(
                f"--output {self.path.parent}: it holds runs of another {entry.label!r} ({was}, now"
                f" {own}; file: the checksum of a loss): name another folder, or give it another"
                " name"
            )
        self._known["entries"][entry.label] = own

    def _read(self, shared: Mapping[str, Any]) -> dict[str, Any]:
        if not self.path.exists():
            return {**shared, "entries": {}, "machines": []}
        try:
            known = {"machines": [], **json.loads(self.path.read_text())}
            if not all(isinstance(known[name], dict) for name in (*shared, "entries")):
                raise ValueError("it is no settings.json of this study")
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(
                f"{self.path} cannot be read ({type(error).__name__}: {error}): restore it from a"
                " copy, or name another folder with --output"
            ) from error
        return known

    def _write(self) -> None:
        files.replace(self.path, json.dumps(self._known, indent=1) + "\n")


@dataclasses.dataclass(frozen=True)
class Program:
    """Settings that runs of one compilation share; see `graph_run.run`."""

    steps: int
    fill: int
    ring: int
