"""`metrics.jsonl`: one JSON object per line, the record of a run's scalars.

A line is `{"step": int, "kind": "train" | "eval" | "warm_start", "time": unix seconds, "elapsed":
seconds, <scalars>}`. NaN and the infinities, which JSON cannot write, are `null` in their place and
named under `"not_finite"`. The log on disk is the record; if enabled, TensorBoard event files and
Weights & Biases are views of it.
"""

import contextlib
import dataclasses
import json
import math
import os
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int

from grre_jax.domains import Record
from grre_jax.errors import DataError, UsageError
from grre_jax.storage import files

FILE_NAME = "metrics.jsonl"

# What every line has beside its scalars.
HEADER = ("step", "kind", "time", "elapsed", "not_finite")

COMPONENT = "component_"  # first word of the scalar of a reward's component

KINDS = ("train", "eval", "warm_start")  # of rows

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
        """
        row: Row = {
            "step": int(step),
            "kind": kind,
            "time": round(time.time(), 3),
            "elapsed": round(self._elapsed_before + time.monotonic() - self._opened, 3),
        }
        for name, value in scalars.items():
            row[name] = plain_number(value)
        # One write call of one whole line: after a kill at most the last line is torn.
        self._file.write(_encode(row))
        self._file.flush()
        return row

    def close(self) -> None:
        """Writes the log through to the disk and closes it; more closes do nothing."""
        if not self._file.closed:
            with self._file:
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


@dataclasses.dataclass(frozen=True)
class LoggingConfig(Record):
    """Outputs of metrics besides metrics.jsonl and the report.

    Args:
        tensorboard: write TensorBoard event files.
        wandb_project (any text): Weights & Biases project to log to; empty to log to none.
    """

    tensorboard: bool = True
    wandb_project: str = ""


class TensorBoardLogger:
    """TensorBoard event files under `RUN/tensorboard`, with tags like `train/reward`.

    Args:
        run_folder: the run's folder. The first row opens a file there.
    """

    def __init__(self, run_folder: str | os.PathLike):
        self._folder = Path(run_folder) / "tensorboard"
        self._writer = None

    def write(self, row: Row) -> None:
        """Adds one event that contains all the row's scalars."""
        # Imported here: tensorboardX imports torch if that is installed. Its SummaryWriter waits
        # without end for its own thread, which ends on a full disk.
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto import event_pb2, summary_pb2

        values = [
            summary_pb2.Summary.Value(tag=tag, simple_value=value)
            for tag, value in _scalars(row).items()
        ]
        summary = summary_pb2.Summary(value=values)
        if self._writer is None:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._writer = EventsWriter(str(self._folder / "events"))
        event = event_pb2.Event(step=row["step"], wall_time=row["time"], summary=summary)
        self._writer.write_event(event)

    def complete(self) -> None:
        """Writes the rows of a resumed run's log, in place of the earlier files."""
        for path in self._folder.rglob("events.out.tfevents*"):
            path.unlink()
        kinds = read_metrics(self._folder.parent).values()
        for row in sorted((row for rows in kinds for row in rows), key=lambda row: row["time"]):
            self.write(row)

    def close(self) -> None:
        """Closes the file, which may fail."""
        if self._writer is not None:
            self._writer.close()


class WandbLogger:
    """A Weights & Biases run with names like `train/reward` over `train/step`.

    A resumed run continues the same W&B run: the steps between the checkpoint and the kill are
    there twice, with equal values. Team, tags and mode are W&B's own settings (WANDB_ENTITY,
    WANDB_TAGS, WANDB_MODE).

    Args:
        run_folder: the run's folder.
        project: W&B project.
        config: shown as the run's configuration.
        name: the run's name.
    """

    def __init__(
        self,
        run_folder: str | os.PathLike,
        project: str,
        config: Mapping[str, object],
        name: str,
    ):
        import wandb

        folder = Path(run_folder)
        id_file = folder / "wandb_run_id"
        run_id = id_file.read_text().strip() if id_file.exists() else uuid.uuid4().hex[:12]
        self.run = wandb.init(
            project=project,
            name=name,
            id=run_id,
            resume="allow",
            config=json_safe(config),
            dir=str(folder),
        )
        id_file.write_text(run_id + "\n")
        for kind in KINDS:
            # Each has its own x axis: W&B's internal step only grows, and evaluation shares its
            # steps with training.
            self.run.define_metric(f"{kind}/step")
            self.run.define_metric(f"{kind}/*", step_metric=f"{kind}/step")

    def write(self, row: Row) -> None:
        """Logs the row's scalars over the step of their kind."""
        self.run.log({f"{row['kind']}/step": row["step"]} | _scalars(row))

    def close(self) -> None:
        """Ends the W&B run and waits for its uploads."""
        self.run.finish()


class RunLog(contextlib.ExitStack):
    """The log on disk and every view of it behind one `write`; a context manager, whose end closes
    them all, even if one fails.

    Args:
        metrics: the log; None in the processes of a run that write none.
        loggers: the views.
    """

    def __init__(
        self,
        metrics: MetricsLog | None = None,
        loggers: Sequence[TensorBoardLogger | WandbLogger] = (),
    ):
        super().__init__()
        self._metrics = metrics
        self._loggers = loggers
        for logger in loggers:
            self.callback(logger.close)
        if metrics:
            self.callback(metrics.close)  # the last one is called first

    def write(self, kind: str, step: int, scalars: Mapping[str, object]) -> Row | None:
        """Writes one row everywhere, first to `metrics.jsonl`; see `MetricsLog.write`."""
        row = self._metrics and self._metrics.write(kind, step, scalars)
        for logger in self._loggers:
            logger.write(row)
        return row


def check_loggers(logging: LoggingConfig) -> None:
    """Imports the package of Weights & Biases if it is needed.

    Raises:
        UsageError: it is missing; names the field.
    """
    try:
        if logging.wandb_project:
            import wandb  # noqa: F401
    except ImportError:
        raise UsageError(
            "logging.wandb_project: needs the extra 'wandb': pip install 'grre-jax[wandb]'"
        ) from None


def open_log(
    run_folder: str | os.PathLike,
    logging: LoggingConfig,
    *,
    config: Mapping[str, object],
    name: str,
    resume_steps: Mapping[str, int] | None = None,
) -> RunLog:
    """Opens the log that a run's scalars are written to.

    Args:
        run_folder: the run's folder.
        logging: the loggers beside `metrics.jsonl`.
        config: the run's configuration, shown by W&B.
        name: of the run in W&B.
        resume_steps: as in `MetricsLog`.

    Raises:
        UsageError, DataError: as `check_loggers` and `MetricsLog`.
    """
    check_loggers(logging)
    views: list[TensorBoardLogger | WandbLogger] = []
    if logging.wandb_project:  # first: its refusal leaves the run folder's log as it was
        views.append(WandbLogger(run_folder, logging.wandb_project, config, name))
    log = MetricsLog(run_folder, resume_steps)
    if logging.tensorboard:
        board = TensorBoardLogger(run_folder)
        if resume_steps is not None:
            board.complete()
        views.append(board)
    return RunLog(log, views)


def _scalars(row: Row) -> dict[str, int | float]:
    kind = row["kind"]
    return {f"{kind}/{name}": value for name, value in row.items() if name not in HEADER}
