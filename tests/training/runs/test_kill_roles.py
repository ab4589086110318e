"""Learner and explorers killed for real, again and again: the run that comes out is the run that
was left alone.
"""

import json
import random
import signal
import time
from pathlib import Path

import pytest

from grre_jax import rollouts

from ...run_processes import (
    CONFIG,
    ROOT,
    bits,
    finish,
    groups,
    kill_all,
    rows,
    start,
    wait_for_step,
)


@pytest.fixture(scope="module", autouse=True)
def nothing_is_left():
    yield
    kill_all()


def test_a_killed_learner_and_a_killed_explorer_change_nothing(tmp_path):
    config, run = tmp_path / "small.py", tmp_path / "run"
    config.write_text(CONFIG)
    settings = ("--regime.sync_interval", "2", "--training.steps", "16")
    words = {"learn": settings, "explore": (*settings, "--explorer-name", "a")}
    running = {role: start(config, run, *words[role], command=role) for role in words}
    for role, step in (("explore", 3), ("learn", 6)):
        wait_for_step([*running.values()], run, step)
        running[role].kill()
        running[role].wait()
        running[role] = start(config, run, *words[role], command=role)
    finish(*running.values())
    finish(start(config, tmp_path / "alone", *settings))
    assert rows(run) == rows(tmp_path / "alone") and groups(run) == groups(tmp_path / "alone")
    assert bits(run) == bits(tmp_path / "alone") and rollouts.verify(run / "rollouts").ok


@pytest.mark.slow
def test_roles_stopped_by_a_signal_say_so_and_go_on(tmp_path):
    """SIGTERM, as preemption sends it: the learner saves first, and both end with the status
    that shells report.
    """
    config, run, settings = (
        tmp_path / "small.py",
        tmp_path / "run",
        ("--regime.sync_interval", "2", "--training.steps", "60"),
    )
    config.write_text(CONFIG)

    def begin(role, *more):
        return start(config, run, *settings, *more, command=role)

    learner, explorer = begin("learn"), begin("explore", "--explorer-name", "a")
    wait_for_step([learner, explorer], run, 6)
    learner.send_signal(signal.SIGTERM)
    explorer.send_signal(signal.SIGTERM)
    said = [*finish(learner, status=143), *finish(explorer, status=143)]
    assert "stopped by SIGTERM at step" in said[0] and "stopped by SIGTERM as explorer a" in said[1]
    assert not any("Traceback" in text for text in said)
    step = int(said[0].split("at step ")[1].split(",")[0])
    assert (run / "checkpoints" / str(step)).is_dir()
    learner, explorer = begin("learn"), begin("explore", "--explorer-name", "a")
    finish(learner, explorer)
    finish(start(config, tmp_path / "alone", *settings))
    assert rows(run) == rows(tmp_path / "alone") and groups(run) == groups(tmp_path / "alone")
    assert rollouts.verify(Path(run) / "rollouts").ok


COUNTED = """
from pathlib import Path
from grre_jax.tasks.environments.calculator import Calculation, Calculator

class Counted(Calculator):
    def environment(self):
        return Steps(self.tools)

class Steps(Calculation):
    def step(self, action):
        with open(Path(__file__).with_name("steps"), "ab") as file:
            file.write(b".")
        return super().step(action)
"""


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_an_explorer_of_trajectories_killed_at_twenty_moments_changes_nothing(tmp_path):
    """The moments come after so many changes of its environments or of its folder, as drawn."""
    task, config, run = tmp_path / "counted.py", tmp_path / "small.py", tmp_path / "run"
    task.write_text(COUNTED)
    config.write_text(
        CONFIG.replace(
            'TaskConfig("arithmetic", {"operands": 2})',
            f'TaskConfig("{task}:Counted", {{"operands": 2, "digits": 1, "flaw": 0.5}})',
        ).replace("max_new_tokens=3", "max_new_tokens=12, max_turns=3, max_turn_tokens=5")
    )
    settings = ("--regime.sync_interval", "2", "--training.steps", "40")
    explorer = (*settings, "--explorer-name", "a")
    steps, store, draw = tmp_path / "steps", run / "rollouts", random.Random(5)

    def stepped():
        return steps.stat().st_size if steps.exists() else 0

    def stored():
        return {path for place in (store, store / ".incomplete") for path in place.glob("*")}

    looks = [stepped, stored]
    learner = start(config, run, *settings, command="learn")
    for _ in range(20):
        process, look = start(config, run, *explorer, command="explore"), draw.choice(looks)
        wanted, before = draw.randrange(8), look()
        while wanted:
            assert process.poll() is None and learner.poll() is None
            time.sleep(0.001)
            now = look()
            wanted, before = wanted - (now != before), now
        process.kill()
        assert process.wait() == -signal.SIGKILL
    finish(learner, start(config, run, *explorer, command="explore"))
    found = groups(run)
    assert max(group.turn_counts.max() for group in found.values()) > 1
    finish(start(config, tmp_path / "alone", *settings))
    assert found == groups(tmp_path / "alone") and rows(run) == rows(tmp_path / "alone")
    assert bits(run) == bits(tmp_path / "alone") and rollouts.verify(store).ok


@pytest.mark.slow
def test_kills_lose_nothing_of_a_free_run_with_swapped_weights(tmp_path):
    config, run = tmp_path / "small.py", tmp_path / "run"
    settings = ("--regime.sync-interval", "1", "--regime.staleness", "3", "--free-running")
    settings += ("--training.steps", "40")
    config.write_text(CONFIG)
    words = {"learn": settings, "explore": (*settings, "--swap-weights", "--explorer-name", "a")}
    running = {role: start(config, run, *words[role], command=role) for role in words}
    for number, step in enumerate(range(2, 38, 4)):
        wait_for_step([*running.values()], run, step)
        role = ("explore", "learn")[number % 3 == 2]
        running[role].kill()
        running[role].wait()
        running[role] = start(config, run, *words[role], command=role)
    finish(*running.values())
    found = list(rollouts.read(run / "rollouts"))
    sampled = [(group.position, int(group.policy_version[0]), group.attempt) for group in found]
    assert len(set(sampled)) == len(sampled) and rollouts.verify(run / "rollouts").ok
    trained = [step for kind, step in rows(run) if kind == "train"]
    assert trained == [*range(1, 41)]
    assert {position for position, _, _ in sampled} == {*range(4 * 40)}


@pytest.mark.slow
def test_the_embedded_default_by_three_processes_one_of_which_is_killed(tmp_path):
    config, run = ROOT / "configs" / "arithmetic.py", tmp_path / "three"
    named = [("--explorer-name", name, "--explorers", "2") for name in "ab"]
    learner = start(config, run, command="learn", report=True)
    explorers = [
        start(config, run, *words, "--index", str(i), command="explore")
        for i, words in enumerate(named)
    ]
    wait_for_step([learner, *explorers], run, 30)
    explorers[1].kill()
    time.sleep(5)
    assert learner.poll() is None and explorers[0].poll() is None  # they wait for what it owes
    explorers[1] = start(config, run, *named[1], "--index", "1", command="explore")
    finish(learner, *explorers)
    finish(start(config, tmp_path / "one"))
    assert (
        rows(run) == rows(tmp_path / "one")
        and groups(run) == groups(tmp_path / "one")
        and bits(run) == bits(tmp_path / "one")
    )
    (summary,) = json.loads((run / "summary.json").read_text())["runs"]
    assert summary["staleness"] == [
        [age, 16 * 320 // 20] for age in range(20)
    ]  # the sampler is refreshed every 20 steps
    assert rows(run)["eval", 320]["accuracy"] > 0.9
