"""Taking a run away so that a kill leaves the run or none."""

import pytest

from grre_jax.errors import UsageError
from grre_jax.training.run_folder import empty, half_removed, locked, of_no_run


@pytest.fixture
def run(tmp_path):
    (tmp_path / "run" / "checkpoints" / "3").mkdir(parents=True)
    folder = tmp_path / "run"
    for name in ("config.json", ".lock", "metrics.jsonl"):
        (folder / name).write_text(name)
    (folder / "checkpoints" / "3" / "x").write_text("x")
    return folder


def left(folder):
    return [path.name for path in sorted(folder.iterdir()) if not of_no_run(path)]


def test_the_run_goes_and_the_lock_stays(run):
    assert not half_removed(run)
    empty(run)
    assert left(run) == [] and (run / ".lock").is_file() and half_removed(run)


def test_cut_short_at_any_object_it_is_the_whole_run_or_none(run, monkeypatch):
    kind = type(run)
    rename = kind.rename
    count = iter(range(10))

    def cut(self, *arguments):
        if next(count) == 1:
            raise KeyboardInterrupt
        return rename(self, *arguments)

    monkeypatch.setattr(kind, "rename", cut)
    with pytest.raises(KeyboardInterrupt):
        empty(run)
    assert (
        not (run / "config.json").exists()
        and half_removed(run)
        and left(run) == ["checkpoints", "metrics.jsonl"]
    )


def test_a_folder_is_trained_in_by_one_process(run):
    with locked(run):
        with pytest.raises(UsageError, match="in use"), locked(run):
            pass
    with locked(run):
        pass
