"""Loggers of a run's scalars: always `metrics.jsonl`, and if enabled TensorBoard event files and
Weights & Biases.

The log on disk is the record; the others are views of it.
"""

import contextlib
import dataclasses
import importlib
import os
import socket
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

from grre_jax.domains import Record
from grre_jax.errors import UsageError, naming
from grre_jax.reporting.metrics import HEADER, MetricsLog, Row, json_safe, read_metrics

KINDS = ("train", "eval", "warm_start")  # of rows


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
        # Imported here: tensorboardX imports torch if that is installed. Its FileWriter waits
        # without end for its own thread, which ends on a full disk.
        from tensorboardX.proto import event_pb2, summary_pb2
        from tensorboardX.record_writer import RecordWriter

        now = time.time()
        values = [
            summary_pb2.Summary.Value(tag=tag, simple_value=value)
            for tag, value in _scalars(row).items()
        ]
        summary = summary_pb2.Summary(value=values)
        events = [event_pb2.Event(step=row["step"], wall_time=row["time"], summary=summary)]
        if self._writer is None:
            # A quick restart gets a file of its own, which TensorBoard reads after the earlier one.
            name = f"events.out.tfevents.{int(now)}.{socket.gethostname()}.{time.time_ns()}"
            with naming(self._folder):
                self._folder.mkdir(parents=True, exist_ok=True)
                self._writer = RecordWriter(str(self._folder / name))
            version = event_pb2.Event(file_version="brain.Event:2", wall_time=now)
            events = [version, *events]
        with naming(self._writer.path):
            for event in events:
                self._writer.write(event.SerializeToString())

    def complete(self) -> None:
        """Writes the rows of a resumed run's log, in place of the earlier files."""
        for path in self._folder.rglob("events.out.tfevents*"):
            path.unlink()
        kinds = read_metrics(self._folder.parent).values()
        for row in sorted((row for rows in kinds for row in rows), key=lambda row: row["time"]):
            self.write(row)

    def close(self) -> None:
        """Closes the file, which may fail; more closes do nothing."""
        if self._writer is not None:
            writer = self._writer
            self._writer = None
            with naming(writer.path):
                writer.close()


class WandbLogger:
    """A Weights & Biases run with names like `train/reward` over `train/step`.

    A resumed run continues the same W&B run: the steps between the checkpoint and the kill are
    there twice, with equal values. Team, tags and mode are W&B's own settings (WANDB_ENTITY,
    WANDB_TAGS, WANDB_MODE).

    Args:
        run_folder: the run's folder.
        project: W&B project.
        config: shown as the run's configuration.
        name: the run's name; the folder's if empty.
    """

    def __init__(
        self,
        run_folder: str | os.PathLike,
        project: str,
        config: Mapping[str, object] | None = None,
        name: str = "",
    ):
        import wandb

        folder = Path(run_folder)
        folder.mkdir(parents=True, exist_ok=True)
        id_file = folder / "wandb_run_id"
        run_id = id_file.read_text().strip() if id_file.exists() else uuid.uuid4().hex[:12]
        self.run = wandb.init(
            project=project,
            name=name or folder.resolve().name,
            id=run_id,
            resume="allow",
            config=json_safe(dict(config or {})),
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
        """Ends the W&B run and waits for its uploads; more closes do nothing."""
        if self.run is not None:
            self.run.finish()
            self.run = None


class RunLog(contextlib.AbstractContextManager):
    """The log on disk and every view of it behind one `write`; a context manager.

    Args:
        metrics: the log; None in the processes of a run that write none.
        loggers: the views.
    """

    def __init__(
        self,
        metrics: MetricsLog | None = None,
        loggers: Sequence[TensorBoardLogger | WandbLogger] = (),
    ):
        self._metrics = metrics
        self._loggers = loggers

    def write(self, kind: str, step: int, scalars: Mapping[str, object]) -> Row | None:
        """Writes one row everywhere, first to `metrics.jsonl`; see `MetricsLog.write`."""
        row = self._metrics and self._metrics.write(kind, step, scalars)
        for logger in self._loggers:
            logger.write(row)
        return row

    def close(self) -> None:
        """Closes the log and then the views; more closes do nothing."""
        with contextlib.ExitStack() as stack:  # an error in one leaves no other open
            for logger in self._loggers:
                stack.callback(logger.close)
            if self._metrics:
                self._metrics.close()

    def __exit__(self, *exception) -> None:
        self.close()


def check_loggers(logging: LoggingConfig) -> None:
    """Imports the package of Weights & Biases if it is needed.

    Raises:
        UsageError: it is missing; names the field.
    """
    try:
        if logging.wandb_project:
            importlib.import_module("wandb")
    except ImportError:
        raise UsageError(
            "logging.wandb_project: needs the extra 'wandb': pip install 'grre-jax[wandb]'"
        ) from None


def open_log(
    run_folder: str | os.PathLike,
    logging: LoggingConfig,
    *,
    resume_steps: Mapping[str, int] | None = None,
    config: Mapping[str, object] | None = None,
    name: str = "",
) -> RunLog:
    """Opens the log that a run's scalars are written to.

    Args:
        run_folder: the run's folder.
        logging: the loggers beside `metrics.jsonl`.
        resume_steps: as in `MetricsLog`.
        config: the run's configuration, shown by W&B.
        name: of the run in W&B; the folder's if empty.

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
