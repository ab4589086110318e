"""Compiled programs that are kept on the disk change no number."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from grre_jax import machine

from ...run_processes import CONFIG, bits, finish, log, start

SHORT = "--training.steps 2 --warm-start.steps 0 --evaluation.questions 0".split()


@pytest.mark.slow
def test_a_run_is_the_same_with_kept_programs_and_without(tiny_run, tmp_path, monkeypatch):
    """It trains on stored groups: there is little to compile."""
    # As users compile: with the tests' flags the CPU backend crashes now and then as it writes.
    monkeypatch.setenv("XLA_FLAGS", "")
    monkeypatch.setenv("JAX_ENABLE_COMPILATION_CACHE", "true")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    config = tmp_path / "small.py"
    config.write_text(CONFIG)
    folder = tmp_path / "cache" / "grre_jax" / "compiled" / machine._instruction_set()
    kept = []
    for name in ("cold", "warm"):
        finish(start(config, tmp_path / name, *SHORT, "--data.path", str(tiny_run / "rollouts")))
        kept.append({path: path.stat().st_mtime_ns for path in folder.glob("*train_step*")})
    assert kept[0] and kept[0] == kept[1]
    assert bits(tmp_path / "cold") == bits(tmp_path / "warm")
    assert log(tmp_path / "cold") == log(tmp_path / "warm")


def test_the_folder_is_the_configurations_or_the_users(tmp_path, monkeypatch):
    changed = {}
    # A command that an earlier test ran in this process may have set the folder.
    config = SimpleNamespace(update=changed.__setitem__, jax_compilation_cache_dir=None)
    monkeypatch.setattr(machine, "jax", SimpleNamespace(config=config))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for field, parent in (("", tmp_path / "cache/grre_jax/compiled"), (str(tmp_path), tmp_path)):
        machine.keep_compiled(field)
        assert Path(changed["jax_compilation_cache_dir"]).parent == parent
    changed.clear()
    machine.keep_compiled("none")
    assert changed == {"jax_enable_compilation_cache": False}
