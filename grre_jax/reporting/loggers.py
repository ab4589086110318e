"""Loggers of a run's scalars: always `metrics.jsonl`, and if enabled TensorBoard event files and
Weights & Biases.

`open_log` returns one object with one `write` for all of them. The log on disk is the record; the
others are views of it.
"""

import contextlib
import importlib
import os
import socket
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

from grre_jax.errors import UsageError, naming
from grre_jax.reporting.config import LoggingConfig
from grre_jax.reporting.metrics import HEADER, MetricsLog, Row, json_safe, read_metrics

TENSORBOARD_FOLDER = "tensorboard"
WANDB_ID_FILE = "wandb_run_id"
WARM_START = "warm_start"  # a kind of rows, and the subfolder of their events
_FRAME = 16  # bytes of an event's record around its data: length, its checksum, the data's checksum
FLUSH_SECONDS = 10  # the longest time that a row of TensorBoard's stays in memory


class TensorBoardLogger:
    """TensorBoard event files under `RUN/tensorboard`, with tags like `train/reward`; written
    without TensorFlow.

    The warm start counts its own steps, so it goes to the subfolder `warm_start`, which TensorBoard
    shows as a run of its own.
    """

    def __init__(
        self, run_folder: str | os.PathLike, resume_steps: Mapping[str, int] | None = None
    ):
        """Opens no file yet: each is opened by its first row.

        Args:
            run_folder: the run's folder.
            resume_steps: on resume, the last step that is kept by kind, as of `MetricsLog`:
                TensorBoard then hides what the killed run wrote beyond it.
        """
        self._folder = Path(run_folder) / TENSORBOARD_FOLDER
        self._resumed, self._flush_at = resume_steps is not None, 0.0
        self._kept, self._writers = dict(resume_steps or {}), {}

    def write(self, row: Row) -> None:
        """Adds one event that contains all the row's scalars."""
        from tensorboardX.proto import summary_pb2

        values = [
            summary_pb2.Summary.Value(tag=tag, simple_value=value)
            for tag, value in _scalars(row).items()
        ]
        summary = summary_pb2.Summary(value=values)
        subfolder = _subfolder(row["kind"])
        self._add(subfolder, step=row["step"], wall_time=row["time"], summary=summary)
        if time.monotonic() >= self._flush_at:
            self.flush()

    def flush(self) -> None:
        """Writes what is buffered."""
        for writer in self._writers.values():
            with naming(writer.path):
                writer.flush()
        self._flush_at = time.monotonic() + FLUSH_SECONDS

    def complete(self, rows: Sequence[Row]) -> None:
        """Writes those of a resumed run's rows that the files lack: what was buffered when the run
        was killed.
        """
        stored = {name: _stored_rows(self._folder / name) for name in (".", WARM_START)}
        for row in rows:
            if (row["kind"], row["step"]) not in stored[_subfolder(row["kind"])]:
                self.write(row)
        self.flush()

    def close(self) -> None:
        """Writes what is buffered and closes the files; more closes do nothing.

        Raises:
            OSError: a file cannot be written; the others are closed all the same.
        """
        with contextlib.ExitStack() as stack:
            while self._writers:
                writer = self._writers.popitem()[1]
                stack.enter_context(naming(writer.path))
                stack.callback(writer.close)

    def _add(self, subfolder: str, **event: object) -> None:
        # Imported here: tensorboardX takes a moment, and imports torch if that is installed.
        from tensorboardX.proto import event_pb2

        if subfolder not in self._writers:
            self._open(subfolder)
        writer = self._writers[subfolder]
        with naming(writer.path):
            writer.write(event_pb2.Event(**event).SerializeToString())

    def _open(self, subfolder: str) -> None:
        # Its records, and not its FileWriter: that writes in a thread, which a full disk ends, and
        # then waits for it for ever.
        from tensorboardX.proto import event_pb2
        from tensorboardX.record_writer import RecordWriter

        folder, now = self._folder / subfolder, time.time()
        with naming(folder):
            folder.mkdir(parents=True, exist_ok=True)
            # The name begins with the time in seconds; a quick restart must not open the killed
            # run's file again, and TensorBoard must read its file after that one.
            name = f"events.out.tfevents.{int(now)}.{socket.gethostname()}.{time.time_ns()}"
            self._writers[subfolder] = RecordWriter(str(folder / name))
        kept = [step for kind, step in self._kept.items() if _subfolder(kind) == subfolder]
        at = {"step": min(kept) + 1 if kept else 0, "wall_time": now}
        self._add(subfolder, file_version="brain.Event:2", **at)
        if self._resumed:
            start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
            self._add(subfolder, session_log=start, **at)


def _subfolder(kind: str) -> str:
    return WARM_START if kind == WARM_START else "."


def _stored_rows(folder: Path) -> set[tuple[str, int]]:
    """Returns kind and step of the rows that TensorBoard shows of a folder's event files."""
    from tensorboardX.proto import event_pb2

    found: set[tuple[str, int]] = set()
    for path in sorted(folder.glob("events.out.tfevents.*")):
        data, start = path.read_bytes(), 0
        while start + _FRAME <= len(data):
            size = int.from_bytes(data[start : start + 8], "little")
            if start + size + _FRAME > len(data):
                break  # torn: the process was killed while it wrote this record
            event = event_pb2.Event.FromString(data[start + 12 : start + 12 + size])
            start += size + _FRAME
            if event.session_log.status == event_pb2.SessionLog.START:
                found = {(kind, step) for kind, step in found if step < event.step}
            found |= {(value.tag.partition("/")[0], event.step) for value in event.summary.value}
    return found


class WandbLogger:
    """A Weights & Biases run with names like `train/reward` over `train/step`; needs the extra
    `wandb`.

    The run's id is kept in the run folder, so a resumed run continues the same W&B run. W&B's
    history cannot be rewound: of a resumed run the steps that it already has, by its summary, are
    not logged again, since they repeat exactly. An offline run has no summary of what was logged
    before: the steps between the checkpoint and the kill are there twice, with equal values, and
    those that the kill lost are absent. Team, tags and mode are W&B's own settings (WANDB_ENTITY,
    WANDB_TAGS, WANDB_MODE).
    """

    def __init__(
        self,
        run_folder: str | os.PathLike,
        project: str,
        config: Mapping[str, object] | None = None,
        name: str = "",
    ):
        """Starts or resumes the W&B run.

        Args:
            run_folder: the run's folder; W&B's own files go to its subfolder `wandb`.
            project: W&B project.
            config: shown as the run's configuration.
            name: the run's name; the folder's if empty.

        Raises:
            UsageError: wandb is not installed, or W&B refuses to start (no API key, no network).
        """
        wandb = _wandb()
        folder = Path(run_folder)
        folder.mkdir(parents=True, exist_ok=True)
        id_file = folder / WANDB_ID_FILE
        known = id_file.exists()
        run_id = id_file.read_text().strip() if known else uuid.uuid4().hex[:12]
        try:
            self.run = wandb.init(
                project=project,
                name=name or folder.resolve().name,
                id=run_id,
                resume="allow" if known else None,
                config=json_safe(dict(config or {})),
                dir=str(folder),
            )
        except wandb.errors.Error as error:
            raise UsageError(
                f"Weights & Biases did not start ({error}): run `wandb login`, set"
                " WANDB_MODE=offline, or switch wandb off"
            ) from None
        id_file.write_text(run_id + "\n")
        self._kinds = set()
        self._last: dict[str, int] = {}  # step of the newest row by kind

    def flush(self) -> None:
        """Does nothing: W&B's own process writes what it is given."""

    def complete(self, rows: Sequence[Row]) -> None:
        """Logs those of a resumed run's rows that W&B lacks; none of an offline run's."""
        for row in () if self.run.offline else rows:
            self.write(row)

    def write(self, row: Row) -> None:
        """Logs the row's scalars over the step of their kind, unless W&B has that step."""
        kind = row["kind"]
        if kind not in self._last:
            self._last[kind] = self.run.summary.get(f"{kind}/step", -1)
        if row["step"] <= self._last[kind]:
            return
        self._last[kind] = row["step"]
        if kind not in self._kinds:
            # Each kind has its own x axis: W&B's internal step only grows, and evaluation shares
            # its steps with training.
            self.run.define_metric(f"{kind}/step")
            self.run.define_metric(f"{kind}/*", step_metric=f"{kind}/step")
            self._kinds.add(kind)
        self.run.log({f"{kind}/step": row["step"]} | _scalars(row))

    def close(self) -> None:
        """Ends the W&B run and waits for its uploads; more closes do nothing."""
        if self.run is not None:
            self.run.finish()
            self.run = None


class RunLog(contextlib.AbstractContextManager):
    """The log on disk and every view of it behind one `write`; a context manager.

    Attributes:
        metrics: the `MetricsLog`; None in the processes of a run that write none.
        loggers: the views.
    """

    def __init__(
        self,
        metrics: MetricsLog | None = None,
        loggers: Sequence[TensorBoardLogger | WandbLogger] = (),
    ):
        self.metrics, self.loggers = metrics, loggers

    def write(self, kind: str, step: int, scalars: Mapping[str, object]) -> Row | None:
        """Writes one row everywhere, first to `metrics.jsonl`; see `MetricsLog.write`."""
        row = self.metrics and self.metrics.write(kind, step, scalars)
        for logger in self.loggers:
            logger.write(row)
        return row

    def flush(self) -> None:
        """Writes what the views buffer; the log itself buffers nothing."""
        for logger in self.loggers:
            logger.flush()

    def close(self) -> None:
        """Closes the log and then the views; more closes do nothing."""
        with contextlib.ExitStack() as stack:  # one that fails leaves none open
            for logger in self.loggers:
                stack.callback(logger.close)
            if self.metrics:
                self.metrics.close()

    def __exit__(self, *exception) -> None:
        self.close()


def check_loggers(logging: LoggingConfig) -> None:
    """Imports the package of Weights & Biases if it is needed, and writes nothing.

    Args:
        logging: the loggers.

    Raises:
        UsageError: it is missing; names the field.
    """
    if logging.wandb_project:
        _wandb()


def _wandb():
    try:
        return importlib.import_module("wandb")
    except ImportError:
        raise UsageError(
            "field logging.wandb_project needs the extra 'wandb': pip install 'grre-jax[wandb]', or"
            " leave the field empty"
        ) from None


def open_log(
    run_folder: str | os.PathLike,
    logging: LoggingConfig,
    *,
    resume_steps: Mapping[str, int] | None = None,
    config: Mapping[str, object] | None = None,
    name: str = "",
) -> RunLog:
    """Opens everything that a run's scalars are written to.

    Args:
        run_folder: the run's folder.
        logging: the loggers beside `metrics.jsonl`.
        resume_steps: as in `MetricsLog`.
        config: the run's configuration, shown by W&B.
        name: of the run in W&B; the folder's if empty.

    Returns:
        The log.

    Raises:
        UsageError, DataError: as `MetricsLog` and `WandbLogger`. Weights & Biases is started first,
            so that its refusal leaves the run folder's log as it was.
    """
    views: list[TensorBoardLogger | WandbLogger] = []
    if logging.wandb_project:
        views.append(WandbLogger(run_folder, logging.wandb_project, config, name))
    if logging.tensorboard:
        views.append(TensorBoardLogger(run_folder, resume_steps))
    log = MetricsLog(run_folder, resume_steps)
    if resume_steps is not None:
        kinds = read_metrics(run_folder).values()
        rows = sorted((row for rows in kinds for row in rows), key=lambda row: row["time"])
        for view in views:
            view.complete(rows)
    return RunLog(log, views)


def _scalars(row: Row) -> dict[str, int | float]:
    kind = row["kind"]
    return {f"{kind}/{name}": value for name, value in row.items() if name not in HEADER}
