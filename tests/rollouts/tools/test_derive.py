"""Changed copies of rollout folders: in order, with their provenance, and continued where they
stopped.
"""

import dataclasses

import pytest

from grre_jax import rollouts
from grre_jax.errors import DataError, UsageError
from grre_jax.rollouts.tools import copying
from grre_jax.rollouts.tools.copying import derive

from ...groups import packed_group

STEP = {"operation": "mark", "with": 1}


@pytest.fixture
def source(tmp_path):
    """Seven groups in two data sets of different writers and versions."""
    for name, version, numbers in (("a", 0, range(4)), ("b", 2, range(4, 7))):
        groups = [packed_group(n, position=n, policy_version=[version] * 3) for n in numbers]
        metadata = {"task": "t", "history": [{"old": name}]}
        rollouts.write(
            tmp_path / "source", groups, writer=name, policy_version=version, metadata=metadata
        )
    return rollouts.read(tmp_path / "source")


def answers(folder):
    return [group.answer for group in rollouts.read(folder)]


ALL = [f"marked {n}" for n in range(7)]


def marked(source, seen, stop=None):
    """Groups with their answers set; raises at the group of number `stop`."""

    def changed(numbers):
        for number in numbers:
            if number == stop:
                raise DataError("stopped")
            seen.append(number)
            yield dataclasses.replace(source[number], answer=f"marked {number}")

    return changed


def test_groups_keep_all_else_and_data_sets_their_provenance(source, tmp_path):
    derive(source, tmp_path / "out", marked(source, []), STEP, {"task": "new"})
    copy = rollouts.read(tmp_path / "out")
    assert answers(tmp_path / "out") == ALL
    assert [dataclasses.replace(group, answer="") for group in copy] == list(source)
    for entry, before in zip(copy.datasets, source.datasets, strict=True):
        for name in ("writer", "policy_version", "groups"):
            assert getattr(entry, name) == getattr(before, name)
        changed = {"task": "new", "history": [{"old": before.writer}, STEP]}
        assert entry.metadata == before.metadata | changed


def test_a_stopped_copy_goes_on_behind_what_is_sealed(source, tmp_path, monkeypatch):
    monkeypatch.setattr(copying, "GROUPS_PER_DATASET", 2)
    out = tmp_path / "out"
    seen = []
    with pytest.raises(DataError, match="stopped"):
        derive(source, out, marked(source, [], stop=3), STEP, {})
    assert len(rollouts.read(out)) == 2
    derive(source, out, marked(source, seen), STEP, {})
    assert seen == [2, 3, 4, 5, 6]
    assert [entry.groups for entry in rollouts.read(out).datasets] == [2, 2, 2, 1]
    derive(source, out, marked(source, seen), STEP, {})
    assert len(seen) == 5 and answers(out) == ALL


def test_nothing_is_mixed_with_something_else(source, tmp_path):
    derive(source, tmp_path / "out", marked(source, []), STEP, {})
    for step, folder in ((STEP | {"with": 2}, "out"), (STEP, "source")):
        with pytest.raises(UsageError, match=folder):
            derive(source, tmp_path / folder, marked(source, []), step, {})
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="empty"):
        derive(rollouts.read(tmp_path / "empty"), tmp_path / "new", marked(source, []), STEP, {})
