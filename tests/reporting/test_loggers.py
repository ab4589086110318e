import struct
import sys
from unittest import mock

from grre_jax.reporting import open_log
from grre_jax.reporting.metrics import LoggingConfig


def shown(folder):
    """(step, tag, value) that TensorBoard shows. Records are (length, crc, event, crc)."""
    from tensorboardX.proto import event_pb2

    rows = []
    for path in sorted((folder / "tensorboard").glob("events.out.tfevents.*")):
        data = path.read_bytes()
        while data:
            end = 12 + struct.unpack("<Q", data[:8])[0]
            event = event_pb2.Event.FromString(data[12:end])
            data = data[end + 4 :]
            rows += [(event.step, value.tag, value.simple_value) for value in event.summary.value]
    return rows


def train(folder, logging, steps, kept=None):
    with open_log(folder, logging, config={"lr": 1e-3}, name="my-run", resume_steps=kept) as log:
        for step in steps:
            log.write("train", step, {"reward": float(step)})


def test_tensorboard_has_each_row_once_after_a_kill(tmp_path):
    """Of a run that resumes at step 4; what it wrote last is torn."""
    folder = tmp_path / "tensorboard"
    log = open_log(tmp_path, LoggingConfig(), config={}, name="")
    log.write("warm_start", 9, {"loss": float("inf")})
    for step in range(1, 7):
        log.write("train", step, {"reward": float(step)})
    (events,) = folder.iterdir()
    flushed = events.read_bytes()
    log.close()
    events.write_bytes(flushed + b"\x30\0\0\0\0\0\0\0\1\2\3")
    for kept, steps in ((4, range(5, 9)), (8, ())):
        train(tmp_path, LoggingConfig(), steps, {"train": kept})
        expected = [(step, "train/reward", step) for step in range(1, 9)]
        assert shown(tmp_path) == [(9, "warm_start/loss", float("inf")), *expected]


def test_wandb_goes_on_with_a_resumed_run(tmp_path, monkeypatch):
    wandb = mock.Mock()
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    run = wandb.init.return_value
    train(tmp_path, LoggingConfig(False, "p"), range(1, 7))
    train(tmp_path, LoggingConfig(False, "p"), range(5, 9), {"train": 4})
    expected = [{"train/step": step, "train/reward": step} for step in (*range(1, 7), *range(5, 9))]
    assert [call.args[0] for call in run.log.call_args_list] == expected
    first, second = (call.kwargs for call in wandb.init.call_args_list)
    assert first["id"] == second["id"]
    # The environment decides on mode, entity and tags.
    expected = {"project": "p", "name": "my-run", "config": {"lr": 1e-3}, "dir": str(tmp_path)}
    assert first == expected | {"resume": "allow", "id": first["id"]}
