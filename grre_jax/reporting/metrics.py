"""`metrics.jsonl`: one JSON object a line, the record from which every curve and summary of a
run is drawn.

A line is `{"step": int, "kind": "train" | "eval" | "warm_start", "time": unix seconds, "elapsed":
seconds, <scalars>}`. The file only grows. NaN and the infinities, which JSON cannot write, are
`null` in their place and named under `"not_finite"`, so that any JSON reader reads the file and
none mistakes a diverged loss for a missing one.
"""

import contextlib
import json
import math
import os
import time
import warnings
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int

from grre_jax.errors import DataError, UsageError, naming
from grre_jax.json_files import OBJECT, TEXT, Domain, require

FILE_NAME = "metrics.jsonl"
SUPERSEDED_NAME = "metrics.superseded.jsonl"

# What every line has beside its scalars.
HEADER = ("step", "kind", "time", "elapsed", "not_finite")

COMPONENT = "component_"  # first word of the scalar of a reward's component
# First word of the scalar staleness_N: how many of a step's groups were sampled N updates before.
STALENESS = "staleness_"

_STEP = Domain("a whole number of at least 0", lambda value: isinstance(value, int) and value >= 0)
_SCALAR = Domain("a number", lambda value: isinstance(value, int | float))

Row = dict[str, int | float | str]
Metrics = dict[str, list[Row]]


class MetricsLog(contextlib.AbstractContextManager):
    """Appends the scalars of one run to its `metrics.jsonl`.

    A row is on the operating system's side before `write` returns: a killed process loses none, a
    machine that loses power at most the last few. One process writes a run's log.

    On resume at a step, the rows that the killed run wrote beyond its last checkpoint belong to a
    future that the resumed run will live again. They move to `metrics.superseded.jsonl` beside the
    log, so that the log is the curve of one run and nothing is lost.

    Attributes:
        path: the log's file.
    """

    def __init__(
        self, run_folder: str | os.PathLike, resume_steps: Mapping[str, int] | None = None
    ):
        """Opens the log, in a new run or at the step a checkpoint was taken.

        Args:
            run_folder: the run's folder; made when missing.
            resume_steps: None in a new run. On resume the last step to keep by the kind of rows
                (-1 keeps none): later rows move aside. Kinds that it does not name stay whole.

        Raises:
            UsageError: the log already has rows and resume_steps is None.
            DataError: a line of the log that is to be resumed is not a row.
        """
        folder = Path(run_folder)
        self.path = folder / FILE_NAME
        folder.mkdir(parents=True, exist_ok=True)
        # Seconds of running, not of being switched off: a resumed run goes on counting where the
        # kept rows end.
        self._elapsed_before = 0.0
        if resume_steps is not None:
            self._rewind(resume_steps)
        elif self.path.exists() and self.path.stat().st_size > 0:
            raise UsageError(
                f"{self.path} already holds the metrics of a run: resume that run, or choose"
                " another folder"
            )
        self._file = open(self.path, "ab")
        self._opened = time.monotonic()

    def write(self, kind: str, step: int, scalars: Mapping[str, object]) -> Row:
        """Appends one row.

        Args:
            kind: of the row: "train", "eval", "warm_start" or another name.
            step: training step, ≥ 0: the number of updates made so far.
            scalars: name to number; Python, NumPy or JAX scalars of any dtype. Values still on a
                device are fetched here, so pass them once, at the end of a step.

        Returns:
            The row as `read_metrics` will return it.

        Raises:
            ValueError: a scalar is not a single real number or is named like a field every row has.
        """
        row: Row = {
            "step": int(step),
            "kind": kind,
            "time": round(time.time(), 3),
            "elapsed": round(self._elapsed_before + time.monotonic() - self._opened, 3),
        }
        for name, value in scalars.items():
            if name in HEADER:
                raise ValueError(f"a scalar cannot be named {name!r}: every row has that field")
            row[name] = plain_number(name, value)
        # One write call of one whole line: after a kill at most the last line is torn.
        with naming(self.path):
            self._file.write(_encode(row))
            self._file.flush()
        return row

    def close(self) -> None:
        """Writes the log through to the disk and closes it; more closes do nothing."""
        if self._file.closed:
            return
        with naming(self.path):
            try:
                self._file.flush()
                os.fsync(self._file.fileno())
            finally:
                self._file.close()

    def __exit__(self, *exception) -> None:
        self.close()

    def _rewind(self, resume_steps: Mapping[str, int]) -> None:
        """Moves the rows beyond the resumed steps to the side file, and shortens the log."""
        kept, moved, trained, wanted = [], [], 0, resume_steps.get("train", 0)
        for row, line in _parse(self.path) if self.path.exists() else ():
            # A torn line (row is None) carries no number that the resumed run will not compute
            # again; its bytes are kept all the same.
            if row is None:
                moved.append(json.dumps({"torn": line.decode("utf-8", "replace")}).encode())
            elif row["step"] > resume_steps.get(row["kind"], math.inf):
                moved.append(line)
            else:
                kept.append(line)
                trained = max(trained, row["step"]) if row["kind"] == "train" else trained
                self._elapsed_before = float(row.get("elapsed", 0.0))
        if trained < wanted:  # every step writes a row
            warnings.warn(
                f"{self.path} has no training rows after step {trained}, and the run goes on"
                f" from step {wanted}: the rows between are lost unless the file is restored from a"
                " copy, and the curves have a gap",
                stacklevel=3,
            )
        if not kept and not moved:
            return
        # A kill between the two writes leaves rows in both files; the next resume must not append
        # them a second time.
        side = self.path.with_name(SUPERSEDED_NAME)
        known = set(side.read_bytes().splitlines()) if side.exists() else set()
        if new := [line for line in moved if line not in known]:
            _write_lines(side, new, "ab")
        shortened = self.path.with_name(FILE_NAME + ".partial")
        _write_lines(shortened, kept, "wb")
        os.replace(shortened, self.path)


def _write_lines(path: Path, lines: list[bytes], mode: str) -> None:
    with naming(path), open(path, mode) as file:
        file.write(b"".join(line + b"\n" for line in lines))
        file.flush()
        os.fsync(file.fileno())


# Metrics that were renamed since a log may have been written.
OLD_NAMES = {
    "no_signal_groups": "zero_variance_groups",
    "verify_failures_rubbish": "verify_failures_invalid",
}


def read_metrics(run_folder: str | os.PathLike) -> Metrics:
    """Reads a run's log, which may still be growing.

    Args:
        run_folder: the run's folder.

    Returns:
        Kind to its rows in the order they were written; a row is name to number, with NaN and the
        infinities back in place, under the names of this version. A last line without its end
            (a run killed while writing it) is left out.

    Raises:
        DataError: the folder or its log does not exist, or a line is not a row; names the file and
            the line.
    """
    folder = Path(run_folder)
    path = folder / FILE_NAME
    if not folder.is_dir():
        raise DataError(
            f"run folder {folder} does not exist: give the folder that `grre train` wrote"
        )
    if not path.is_file():
        raise DataError(
            f"{folder} has no {FILE_NAME}, so it is not a run folder: give the folder that `grre"
            " train` wrote"
        )
    metrics: Metrics = {}
    for row, _ in _parse(path):
        if row is not None:
            current = {OLD_NAMES.get(name, name): value for name, value in row.items()}
            metrics.setdefault(row["kind"], []).append(current)
    return metrics


def series(rows: list[Row], name: str) -> tuple[Int[np.ndarray, "n"], Float[np.ndarray, "n"]]:
    """Returns one scalar of a kind's rows as a curve.

    Args:
        rows: rows of one kind.
        name: the scalar's name.

    Returns:
        steps (int64[n], increasing) and values (float64[n], may hold NaN); rows without the scalar
        are left out, and of several rows at one step the last one counts.
    """
    points = sorted({row["step"]: row[name] for row in rows if name in row}.items())
    steps, values = zip(*points, strict=True) if points else ((), ())
    return np.array(steps, dtype=np.int64), np.array(values, dtype=np.float64)


def not_finite_rows(rows: list[Row]) -> int:
    """Returns the number of rows with a NaN or an infinity among their scalars."""
    floats = ([value for value in row.values() if isinstance(value, float)] for row in rows)
    return sum(not all(map(math.isfinite, row)) for row in floats)


def accuracy_known(metrics: Metrics, name: str = "accuracy") -> bool:
    """True if a run has an accuracy: with one evaluation without it, that of the others would be
    a guess.

    Args:
        metrics: of the run.
        name: "accuracy" or "greedy_accuracy".
    """
    rows = metrics.get("eval", [])
    return any(name in row for row in rows) and all(name in row for row in rows if "reward" in row)


def component_names(metrics: Metrics) -> list[str]:
    """Returns the scalars of reward components, in order of appearance."""
    rows = (*metrics.get("train", ()), *metrics.get("eval", ()))
    return list(dict.fromkeys(name for row in rows for name in row if name.startswith(COMPONENT)))


def staleness_histogram(metrics: Metrics) -> dict[int, int]:
    """Returns groups trained on by the age of the policy that sampled them, in updates, ascending;
    {} if the run did not record it.

    A step that was taken twice (killed and resumed) counts as its last row says.
    """
    found: dict[int, int] = {}
    for row in {row["step"]: row for row in metrics.get("train", ())}.values():
        for name, count in row.items():
            age = name.removeprefix(STALENESS)
            if age != name and age.isdecimal():
                found[int(age)] = found.get(int(age), 0) + int(count)
    return dict(sorted(found.items()))


def plain_number(name: str, value: object) -> int | float:
    """Returns a Python number from a Python, NumPy or JAX scalar.

    float32 becomes the shortest decimal that reads back as the same float32: 0.1, not
    0.10000000149011612.

    Raises:
        ValueError: value is not a single real number; names the scalar.
    """
    if isinstance(value, bool | int):
        return int(value)
    if isinstance(value, float):
        return value
    array = np.asarray(value)
    if array.size != 1 or array.dtype.kind in "cOSUMm":
        raise ValueError(
            f"scalar {name!r} must be one real number, got {type(value).__name__} of shape"
            f" {array.shape}"
        )
    scalar = array.reshape(())[()]
    if array.dtype.kind in "biu":
        return int(scalar)
    return float(str(scalar)) if array.dtype == np.float32 else float(scalar)


def json_safe(value: object) -> object:
    """Returns the value with None for every NaN and infinity inside it: valid JSON."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: json_safe(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_safe(item) for item in value]
    return value


def _encode(row: Row) -> bytes:
    not_finite = {
        name: str(value)
        for name, value in row.items()
        if isinstance(value, float) and not math.isfinite(value)
    }
    written = json_safe(row | ({"not_finite": not_finite} if not_finite else {}))
    return json.dumps(written, ensure_ascii=False, allow_nan=False).encode() + b"\n"


def _parse(path: Path) -> list[tuple[Row | None, bytes]]:
    """Every line as (row, its bytes); the row is None for a torn last line."""
    lines = path.read_bytes().split(b"\n")
    parsed = []
    for number, line in enumerate(lines, start=1):
        try:
            if line.strip():
                parsed.append((_decode(line, f"{path}, line {number}"), line))
        except DataError:
            if number < len(lines):
                raise
            parsed.append((None, line))  # no newline: the process died while writing this line
    return parsed


def _decode(line: bytes, where: str) -> Row:
    try:
        row = require(json.loads(line), OBJECT, where, "of the whole line")
    except ValueError:
        raise DataError(f"{where}: this is no JSON: mend or remove that line") from None
    not_finite = row.pop("not_finite", {})
    require(not_finite, OBJECT, where, "not_finite")
    require(row.get("step"), _STEP, where, "step")
    require(row.get("kind"), TEXT, where, "kind")
    for name, value in row.items():
        if value is None:
            row[name] = float(not_finite.get(name, "nan"))
        elif name != "kind":
            require(value, _SCALAR, where, name)
    return row
