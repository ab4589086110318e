"""Runs whose folder is in an object store, as processes that are killed: moto's S3 server on
loopback. Each process has a cache folder of its own, as on machines apart.
"""

import signal
import time

import pytest

from grre_jax import rollouts
from grre_jax.cli import entry
from grre_jax.storage.store_path import StorePath
from grre_jax.training.checkpoints.contents import listed

from ...run_processes import CONFIG, bits, finish, kill_all, log, start

pytestmark = pytest.mark.slow
SETTINGS = (
    "--training.steps 30 --regime.sync_interval 4 --checkpoint.every 5 --checkpoint.keep 2".split()
)


@pytest.fixture(scope="module", autouse=True)
def nothing_is_left():
    yield
    kill_all()


def test_killed_and_resumed_elsewhere(store, tmp_path):
    config, expected = tmp_path / "small.py", tmp_path / "run"
    config.write_text(CONFIG)
    finish(start(config, expected, *SETTINGS))
    run = StorePath(f"s3://{store.bucket}/run")

    def begin(machine, *more):
        words = (*SETTINGS, *more)
        return start(config, str(run), *words, report=True, GRRE_CACHE=str(tmp_path / machine))

    process = begin("first")
    while 10 not in listed(run / "checkpoints"):
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    (run / "checkpoints" / "12-halfdone" / "params" / "d").write_text("cut short")
    (said,) = finish(begin("second", "--resume"))
    assert "watching for 30 s" in said and "Traceback" not in said
    assert log(run) == log(expected) and bits(run) == bits(expected)
    assert list(rollouts.read(run / "rollouts")) == list(rollouts.read(expected / "rollouts"))
    assert rollouts.verify(run / "rollouts").ok
    folders = {path.name for path in (run / "checkpoints").iterdir()}
    assert {name.split("-")[0].removesuffix(".json") for name in folders} == {
        "0",
        "25",
        "30",
    } and len(folders) == 6
    for words in (
        ["report", run],
        ["evaluate", run, "--questions", "4"],
        ["export", run, tmp_path / "model"],
    ):
        assert entry.main([*map(str, words)]) == 0
    assert (run / "evaluation.json").is_file() and (tmp_path / "model/config.json").is_file()
