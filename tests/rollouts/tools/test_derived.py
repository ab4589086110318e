"""Changed copies of rollout folders: in order, with their provenance, and continued where they
stopped.
"""

import dataclasses

import pytest

from grre_jax import rollouts
from grre_jax.errors import DataError, UsageError
from grre_jax.rollouts.tools import derived
from grre_jax.rollouts.tools.derived import derive

from ...groups import packed_group

STEP = {"operation": "mark", "with": 1}


@pytest.fixture(scope="session")
def make_group():
    return packed_group


@pytest.fixture
def source(tmp_path, make_group):
    """Seven groups in two data sets of different writers and versions."""
    for name, version, numbers in (("a", 0, range(4)), ("b", 2, range(4, 7))):
        groups = [make_group(n, position=n, policy_version=[version] * 3) for n in numbers]
        rollouts.write(
            tmp_path / "source",
            groups,
            writer=name,
            policy_version=version,
            metadata={"task": "t", "history": [{"old": name}]},
        )
    return rollouts.read(tmp_path / "source")


def marked(source, seen=None, stop=None):
    """Answers with the groups' answers set; raises at the group of number `stop`."""

    def changed(numbers):
        for number in numbers:
            if number == stop:
                raise DataError("stopped")
            if seen is not None:
                seen.append(number)
            yield dataclasses.replace(source[number], answer=f"marked {number}")

    return changed


def test_groups_keep_all_else_and_data_sets_their_provenance(source, tmp_path):
    told = []
    assert (
        derive(source, tmp_path / "out", marked(source), STEP, {"task": "new"}, done=told.append)
        == 7
    )
    copy = rollouts.read(tmp_path / "out")
    assert [group.answer for group in copy] == [f"marked {n}" for n in range(7)] and told == [0]
    assert [dataclasses.replace(group, answer="") for group in copy] == list(source)
    for entry, before in zip(copy.datasets, source.datasets, strict=True):
        assert (entry.writer, entry.policy_version, entry.groups) == (
            before.writer,
            before.policy_version,
            before.groups,
        )
        assert entry.metadata == before.metadata | {
            "task": "new",
            "history": [{"old": before.writer}, STEP],
        }


def test_a_stopped_copy_goes_on_behind_what_is_sealed(source, tmp_path, monkeypatch):
    monkeypatch.setattr(derived, "GROUPS_PER_DATASET", 2)
    with pytest.raises(DataError, match="stopped"):
        derive(source, tmp_path / "out", marked(source, stop=3), STEP, {})
    assert len(rollouts.read(tmp_path / "out")) == 2
    seen, told = [], []
    out = tmp_path / "out"
    assert derive(source, out, marked(source, seen), STEP, {}, done=told.append) == 5
    assert seen == [2, 3, 4, 5, 6] and told == [2]
    copy = rollouts.read(tmp_path / "out")
    assert [group.answer for group in copy] == [f"marked {n}" for n in range(7)] and [
        e.groups for e in copy.datasets
    ] == [2, 2, 2, 1]
    assert (
        derive(source, tmp_path / "out", marked(source), STEP, {}) == 0
        and len(rollouts.read(tmp_path / "out")) == 7
    )


def test_object_stores_take_and_give_copies(source):
    pytest.importorskip("fsspec")
    for _ in range(2):
        derive(source, "memory://derived/out", marked(source), STEP, {})
    assert [group.answer for group in rollouts.read("memory://derived/out")] == [
        f"marked {n}" for n in range(7)
    ]
    assert (
        derive(
            rollouts.read("memory://derived/out"),
            "memory://derived/again",
            marked(source),
            STEP | {"with": 2},
            {},
        )
        == 7
    )


def test_time_seals_too(source, tmp_path, monkeypatch):
    monkeypatch.setattr(derived, "SECONDS_PER_DATASET", 0)
    derive(source, tmp_path / "out", marked(source), STEP, {})
    assert [entry.groups for entry in rollouts.read(tmp_path / "out").datasets] == [1] * 7


def test_nothing_is_mixed_with_something_else(source, tmp_path, make_group):
    derive(source, tmp_path / "out", marked(source), STEP, {})
    for step, folder in ((STEP | {"with": 2}, "out"), (STEP, "source"), (STEP, "other")):
        if folder == "other":
            rollouts.write(
                tmp_path / folder, [make_group(8)], writer="a", metadata={"history": [STEP]}
            )
        with pytest.raises(
            UsageError, match=f"{folder} has other groups than the beginning of this copy"
        ):
            derive(source, tmp_path / folder, marked(source), step, {})


def test_an_empty_folder(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="has no groups"):
        derive(
            rollouts.read(tmp_path / "empty"), tmp_path / "out", lambda numbers: iter(()), STEP, {}
        )


def test_two_do_not_write_one_copy(source, tmp_path):
    def changed(numbers):
        with pytest.raises(UsageError, match="out is being written by another process"):
            derive(source, tmp_path / "out", marked(source), STEP, {})
        return marked(source)(numbers)

    assert (
        derive(source, tmp_path / "out", changed, STEP, {})
        == len(rollouts.read(tmp_path / "out"))
        == 7
    )
    assert derive(source, tmp_path / "out", marked(source), STEP, {}) == 0
