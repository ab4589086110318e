"""The folder of compiled programs."""

from pathlib import Path
from types import SimpleNamespace

from grre_jax import machine


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
