"""Finished runs are kept, missing ones are done, and a killed study ends with the same numbers."""

import dataclasses
import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from rich.console import Console

from grre_jax.config import Regime
from grre_jax.console import make_console
from grre_jax.errors import DataError, UsageError
from research.entrants import strangers
from research.in_graph import campaign as in_graph_campaign
from research.in_graph import warm_start
from research.in_graph import workers as in_graph_workers
from research.in_graph.campaign import Campaign
from research.in_graph.worker import Menu
from research.runs import Entry, Ledger, Run
from tests.research.tiny import TINY

ENTRIES = (
    Entry("a", "reinforce"),
    Entry("b", "rec_oneside_nois"),
    Entry("c", "rec_oneside_nois", {"epsilon_high": 2.0}),
)


def a_run(algorithm="a", seed=0, **fields):
    return Run(
        algorithm,
        **{
            "regime": Regime(sync_interval=20),
            "learning_rate": 5e-4,
            "steps": 4,
            **fields,
        },
        seed=seed,
    )


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


def test_runs_that_differ_have_different_keys():
    runs = [
        a_run(),
        a_run("b"),
        a_run(seed=1),
        a_run(learning_rate=1e-3),
        a_run(steps=5),
        a_run(stored=2),
        a_run(regime=Regime()),
        a_run(regime=Regime(reuse=2)),
    ]
    assert len({run.key for run in runs}) == len(runs)
    assert a_run().cell == a_run(seed=1).cell


def test_an_edited_part_of_an_option_is_another_algorithm(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("WIDTH = 1")
    entry = Entry("mine", "reinforce", {"mask": f"{file}:band", "width": 0.5})
    first = entry.identity
    assert entry.identity == first
    file.write_text("WIDTH = 2")
    assert entry.identity != first
    assert Entry("a", "grpo", {"mask": "ring"}).identity == {
        "name": "grpo",
        "options": {"mask": "ring"},
    }


def test_algorithms_of_one_structure_share_an_index():
    menu = Menu.of(ENTRIES)
    assert len(menu.objectives) == 2 and menu.indices == {"a": 0, "b": 1, "c": 1}
    index, chosen = menu.chosen("c")
    assert (
        index == 1
        and float(chosen[1].hyperparameters["epsilon_high"]) == 2.0
        and float(menu.chosen("b")[1][1].hyperparameters["epsilon_high"]) == pytest.approx(0.2)
    )


def test_a_folder_whose_first_run_failed_to_begin_is_of_no_scale(tmp_path):
    console = make_console(quiet=True)
    Campaign(tmp_path, TINY, ENTRIES, 1, console)
    other = dataclasses.replace(TINY, task_options=(("operands", 3),))
    Campaign(tmp_path, other, ENTRIES, 1, console)
    (tmp_path / "warm-1.npz").write_bytes(b"")  # made at the scale
    with pytest.raises(UsageError, match="another scale"):
        Campaign(tmp_path, TINY, ENTRIES, 1, console)


def test_a_folder_is_of_one_scale_and_a_label_of_one_algorithm(tmp_path):
    console = make_console(quiet=True)
    Campaign(tmp_path, TINY, ENTRIES, 1, console).ledger.add(a_run(), {"accuracy": [0.5]})
    Campaign(tmp_path, TINY, ENTRIES[:1], 1, console)
    with pytest.raises(UsageError, match="another scale .*settings.json differs in task_options"):
        Campaign(
            tmp_path,
            dataclasses.replace(TINY, task_options=(("operands", 3),)),
            ENTRIES,
            1,
            console,
        )
    with pytest.raises(UsageError, match="another 'a' .it is .*grpo.* and was .*reinforce"):
        Campaign(tmp_path, TINY, (Entry("a", "grpo"),), 1, console)


def test_a_loss_may_be_mended_until_it_has_a_finished_run(tmp_path):
    console, file = make_console(quiet=True), tmp_path / "own.py"
    for power in (1, 2):
        file.write_text(f"def mine(x):\n    return -x.advantages * x.log_ratio**{power}\n")
        campaign = Campaign(tmp_path, TINY, (Entry("mine", f"{file}:mine"),), 1, console)
    campaign.ledger.add(a_run("mine"), {"accuracy": [0.5]})
    file.write_text("def mine(x):\n    return -x.advantages * x.log_ratio**3\n")
    with pytest.raises(UsageError, match="another 'mine' .its file was edited since"):
        Campaign(tmp_path, TINY, (Entry("mine", f"{file}:mine"),), 1, console)


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"scale": 3, "entries": {}}'])
def test_settings_that_cannot_be_read_are_named(tmp_path, text):
    (tmp_path / "settings.json").write_text(text)
    with pytest.raises(DataError, match="settings.json cannot be read .*: restore it"):
        Campaign(tmp_path, TINY, ENTRIES, 1, make_console(quiet=True))
    assert (tmp_path / "settings.json").read_text() == text


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(
            UsageError, match=f"--output {folder}: it cannot be written .*: name a folder"
        ):
            Campaign(folder, TINY, ENTRIES, 1, make_console(quiet=True))


@pytest.mark.parametrize("workers", [0, -3])
def test_there_is_a_worker(tmp_path, workers):
    with pytest.raises(UsageError, match=f"--workers {workers}: at least 1"):
        Campaign(tmp_path / "study", TINY, ENTRIES, workers, make_console(quiet=True))
    assert not (tmp_path / "study").exists()


def test_the_end_says_which_algorithms_diverged(tmp_path):
    said = io.StringIO()
    runs = [a_run(label, seed) for label in "ab" for seed in range(3)]
    with Campaign(tmp_path, TINY, ENTRIES, 1, Console(file=said, width=200)) as campaign:
        for run in runs:
            campaign.ledger.add(
                run, {"kl": [0.1, None if run.algorithm == "b" and run.seed else 0.2]}
            )
        campaign.complete(runs, "test")
    assert (
        said.getvalue().strip()
        == "b diverged in 2 of its 3 runs: its policy is not finite at their end"
    )


def test_the_budget_counts_what_is_missing(tmp_path):
    campaign = Campaign(tmp_path, TINY, ENTRIES, 2, make_console(quiet=True))
    campaign.ledger.add(a_run(), {"accuracy": [0.5]})
    shown = campaign.budget([a_run(), a_run(), a_run("b"), a_run("b", seed=1)])
    assert shown.startswith("runs 2 to do, 1 done, 8 steps, warm starts 2 to make, expected ")
    assert shown.endswith(" on 2 free CPU cores")


def test_programs_have_room_for_every_run():
    runs = [
        a_run(regime=Regime(sync_offset=10)),
        a_run(),
        a_run(steps=9, stored=5),
        a_run(regime=Regime(staleness=6, reuse=2)),
    ]
    programs = in_graph_campaign._programs(runs)
    assert list(programs) == [9, 4]
    assert (programs[4].fill, programs[4].ring) == (10, 11) and (
        programs[9].fill,
        programs[9].ring,
    ) == (0, 5)


def test_every_call_on_an_accelerator_is_as_wide_whatever_is_missing():
    runs = [a_run(seed=seed) for seed in range(5)] + [
        a_run(seed=seed, steps=9) for seed in range(2)
    ]
    programs = in_graph_campaign._programs(runs)

    def seeds(runs, width):
        calls = in_graph_campaign._calls(runs, programs, width)
        return [[run.seed for run in call] for _, call in calls]

    assert seeds(runs, 4) == [[0, 1, 1, 1], [0, 1, 2, 3], [4, 4, 4, 4]]
    assert list(map(len, seeds(runs[3:], 4))) == [4, 4]
    assert seeds(runs[:2], 1) == [[0], [1]]


def test_the_folder_names_the_machines_that_computed_it(tmp_path, monkeypatch):
    console = make_console(quiet=True)
    for machine in ("a", "a", "b"):
        monkeypatch.setattr(
            in_graph_campaign, "Workers", lambda *_, name=machine: SimpleNamespace(machine=name)
        )
        Campaign(tmp_path, TINY, ENTRIES, 1, console)._start()
    assert Campaign(tmp_path, TINY, ENTRIES, 1, console).machines == ["a", "b"]


def test_a_strangers_loss_is_named_by_its_file(tmp_path):
    file = tmp_path / "own.py"
    file.write_text("def mine(x, *, width=0.5):\n    return -x.advantages * x.log_ratio * width\n")
    (entry,) = strangers((f"{file}:mine",))
    assert entry.label == "mine" and entry.name == f"{file}:mine"
    assert Menu.of((*ENTRIES, entry)).indices["mine"] == 2
    with pytest.raises(UsageError, match="there is no file"):
        strangers((f"{tmp_path}/other.py:mine",))


def test_an_algorithm_is_given_its_numbers_in_brackets(tmp_path):
    file = tmp_path / "own (2).py"
    file.write_text("def mine(x, *, width):\n    return -x.advantages * x.log_ratio * width\n")
    given = (
        "dr_grpo(constant_length=12)",
        "rec_oneside_nois(epsilon_high=0.5, variant=std)",
        f"{file}:mine(width=-.3)",
        f"{file}:mine(width=2)",
    )
    entries = strangers(given)
    assert [(entry.label, entry.options) for entry in entries] == [
        ("dr_grpo, constant_length 12", {"constant_length": 12}),
        (
            "rec_oneside_nois, epsilon_high 0.5, variant std",
            {"epsilon_high": 0.5, "variant": "std"},
        ),
        ("mine, width -0.3", {"width": -0.3}),
        ("mine, width 2", {"width": 2}),
    ]
    assert float(Menu.of(entries).own["mine, width 2"].hyperparameters["width"]) == 2
    for wrong, message in (
        ("dr_grpo", "constant_length must be given .*--algorithm 'dr_grpo.NUMBER=VALUE"),
        ("dr_grpo(12)", "its numbers by name"),
        ("dr_grpo(**x)", "its numbers by name"),
        ("dr_grpo(constant_length=)", "its numbers by name"),
        ("dr_grpo(constant_length=-1)", "constant_length must be"),
        ("grpo(wide=1)", "no option 'wide'"),
    ):
        with pytest.raises(UsageError, match=message):
            strangers((wrong,))


@pytest.mark.parametrize("name", ["own.py", "own.txt:f", "some/folder", "own:f"])
def test_what_looks_like_a_file_is_told_how_to_name_a_loss(name):
    with pytest.raises(UsageError, match="FILE.py:FUNCTION") as told:
        strangers((name,))
    assert "there are" not in str(told.value)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            "x.advantages.sum()",
            "wrong must return a loss for each of the .* not an array of float32 of shape ..",
        ),
        ("None", "wrong must return .* not None"),
        (
            "jnp.ones(x.logprobs.shape, int)",
            "wrong must return .* a floating-point number, not an array of int",
        ),
        (
            "jax.lax.while_loop(lambda c: c.sum() < 3, lambda c: c * 2, x.logprobs)",
            "Reverse-mode differentiation does not work",
        ),
    ],
)
def test_a_loss_that_cannot_be_learned_from_is_refused_before_any_run(tmp_path, body, message):
    file = tmp_path / "own.py"
    file.write_text(f"import jax\nimport jax.numpy as jnp\n\ndef wrong(x):\n    return {body}\n")
    with pytest.raises(UsageError, match=f"--algorithm .*own.py:wrong: {message}"):
        strangers((f"{file}:wrong",))


def test_a_warm_start_that_cannot_be_read_is_named(tmp_path):
    path = tmp_path / "start_300.npz"
    np.savez(path, **{"a/b": np.ones(1000)})
    whole = path.read_bytes()
    for content in (whole[:500], whole[:-100], b""):
        path.write_bytes(content)
        with pytest.raises(DataError, match="start_300.npz cannot be read .*: remove it"):
            warm_start.load(path)


def test_a_worker_that_fails_says_its_error_and_one_that_ends_that_the_study_continues():
    with in_graph_workers.make_pool(1) as pool:
        assert dict(in_graph_workers.answers(pool, [(abs, -3)])) == {(abs, -3): 3}
        with pytest.raises(DataError, match="failed: ValueError: .*'x'") as caught:
            list(in_graph_workers.answers(pool, [(int, "x")]))
        assert "continues" not in str(caught.value)
        (answered,) = in_graph_workers.answers(pool, [(os.getenv, "NPROC")])
        assert answered[1] == "1"
        with pytest.raises(DataError, match="ended in the middle: run the study again"):
            list(in_graph_workers.answers(pool, [(os._exit, 1)]))


PARENT = """
import os, time
from research.in_graph import workers

if __name__ == "__main__":
    pool = workers.make_pool(1)
    print(pool.submit(os.getpid).result(), flush=True)
    time.sleep(2000)
"""


def test_a_worker_ends_with_a_study_that_is_killed(tmp_path):
    (tmp_path / "parent.py").write_text(PARENT)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    command = [sys.executable, str(tmp_path / "parent.py")]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as parent:
        assert int(parent.stdout.readline())
        parent.kill()
        assert parent.stdout.read() == ""  # it ends with its last writer, which is the worker


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


@pytest.mark.slow
def test_a_worker_that_ends_is_named_with_what_it_said(tmp_path):
    with (
        pytest.raises(DataError, match="unknown algorithm 'nothing'"),
        Campaign(tmp_path, TINY, (Entry("a", "nothing"),), 1, make_console(quiet=True)) as campaign,
    ):
        campaign.complete([a_run()], "test")
