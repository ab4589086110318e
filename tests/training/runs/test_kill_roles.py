"""Learner and explorers killed for real, again and again: the run that comes out is the run that
was left alone.
"""

import signal
from pathlib import Path

import pytest

from grre_jax import rollouts

from ...run_processes import (
    CONFIG,
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
