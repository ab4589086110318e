"""The programs of docs/environments.md run as they stand; those of OpenEnv and of
verifiers: test_openenv.py and test_verifiers.py.
"""

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
