"""Finished runs are kept, missing ones are done, and a killed study ends with the same numbers."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from grre_jax.errors import DataError, UsageError
from grre_jax.reporting.progress import make_console
from grre_jax.studies import campaign as campaigns
from grre_jax.studies.campaign import Campaign
from grre_jax.studies.entrants import strangers
from grre_jax.studies.graph_data import Scale
from grre_jax.studies.runs import Entry, Ledger, Run
from grre_jax.studies.worker import Menu
from grre_jax.training.regime import Regime

SCALE = Scale(operands=2, hidden_size=16, intermediate_size=16, num_layers=1, num_heads=2, groups=2, samples=2, questions=4, every=2)
ENTRIES = (Entry("a", "reinforce"), Entry("b", "rec_oneside_nois"), Entry("c", "rec_oneside_nois", {"epsilon_high": 2.0}))


def a_run(algorithm="a", seed=0, **fields):
    return Run(algorithm, **{"regime": Regime(sync_interval=20), "learning_rate": 5e-4, "steps": 4, "warm": 0.0, **fields}, seed=seed)


def test_a_run_comes_back_from_the_file(tmp_path):
    ledger, run = Ledger(tmp_path / "runs.jsonl"), a_run(stored=3)
    ledger.add(run, {"accuracy": [0.25, None]})
    again = Ledger(tmp_path / "runs.jsonl")
    assert run in again and again[run] == {"accuracy": [0.25, None]} and a_run(seed=1) not in again
    assert Run.of_json(json.loads((tmp_path / "runs.jsonl").read_text())["run"]) == run


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


def test_runs_that_differ_have_different_keys():
    runs = [
        a_run(),
        a_run("b"),
        a_run(seed=1),
        a_run(learning_rate=1e-3),
        a_run(steps=5),
        a_run(warm=0.1),
        a_run(stored=2),
        a_run(regime=Regime()),
        a_run(regime=Regime(reuse=2)),
    ]
    assert len({run.key for run in runs}) == len(runs)
    assert a_run().cell == a_run(seed=1).cell


def test_algorithms_of_one_structure_share_a_place():
    menu = Menu.of(ENTRIES)
    assert len(menu.objectives) == 2 and menu.places == {"a": 0, "b": 1, "c": 1}
    place, chosen = menu.chosen("c")
    assert (
        place == 1
        and float(chosen[1].numbers["epsilon_high"]) == 2.0
        and float(menu.chosen("b")[1][1].numbers["epsilon_high"]) == pytest.approx(0.2)
    )


def test_a_folder_is_of_one_scale_and_a_label_of_one_algorithm(tmp_path):
    console = make_console(quiet=True)
    Campaign(tmp_path, SCALE, ENTRIES, 1, console)
    Campaign(tmp_path, SCALE, ENTRIES[:1], 1, console)
    with pytest.raises(UsageError, match="another scale"):
        Campaign(tmp_path, Scale(), ENTRIES, 1, console)
    with pytest.raises(UsageError, match="'a' is .*grpo.* and was .*reinforce"):
        Campaign(tmp_path, SCALE, (Entry("a", "grpo"),), 1, console)
    file = tmp_path / "own.py"
    file.write_text("def mine(x):\n    return -x.advantages * x.log_ratio\n")
    Campaign(tmp_path, SCALE, (Entry("mine", f"{file}:mine"),), 1, console)
    file.write_text("def mine(x):\n    return -x.advantages * x.log_ratio**3\n")
    with pytest.raises(UsageError, match="'mine' is"):
        Campaign(tmp_path, SCALE, (Entry("mine", f"{file}:mine"),), 1, console)


def test_the_budget_counts_what_is_missing(tmp_path):
    campaign = Campaign(tmp_path, SCALE, ENTRIES, 2, make_console(quiet=True))
    campaign.ledger.add(a_run(), {"accuracy": [0.5]})
    shown = campaign.budget([a_run(), a_run(), a_run("b"), a_run("b", seed=1)])
    assert shown["runs"] == "2 to do, 1 done, 8 steps" and shown["warm starts"] == "2 to make" and "2 free CPU cores" in shown["expected"]


def test_programs_have_room_for_every_run():
    runs = [a_run(regime=Regime(sync_offset=10)), a_run(), a_run(steps=9, stored=5), a_run(regime=Regime(staleness=6, reuse=2))]
    programs = campaigns._programs(runs)
    assert list(programs) == [9, 4]
    assert (programs[4].fill, programs[4].ring) == (10, 11) and (programs[9].fill, programs[9].ring) == (0, 5)


def test_every_call_on_an_accelerator_is_as_wide_whatever_is_missing():
    runs = [a_run(seed=seed) for seed in range(5)] + [a_run(seed=seed, steps=9) for seed in range(2)]
    programs = campaigns._programs(runs)
    seeds = [[run["seed"] for run in one["runs"]] for one in campaigns._requests(runs, programs, 4)]
    assert seeds == [[0, 1, 1, 1], [0, 1, 2, 3], [4, 4, 4, 4]]
    assert [len(one["runs"]) for one in campaigns._requests(runs[3:], programs, 4)] == [4, 4]
    assert [[run["seed"] for run in one["runs"]] for one in campaigns._requests(runs[:2], programs, 1)] == [[0], [1]]


def test_the_folder_names_the_machines_that_computed_it(tmp_path, monkeypatch):
    console = make_console(quiet=True)
    for machine in ("a", "a", "b"):
        monkeypatch.setattr(campaigns, "Workers", lambda *_, name=machine: SimpleNamespace(machine=name))
        Campaign(tmp_path, SCALE, ENTRIES, 1, console)._start()
    assert Campaign(tmp_path, SCALE, ENTRIES, 1, console).machines == ["a", "b"]


def test_a_strangers_loss_is_named_by_its_file(tmp_path):
    file = tmp_path / "own.py"
    file.write_text("def mine(x, *, width=0.5):\n    return -x.advantages * x.log_ratio * width\n")
    (entry,) = strangers((f"{file}:mine",))
    assert entry.label == "mine" and entry.name == f"{file}:mine"
    assert Menu.of((*ENTRIES, entry)).places["mine"] == 2
    with pytest.raises(UsageError, match="there is no file"):
        strangers((f"{tmp_path}/other.py:mine",))


STUDY = """
import sys
from pathlib import Path
from grre_jax.reporting.progress import make_console
from grre_jax.studies.campaign import Campaign
from tests.studies.test_campaign import ENTRIES, SCALE, a_run

with Campaign(Path(sys.argv[1]), SCALE, ENTRIES, 2, make_console()) as campaign:
    runs = [a_run(entry.label, seed, regime=regime) for entry in ENTRIES for seed in range(8) for regime in (a_run().regime, a_run().regime.__class__())]
    campaign.complete(runs, "test")
"""


@pytest.mark.slow
def test_a_killed_study_ends_with_the_same_numbers(tmp_path):
    def start(folder):
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
        return subprocess.Popen([sys.executable, "-c", STUDY, str(folder)], env=environment, start_new_session=True)

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


@pytest.mark.slow
def test_a_worker_that_ends_is_named_with_what_it_said(tmp_path):
    with (
        pytest.raises(DataError, match="unknown algorithm 'nothing'"),
        Campaign(tmp_path, SCALE, (Entry("a", "nothing"),), 1, make_console(quiet=True)) as campaign,
    ):
        campaign.complete([a_run()], "test")
