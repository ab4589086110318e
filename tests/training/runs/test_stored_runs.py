"""Runs as processes that are killed, on a disk and in an object store (moto's S3 server on
loopback). In the store each process works in a local folder of its own, as on machines apart.
"""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from grre_jax import rollouts
from grre_jax.cli import entry
from grre_jax.storage.remote import Store, is_url
from grre_jax.training.checkpoints.folder import listed
from grre_jax.training.mirror import copied

from ...run_processes import CONFIG, ROOT, STARTED, bits, entered, finish, kill_all, log, start

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


@pytest.mark.parametrize("place, kills", [("disk", 20), ("store", 10)])
def test_killed_and_resumed(request, tmp_path, place, kills):
    """Killed at moments that are drawn; every next process goes on, on a store elsewhere."""
    config, expected = tmp_path / "small.py", tmp_path / "run"
    config.write_text(CONFIG)
    finish(start(config, expected, *SETTINGS, report=True))
    url = str(tmp_path / "killed")
    if place == "store":
        url = f"s3://{request.getfixturevalue('store').bucket}/run"
    draw = random.Random(0)
    resumes = 0
    while resumes < kills:
        begun = location_has(url, "config.json")
        process = begin(config, url, tmp_path / f"machine{resumes}", *["--resume"] * begun)
        until = time.monotonic() + draw.uniform(2.0, 14.0)
        while process.poll() is None and time.monotonic() < until:
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        resumes += 1
        if location_has(url, "rollouts/manifest.jsonl"):
            report = rollouts.verify(f"{url}/rollouts")
            assert report.ok and report.intact_groups == report.groups
    finish(begin(config, url, tmp_path / "last", "--resume"))
    with copied(url, steps=entered(url) if is_url(url) else ()) as run:
        assert log(run) == log(expected) and bits(run) == bits(expected)
        assert listed(run / "checkpoints") == [0, 25, 30]
    assert list(rollouts.read(f"{url}/rollouts")) == list(rollouts.read(expected / "rollouts"))
    for words in (
        ["report", url],
        ["evaluate", url, "--questions", "4"],
        ["export", url, tmp_path / "model"],
        ["sample", url, "--prompt", "1+1="],
    ):
        assert entry.main([*map(str, words)]) == 0
    for name in ("evaluation.json", "report.html", "plots/overview.png", "summary.json"):
        assert location_has(url, name)
    assert (tmp_path / "model/config.json").is_file()


def location_has(url, name):
    """True if a run's folder or URL has a file."""
    return name in Store(url).names() if is_url(url) else (Path(url) / name).is_file()
