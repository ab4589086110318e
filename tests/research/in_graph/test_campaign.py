"""Finished runs are kept, and what a kill cut off is done again."""

import json

import pytest

from grre_jax.config import Regime
from grre_jax.errors import DataError
from research.runs import Ledger, Run


def a_run(algorithm="a", seed=0, **fields):
    common = {"regime": Regime(sync_interval=20), "learning_rate": 5e-4, "steps": 4}
    return Run(algorithm, seed=seed, **common | fields)


def test_a_run_comes_back_from_the_file(tmp_path):
    ledger, run = Ledger(tmp_path / "runs.jsonl"), a_run(stored=3)
    ledger.add(run, {"accuracy": [0.25, None]})
    again = Ledger(tmp_path / "runs.jsonl")
    assert run in again and again[run] == {"accuracy": [0.25, None]} and a_run(seed=1) not in again
    fields = json.loads((tmp_path / "runs.jsonl").read_text())["run"]
    assert Run(**fields | {"regime": Regime(**fields["regime"])}) == run


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
