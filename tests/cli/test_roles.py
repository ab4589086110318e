"""What the words of `grre explore` and `grre learn` come to."""

import signal

import pytest

from grre_jax.cli.entry import main
from grre_jax.training import roles
from grre_jax.training.runtime.stopping import StopRequest

CONFIG = """
from grre_jax.config import Config
def config(): return Config(name="words")
"""


@pytest.fixture
def called(tmp_path, monkeypatch):
    """`called(*words)`: (exit status, what the role was called with)."""
    (tmp_path / "c.py").write_text(CONFIG)

    def call(command, *words, ends=None):
        found = []

        def role(config, *arguments, **options):
            found.append((config, arguments, options))
            if ends:
                raise ends

        monkeypatch.setattr(roles, "learn", role)
        monkeypatch.setattr(roles, "explore_run", role)
        return main([command, str(tmp_path / "c.py"), *words]), *found

    return call


def test_explore(called):
    words = "--run-dir r --name of-the-run --explorer-name b --explorers 3 --index 2 --seed 5"
    status, (config, (role,), _) = called("explore", *words.split())
    assert status == 0 and (config.name, config.run_dir, config.seed) == ("of-the-run", "r", 5)
    assert role == roles.ExplorerRole("b", 2, 3, free=False)
    _, (_, (role,), _) = called("explore", "--free-running")
    assert role == roles.ExplorerRole("0", 0, 1, free=True)


def test_learn(called):
    status, (config, _, options) = called("learn", "--training.steps", "7")
    assert status == 0
    assert config.training.steps == 7
    assert options == {"free": False, "overwrite": False}
    _, (_, _, options) = called("learn", "--free-running", "--overwrite")
    assert options == {"free": True, "overwrite": True}


def test_wrong_words_are_one_sentence(called, capsys):
    assert called("explore", "--index", "1") == (2,)
    assert capsys.readouterr().err.startswith("grre: --index 1 of --explorers 1")
    assert called("learn", "--trainnig.steps", "7") == (2,)
    assert "training.steps" in capsys.readouterr().err


def test_a_signal_gives_its_exit_status(called, capsys):
    stop = StopRequest(received=signal.SIGTERM)
    status, _ = called("explore", ends=stop.stopped("as explorer b; what it had sealed is kept"))
    assert status == 143
    assert capsys.readouterr().err.startswith("grre: stopped by SIGTERM as explorer b")
