"""The programs of docs/environments.md run as they stand; that of OpenEnv: test_openenv.py."""

import asyncio

import pytest

from grre_jax import tasks

from .playing import program


def test_a_trajectory_is_played_by_hand(capsys):
    exec(program("Four ways in"), {})
    assert "\n95\n" in capsys.readouterr().out


def test_the_gymnasium_environment_is_made(tmp_path):
    (tmp_path / "lake.py").write_text(program("Gymnasium"))
    task = tasks.build("gymnasium", env=f"{tmp_path / 'lake.py'}:make")
    world = task.environment()
    assert world.reset(task.question(0), 0)[0]["content"] == "0"
    assert world.step("r").observation == "1"


def test_the_environment_of_verifiers_judges(tmp_path):
    pytest.importorskip("verifiers", reason="extra verifiers")
    (tmp_path / "sums.py").write_text(program("verifiers"))
    env = f"{tmp_path / 'sums.py'}:load_environment"
    task = tasks.build("verifiers", env=env, arguments={"count": 50})
    question = task.question(0)
    assert asyncio.run(task.verify(question, question.answer)).components["right"] == 1.0
