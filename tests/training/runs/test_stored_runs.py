"""Runs as processes that are killed, on a disk and in an object store (moto's S3 server on
loopback). In the store each process works in a local folder of its own, as on machines apart.
"""

import contextlib
import os
import random
import subprocess
import sys

import pytest

from grre_jax import rollouts
from grre_jax.cli import entry
from grre_jax.storage.remote import Store
from grre_jax.training.mirror import copied, steps

from ...run_processes import CONFIG, ROOT, STARTED, bits, finish, kill_all, log, start

pytestmark = pytest.mark.slow
SETTINGS = (
    "--training.steps 30 --regime.sync_interval 4 --checkpoint.every 5 --checkpoint.keep 2".split()
)
# `python -m grre_jax` with a mirror that copies often.
PROGRAM = """
import sys
from grre_jax.cli.entry import main
from grre_jax.training import mirror
mirror.SECONDS = 0.1
sys.exit(main())
"""


@pytest.fixture(scope="module", autouse=True)
def nothing_is_left():
    yield
    kill_all()


def begin(config, url, machine, *more):
    """A process on a machine of its own."""
    words = [sys.executable, "-c", PROGRAM, "train", config, "--run-dir", url, *SETTINGS, *more]
    environment = os.environ | {"GRRE_CACHE": str(machine)}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    STARTED.append(subprocess.Popen([*map(str, words)], cwd=ROOT, env=environment, **pipes))
    return STARTED[-1]


def test_killed_and_resumed(store, tmp_path):
    """Killed at moments that are drawn; every next process goes on elsewhere."""
    config = tmp_path / "small.py"
    config.write_text(CONFIG)
    expected = tmp_path / "run"
    finish(start(config, expected, *SETTINGS, report=True))
    url = f"s3://{store.bucket}/run"
    draw = random.Random(0)
    for number in range(10):
        begun = "config.json" in Store(url).names()
        process = begin(config, url, tmp_path / f"machine{number}", *["--resume"] * begun)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(draw.uniform(2.0, 14.0))
        process.kill()
        process.communicate()
        if "rollouts/manifest.jsonl" in Store(url).names():
            report = rollouts.verify(f"{url}/rollouts")
            assert report.ok and report.intact_groups == report.groups
    finish(begin(config, url, tmp_path / "last", "--resume"))
    with copied(url, steps=steps(url)) as run:
        assert log(run) == log(expected) and bits(run) == bits(expected)
        assert steps(url) == [0, 25, 30]
    assert list(rollouts.read(f"{url}/rollouts")) == list(rollouts.read(expected / "rollouts"))
    for words in (
        f"report {url}",
        f"evaluate {url} --questions 4",
        f"export {url} {tmp_path / 'model'}",
        f"sample {url} --prompt 1+1=",
    ):
        assert entry.main(words.split()) == 0
    written = {"evaluation.json", "report.html", "plots/overview.png", "summary.json"}
    assert written <= {*Store(url).names()}
    assert (tmp_path / "model/config.json").is_file()
