"""Finished runs are kept, missing ones are done, and a killed study ends with the same numbers."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from grre_jax.config import Regime
from grre_jax.errors import DataError
from research.runs import Entry, Ledger, Run

ENTRIES = (
    Entry("a", "reinforce"),
    Entry("b", "rec_oneside_nois"),
    Entry("c", "rec_oneside_nois", {"epsilon_high": 2.0}),
)


def a_run(algorithm="a", seed=0, **fields):
    common = {"regime": Regime(sync_interval=20), "learning_rate": 5e-4, "steps": 4}
    return Run(algorithm, seed=seed, **common | fields)


def test_a_line_cut_off_by_a_kill_is_done_again(tmp_path):
    path = tmp_path / "runs.jsonl"
    ledger = Ledger(path)
    ledger.add(a_run(), {"accuracy": [0.5]})
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:40])
    again = Ledger(path)
    assert a_run() in again and path.read_bytes() == whole
    path.write_bytes(b"{}\n" + whole)
    with pytest.raises(DataError, match="line 1"):
        Ledger(path)


STUDY = """
import sys
from pathlib import Path
from grre_jax.console import make_console
from research.in_graph.campaign import Campaign
from tests.research.in_graph.test_campaign import ENTRIES, TINY, a_run

with Campaign(Path(sys.argv[1]), TINY, ENTRIES, 2, make_console()) as campaign:
    runs = [a_run(entry.label, seed, regime=regime) for entry in ENTRIES for seed in range(8) for regime in (a_run().regime, a_run().regime.__class__())]
    campaign.complete(runs, "test")
"""


@pytest.mark.slow
def test_a_killed_study_ends_with_the_same_numbers(tmp_path):
    def start(folder):
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
        return subprocess.Popen(
            [sys.executable, "-c", STUDY, str(folder)], env=environment, start_new_session=True
        )

    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert start(whole).wait(timeout=900) == 0
    process, file = start(killed), killed / "runs.jsonl"
    deadline = time.monotonic() + 900
    while not (file.exists() and file.read_bytes().count(b"\n") >= 5):
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.005)
    os.kill(process.pid, signal.SIGKILL)
    process.wait(timeout=60)
    kept = file.read_bytes().count(b"\n")
    assert 5 <= kept < 48
    assert start(killed).wait(timeout=900) == 0
    lines = [sorted((folder / "runs.jsonl").read_text().splitlines()) for folder in (whole, killed)]
    assert lines[0] == lines[1] and len(lines[0]) == 48
