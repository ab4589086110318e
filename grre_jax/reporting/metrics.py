"""`metrics.jsonl`: one JSON object per line, the record of a run's scalars.

A line is `{"step": int, "kind": "train" | "eval" | "warm_start", "time": unix seconds, "elapsed":
seconds, <scalars>}`. NaN and the infinities, which JSON cannot write, are `null` in their place and
named under `"not_finite"`.
"""

import contextlib
import json
import math
import os
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int

from grre_jax.errors import DataError, UsageError, naming
from grre_jax.storage import files

FILE_NAME = "metrics.jsonl"

# What every line has beside its scalars.
HEADER = ("step", "kind", "time", "elapsed", "not_finite")

COMPONENT = "component_"  # first word of the scalar of a reward's component

Row = dict[str, int | float | str]
Metrics = dict[str, list[Row]]


class MetricsLog(contextlib.AbstractContextManager):
    """Appends the scalars of one run to its `metrics.jsonl`, from one process.

    A row is passed to the operating system before `write` returns: a killed process loses none.

    Args:
        run_folder: the run's folder; made when missing.
        resume_steps: None in a new run. On resume the last step to keep by the kind of rows (-1
            keeps none): later ones are removed. Other kinds stay whole.

    Raises:
        UsageError: the log already has rows and resume_steps is None.
        DataError: a line of the log that is to be resumed is not a row.

    Examples:
        >>> from grre_jax import reporting
        >>> with reporting.MetricsLog("my_run") as log:
        ...     row = log.write("train", 1, {"reward": 0.25, "loss": float("nan")})
        >>> row["step"], row["reward"]
        (1, 0.25)
        >>> reporting.read_metrics("my_run")["train"][0]["loss"]
        nan
    """

    def __init__(
        self, run_folder: str | os.PathLike, resume_steps: Mapping[str, int] | None = None
    ):
        self.path = Path(run_folder) / FILE_NAME
        self.path.parent.mkdir(parents=True, exist_ok=True)
        # Seconds of running: a resumed run continues from the last kept row.
        self._elapsed_before = 0.0
        if resume_steps is not None:
            self._rewind(resume_steps)
        elif self.path.exists() and self.path.stat().st_size > 0:
            raise UsageError(f"{self.path} is of another run: resume it, or choose another folder")
        self._file = open(self.path, "ab")
        self._opened = time.monotonic()

    def write(self, kind: str, step: int, scalars: Mapping[str, object]) -> Row:
        """Appends one row.

        Args:
            kind: of the row, such as "train".
            step: the number of updates made so far.
            scalars: name to number, Python, NumPy or JAX scalars. Values on a device are fetched.

        Returns:
            The row as `read_metrics` will return it.

        Raises:
            ValueError: a scalar has the name of a header's field.
        """
        row: Row = {
            "step": int(step),
            "kind": kind,
            "time": round(time.time(), 3),
            "elapsed": round(self._elapsed_before + time.monotonic() - self._opened, 3),
        }
        for name, value in scalars.items():
            if name in HEADER:
                raise ValueError(f"scalar {name!r}: expected another name than {HEADER}")
            row[name] = plain_number(value)
        # One write call of one whole line: after a kill at most the last line is torn.
        with naming(self.path):
            self._file.write(_encode(row))
            self._file.flush()
        return row

    def close(self) -> None:
        """Writes the log through to the disk and closes it; more closes do nothing."""
        if not self._file.closed:
            with naming(self.path), self._file:
                self._file.flush()
                os.fsync(self._file.fileno())

    def __exit__(self, *exception) -> None:
        self.close()

    def _rewind(self, resume_steps: Mapping[str, int]) -> None:
        """Leaves out the rows beyond the resumed steps, which come again."""
        kept = []
        for row, line in _parse(self.path):
            if row["step"] <= resume_steps.get(row["kind"], math.inf):
                kept.append(line + b"\n")
                self._elapsed_before = float(row.get("elapsed", 0.0))
        files.replace(self.path, b"".join(kept))


def read_metrics(run_folder: str | os.PathLike) -> Metrics:
    """Reads a run's log, which may still be growing.

    Args:
        run_folder: the run's folder.

    Returns:
        Kind to its rows in the order they were written; a row is name to number, NaN and the
        infinities included.

    Raises:
        DataError: the log does not exist, or a line is not a row; names the file and the line.

    Examples:
        >>> from grre_jax import reporting
        >>> with reporting.MetricsLog("my_run") as log:
        ...     for step in (1, 2):
        ...         _ = log.write("train", step, {"reward": step / 4})
        ...     _ = log.write("eval", 2, {"accuracy": 0.5})
        >>> metrics = reporting.read_metrics("my_run")
        >>> {kind: len(rows) for kind, rows in metrics.items()}, metrics["eval"][-1]["accuracy"]
        ({'train': 2, 'eval': 1}, 0.5)
    """
    path = Path(run_folder) / FILE_NAME
    if not path.is_file():
        raise DataError(f"{path} does not exist: give the folder that `grre train` wrote")
    metrics: Metrics = {}
    for row, _ in _parse(path):
        metrics.setdefault(row["kind"], []).append(row)
    return metrics


def series(rows: list[Row], name: str) -> tuple[Int[np.ndarray, "n"], Float[np.ndarray, "n"]]:
    """Returns the increasing steps and the values of a scalar, which may hold NaN.

    Args:
        rows: rows of one kind; those without the scalar are left out, and of several rows at one
            step the last one counts.
        name: the scalar's name.

    Examples:
        >>> from grre_jax import reporting
        >>> with reporting.MetricsLog("my_run") as log:
        ...     for step in (1, 2):
        ...         _ = log.write("train", step, {"reward": step / 4})
        >>> steps, rewards = reporting.series(reporting.read_metrics("my_run")["train"], "reward")
        >>> steps.tolist(), rewards.tolist()
        ([1, 2], [0.25, 0.5])
    """
    points = sorted({row["step"]: row[name] for row in rows if name in row}.items())
    steps, values = zip(*points, strict=True) if points else ((), ())
    return np.array(steps, dtype=np.int64), np.array(values, dtype=np.float64)


def accuracy_known(metrics: Metrics, name: str = "accuracy") -> bool:
    """True if every evaluation of a run has the accuracy; of some alone it would be a guess."""
    rows = metrics.get("eval", [])
    return any(name in row for row in rows) and all(name in row for row in rows if "reward" in row)


def plain_number(value: object) -> int | float:
    """Returns the Python number of any scalar; a float32 in its shortest form."""
    number = np.asarray(value).reshape(())
    if number.dtype.kind in "biu":
        return int(number)
    return float(str(number)) if number.dtype == np.float32 else float(number)


def json_safe(value: object) -> object:
    """Returns the value as valid JSON: None for every NaN and infinity."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: json_safe(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_safe(item) for item in value]
    return value


def _encode(row: Row) -> bytes:
    content = json_safe(row)
    not_finite = {name: str(row[name]) for name, value in content.items() if value is None}
    if not_finite:
        content["not_finite"] = not_finite
    return json.dumps(content, ensure_ascii=False, allow_nan=False).encode() + b"\n"


def _parse(path: Path) -> list[tuple[Row, bytes]]:
    """Every row with its line, without its end; a torn last line is left out."""
    lines = path.read_bytes().split(b"\n") if path.exists() else []
    parsed = []
    for number, line in enumerate(lines, start=1):
        row = _decode(line)
        if row is not None:
            parsed.append((row, line))
        elif line.strip() and number < len(lines):
            raise DataError(f"{path}, line {number}: expected a row of scalars, got {line[:80]!r}")
    return parsed


def _decode(line: bytes) -> Row | None:
    """The row of a line; None for anything else."""
    try:
        row = json.loads(line)
        not_finite = row.pop("not_finite", {})
        missing = {name: float(not_finite.get(name, "nan")) for name in row if row[name] is None}
        return {"step": row["step"], "kind": row["kind"]} | row | missing
    except (ValueError, LookupError, TypeError, AttributeError):
        return None
