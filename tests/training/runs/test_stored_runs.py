"""Runs whose folder is in an object store, as processes that are killed: moto's S3 server on
loopback. Each process works in a local folder of its own, as on machines apart.
"""

import os
import random
import signal
import subprocess
import sys
import time

import pytest

from grre_jax import rollouts
from grre_jax.cli import entry
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
KILLS = 10


@pytest.fixture(scope="module", autouse=True)
def nothing_is_left():
    yield
    kill_all()


def begin(config, url, machine, *more):
    words = [
        sys.executable,
        "-c",
        PROGRAM,
        "train",
        str(config),
        "--run-dir",
        url,
        *SETTINGS,
        *more,
    ]
    pipe = subprocess.PIPE
    environment = os.environ | {"GRRE_CACHE": str(machine)}
    process = subprocess.Popen(
        words, cwd=ROOT, env=environment, stdout=pipe, stderr=pipe, text=True
    )
    STARTED.append(process)
    return process


def test_killed_ten_times_and_resumed_elsewhere(store, tmp_path):
    config, expected = tmp_path / "small.py", tmp_path / "run"
    config.write_text(CONFIG)
    finish(start(config, expected, *SETTINGS, report=True))
    url = f"s3://{store.bucket}/run"
    draw = random.Random(0)
    for number in range(KILLS):
        resume = ["--resume"] if store.files.exists(f"{store.bucket}/run/config.json") else []
        process = begin(config, url, tmp_path / f"machine{number}", *resume)
        puts = len(store.log) + draw.randrange(5, 60)
        while process.poll() is None and len(store.log) < puts:
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        report = rollouts.verify(f"{url}/rollouts")
        assert report.ok and report.intact_groups == report.groups
    finish(begin(config, url, tmp_path / "last", "--resume"))
    with copied(url, steps=steps(url)) as run:
        assert log(run) == log(expected) and bits(run) == bits(expected)
        assert steps(url) == [0, 25, 30]
    assert list(rollouts.read(f"{url}/rollouts")) == list(rollouts.read(expected / "rollouts"))
    for words in (
        ["report", url],
        ["evaluate", url, "--questions", "4"],
        ["export", url, tmp_path / "model"],
        ["sample", url, "--prompt", "1+1="],
    ):
        assert entry.main([*map(str, words)]) == 0
    names = {name.rpartition("/run/")[2] for name in store.files.find(f"{store.bucket}/run")}
    assert {"evaluation.json", "report.html", "plots/reward.png", "summary.json"} <= names
    assert (tmp_path / "model/config.json").is_file()
