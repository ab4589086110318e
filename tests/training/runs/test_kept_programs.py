"""Compiled programs that are kept on the disk change no number."""

from pathlib import Path
from types import SimpleNamespace

from grre_jax import machine

from ...run_processes import CONFIG, bits, finish, log, start

SHORT = ("--training.steps", "2", "--warm-start.steps", "2", "--sampling.prompts-per-call", "8")


def test_a_run_is_the_same_with_kept_programs_and_without(tmp_path, monkeypatch):
    # As users compile: with the tests' flags the CPU backend crashes now and then as it writes.
    monkeypatch.setenv("XLA_FLAGS", "")
    monkeypatch.setenv("JAX_ENABLE_COMPILATION_CACHE", "true")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    config = tmp_path / "small.py"
    config.write_text(CONFIG)
    finish(
        start(config, tmp_path / "none", *SHORT, "--compiled", "none"),
        start(config, tmp_path / "cold", *SHORT),
    )
    folder = tmp_path / "cache" / "grre_jax" / "compiled" / machine._instruction_set()
    steps = {path: path.stat().st_mtime_ns for path in folder.glob("*train_step*")}
    assert steps
    finish(start(config, tmp_path / "warm", *SHORT))
    assert {path: path.stat().st_mtime_ns for path in folder.glob("*train_step*")} == steps
    runs = [tmp_path / name for name in ("none", "cold", "warm")]
    assert bits(runs[0]) == bits(runs[1]) == bits(runs[2])
    assert log(runs[0]) == log(runs[1]) == log(runs[2])


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
