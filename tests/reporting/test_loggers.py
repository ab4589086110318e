import struct
import sys
import types

import pytest

from grre_jax.errors import UsageError
from grre_jax.reporting.config import LoggingConfig
from grre_jax.reporting.loggers import TensorBoardLogger, WandbLogger, open_log
from grre_jax.reporting.metrics import read_metrics


def read_events(folder):
    """Every event of the folder's files, in TensorBoard's order: TFRecords of (length, crc,
    event, crc).
    """
    from tensorboardX.proto import event_pb2

    events = []
    for path in sorted(folder.glob("events.out.tfevents.*")):
        data = path.read_bytes()
        while data:
            (length,) = struct.unpack("<Q", data[:8])
            events.append(event_pb2.Event.FromString(data[12 : 12 + length]))
            data = data[16 + length :]
    return events


def scalars(events):
    return [
        (event.step, value.tag, value.simple_value)
        for event in events
        for value in event.summary.value
    ]


class FakeWandb(types.ModuleType):
    """Stands in for the wandb package: records what it is told."""

    def __init__(self, refuse=False):
        super().__init__("wandb")
        self.refuse, self.inits, self.logged, self.finished, self.axes = refuse, [], [], 0, []
        self.summary, self.offline = {}, False
        self.errors = types.SimpleNamespace(Error=type("Error", (Exception,), {}))

    def init(self, **arguments):
        if self.refuse:
            raise self.errors.Error("no API key")
        self.inits.append(arguments)
        return types.SimpleNamespace(
            log=self._log,
            summary=self.summary,
            offline=self.offline,
            finish=self._finish,
            define_metric=lambda *a, **k: self.axes.append((a, k)),
        )

    def _log(self, row):
        self.logged.append(row)
        if not self.offline:
            self.summary.update(row)

    def _finish(self):
        self.finished += 1


@pytest.fixture
def wandb(monkeypatch):
    fake = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    return fake


def test_tensorboard_files_hold_every_scalar(tmp_path):
    with open_log(tmp_path, LoggingConfig()) as log:
        log.write("train", 1, {"reward": 0.25, "loss": float("nan")})
        log.write("eval", 2, {"accuracy": 0.5})
        log.write("warm_start", 70, {"loss": 2.0})
    found = scalars(read_events(tmp_path / "tensorboard"))
    assert (1, "train/reward", 0.25) in found and (2, "eval/accuracy", 0.5) in found
    assert any(tag == "train/loss" and value != value for _, tag, value in found)
    assert not any("time" in tag or "elapsed" in tag or "step" in tag for _, tag, _ in found)
    assert scalars(read_events(tmp_path / "tensorboard" / "warm_start")) == [
        (70, "warm_start/loss", 2.0)
    ]


def test_without_loggers_only_the_log_is_written(tmp_path):
    with open_log(tmp_path / "run", LoggingConfig(tensorboard=False)) as log:
        log.write("train", 1, {"reward": 0.5})
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["metrics.jsonl"]
    assert len(read_metrics(tmp_path / "run")["train"]) == 1


def test_wandb_gets_names_axes_and_configuration(tmp_path, wandb):
    run = tmp_path / "my-run"
    with open_log(run, LoggingConfig(False, "p"), config={"lr": 1e-3}) as log:
        log.write("train", 3, {"reward": 0.5})
        log.write("train", 4, {"reward": 0.6})
    (init,) = wandb.inits
    assert init["project"] == "p" and init["name"] == "my-run" and init["config"] == {"lr": 1e-3}
    assert init["dir"] == str(run) and init["resume"] is None
    assert wandb.logged == [
        {"train/step": 3, "train/reward": 0.5},
        {"train/step": 4, "train/reward": 0.6},
    ]
    assert (("train/*",), {"step_metric": "train/step"}) in wandb.axes and len(wandb.axes) == 2
    assert wandb.finished == 1


def test_wandb_goes_on_in_the_same_run_and_leaves_the_rest_to_the_environment(tmp_path, wandb):
    WandbLogger(tmp_path, "p").close()
    WandbLogger(tmp_path, "p").close()
    first, second = wandb.inits
    assert first["id"] == second["id"] and second["resume"] == "allow"
    assert not {"mode", "entity", "tags"} & set(first)  # the environment decides


def test_wandb_missing_names_the_extra_and_touches_nothing(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(UsageError, match=r"grre-jax\[wandb\]"):
        open_log(tmp_path / "run", LoggingConfig(wandb_project="p"))
    assert not (tmp_path / "run").exists()


def test_wandb_refusing_to_start_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", FakeWandb(refuse=True))
    with pytest.raises(UsageError, match="no API key.*WANDB_MODE=offline"):
        open_log(tmp_path / "run", LoggingConfig(wandb_project="p"))
    assert not (tmp_path / "run" / "metrics.jsonl").exists()
    assert not (tmp_path / "run" / "wandb_run_id").exists()


def shown(folder):
    """Rows by (tag, step) that TensorBoard shows: a START hides what lies at its step or beyond."""
    from tensorboardX.proto import event_pb2

    found = []
    for event in read_events(folder):
        if event.session_log.status == event_pb2.SessionLog.START:
            found = [row for row in found if row[1] < event.step]
        found += [(value.tag, event.step) for value in event.summary.value]
    return found


def killed_and_resumed(run, logging, kept, torn=False):
    """Steps 1 and 2 are flushed, 3 to 6 are not when the run is killed; it goes on from a
    checkpoint at step 4, if `kept` says so.
    """
    log = open_log(run, logging)
    log.write("warm_start", 1, {"loss": 1.0})
    log.write("eval", 0, {"reward": 0.0})
    for step in range(1, 7):
        log.write("train", step, {"reward": float(step)})
        if step == 2:
            log.flush()
    for sink in log.loggers:  # what a kill leaves of the buffers: nothing, or a part of a record
        if isinstance(sink, TensorBoardLogger):
            for writer in sink._writers.values():
                raw = writer._writer.raw
                raw.write(b"\x30\0\0\0\0\0\0\0\1\2\3" if torn else b"")
                raw.close()
    with open_log(run, logging, resume_steps=kept) as log:
        for step in range(kept["train"] + 1, 9):
            log.write("train", step, {"reward": float(step)})


@pytest.mark.parametrize("torn", [False, True])
def test_tensorboard_gets_the_rows_that_a_kill_lost(tmp_path, torn):
    kept = {"train": 4, "eval": 4, "warm_start": 1}
    killed_and_resumed(tmp_path, LoggingConfig(), kept, torn)
    found = shown(tmp_path / "tensorboard")
    assert [step for tag, step in found if tag == "train/reward"] == list(range(1, 9))
    assert [step for tag, step in found if tag == "eval/reward"] == [0]
    assert shown(tmp_path / "tensorboard" / "warm_start") == [("warm_start/loss", 1)]
    # Resumed once more from there: nothing is absent, and nothing is written.
    open_log(tmp_path, LoggingConfig(), resume_steps={**kept, "train": 8, "eval": 8}).close()
    assert shown(tmp_path / "tensorboard") == found


def test_tensorboard_shows_a_run_that_begins_anew_once(tmp_path):
    kept = {"train": 0, "eval": -1, "warm_start": -1}
    killed_and_resumed(tmp_path, LoggingConfig(), kept)
    with open_log(tmp_path, LoggingConfig(), resume_steps=kept) as log:
        log.write("warm_start", 1, {"loss": 1.0})
        log.write("eval", 0, {"reward": 0.0})
    assert shown(tmp_path / "tensorboard") == [("eval/reward", 0)]
    assert shown(tmp_path / "tensorboard" / "warm_start") == [("warm_start/loss", 1)]


@pytest.mark.parametrize("has", [2, 6], ids=["lost", "received"])
def test_wandb_gets_each_row_once(tmp_path, wandb, has):
    with open_log(tmp_path, LoggingConfig(False, "p")) as log:
        for step in range(1, 7):
            log.write("train", step, {"reward": float(step)})
    del wandb.logged[has:]  # W&B received these
    wandb.summary["train/step"] = has
    with open_log(tmp_path, LoggingConfig(False, "p"), resume_steps={"train": 4}) as log:
        for step in range(5, 9):
            log.write("train", step, {"reward": float(step)})
    assert [row["train/step"] for row in wandb.logged] == list(range(1, 9))


def test_an_offline_wandb_run_repeats_no_row_from_the_log(tmp_path, wandb):
    wandb.offline = True
    for kept, steps in ((None, (1, 2, 3)), ({"train": 2}, (3, 4))):
        with open_log(tmp_path, LoggingConfig(False, "p"), resume_steps=kept) as log:
            for step in steps:
                log.write("train", step, {"reward": 0.5})
    assert [row["train/step"] for row in wandb.logged] == [1, 2, 3, 3, 4]
