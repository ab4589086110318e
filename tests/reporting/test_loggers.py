import struct
import sys
import types

import pytest

from grre_jax.errors import UsageError
from grre_jax.reporting import open_log
from grre_jax.reporting.config import LoggingConfig


def shown(folder):
    """(step, tag, value) that TensorBoard shows: files in order, and a START hides what lies at its
    step or beyond. Records are (length, crc, event, crc).
    """
    from tensorboardX.proto import event_pb2

    rows = []
    for path in sorted((folder / "tensorboard").glob("events.out.tfevents.*")):
        data = path.read_bytes()
        while data:
            end = 12 + struct.unpack("<Q", data[:8])[0]
            event = event_pb2.Event.FromString(data[12:end])
            data = data[end + 4 :]
            if event.session_log.status == event_pb2.SessionLog.START:
                rows = [row for row in rows if row[0] < event.step]
            rows += [(event.step, value.tag, value.simple_value) for value in event.summary.value]
    return rows


class FakeWandb(types.ModuleType):
    """Stands in for the wandb package: records its calls."""

    errors = types.SimpleNamespace(Error=type("Error", (Exception,), {}))

    def __init__(self, refuse=False):
        super().__init__("wandb")
        self.refuse, self.offline, self.finished = refuse, False, 0
        self.inits, self.logged, self.axes, self.summary = [], [], [], {}

    def init(self, **arguments):
        if self.refuse:
            raise self.errors.Error("no API key")
        self.inits.append(arguments)
        return self

    def define_metric(self, *args, **options):
        self.axes.append((args, options))

    def log(self, row):
        self.logged.append(row)
        self.summary |= {} if self.offline else row

    def finish(self):
        self.finished += 1


@pytest.fixture
def wandb(monkeypatch):
    fake = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    return fake


def train(folder, logging, steps, kept=None, **options):
    with open_log(folder, logging, resume_steps=kept, **options) as log:
        for step in steps:
            log.write("train", step, {"reward": float(step)})


def test_tensorboard_has_each_row_once_after_a_kill(tmp_path):
    """Steps 2 to 6 are not flushed when the run is killed; it resumes at step 4."""
    folder = tmp_path / "tensorboard"
    log = open_log(tmp_path, LoggingConfig())
    log.write("warm_start", 9, {"loss": float("inf")})
    for step in range(1, 7):
        log.write("train", step, {"reward": float(step)})
    (events,) = folder.iterdir()
    flushed = events.read_bytes()
    log.close()
    (folder / "warm_start").mkdir()  # of earlier versions
    for path in (events, folder / "warm_start" / events.name):
        path.write_bytes(flushed + b"\x30\0\0\0\0\0\0\0\1\2\3")
    for kept, steps in ((4, range(5, 9)), (8, ())):
        train(tmp_path, LoggingConfig(), steps, {"train": kept})
        expected = [(step, "train/reward", step) for step in range(1, 9)]
        assert shown(tmp_path) == [(9, "warm_start/loss", float("inf")), *expected]
    assert len([path for path in folder.rglob("*") if path.is_file()]) == 1


@pytest.mark.parametrize("module", [None, FakeWandb(refuse=True)], ids=["missing", "refusing"])
def test_wandb_that_does_not_start_leaves_no_log(tmp_path, monkeypatch, module):
    monkeypatch.setitem(sys.modules, "wandb", module)
    with pytest.raises(UsageError, match=r"logging\.wandb_project"):
        open_log(tmp_path / "run", LoggingConfig(wandb_project="p"))
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


@pytest.mark.parametrize("received", [2, 6, None])
def test_wandb_gets_each_row_once_in_one_run(tmp_path, wandb, received):
    """An offline run (None) has no summary: it repeats no row from the log."""
    run = tmp_path / "my-run"
    wandb.offline = received is None
    train(run, LoggingConfig(False, "p"), range(1, 7), config={"lr": 1e-3})
    if received:
        del wandb.logged[received:]
        wandb.summary["train/step"] = received
    train(run, LoggingConfig(False, "p"), range(5, 9), {"train": 4})
    expected = list(range(1, 9)) if received else [*range(1, 7), *range(5, 9)]
    assert wandb.logged == [{"train/step": step, "train/reward": step} for step in expected]
    assert wandb.axes[1] == (("train/*",), {"step_metric": "train/step"})
    first, second = wandb.inits
    assert first["id"] == second["id"] and wandb.finished == 2
    # The environment decides on mode, entity and tags.
    expected = {"project": "p", "name": "my-run", "config": {"lr": 1e-3}, "dir": str(run)}
    assert first == expected | {"resume": "allow", "id": first["id"]}
    assert not (run / "tensorboard").exists()
