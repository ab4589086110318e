"""Merged copies, and changed ones: in order, with their provenance, and continued where they
stopped.
"""

import dataclasses

import pytest

from grre_jax import rollouts
from grre_jax.errors import DataError, UsageError
from grre_jax.rollouts.tools import copying
from grre_jax.rollouts.tools.copying import derive

STEP = {"operation": "mark", "with": 1}


def test_merge_keeps_groups_order_and_provenance(folder, tmp_path, make_group):
    other = tmp_path / "other"
    metadata = {"contains": ["gsm8k/test"]}
    rollouts.write(other, [make_group(-1, version=-1)], writer="import", metadata=metadata)
    merged = rollouts.merge([folder, other, folder], tmp_path / "m")
    assert list(merged) == [*rollouts.read(folder), *rollouts.read(other)]
    assert [entry.policy_version for entry in merged.datasets] == [0, 1, 2, -1]
    assert [entry.writer for entry in merged.datasets] == ["sampler"] * 3 + ["import"]
    assert merged.contains == {"gsm8k/test"}
    step = {"operation": "merge", "folders": ["rollouts", "other", "rollouts"]}
    assert merged.datasets[0].metadata["history"] == [step]


def test_a_folder_that_holds_something_is_not_written_to(folder, tmp_path):
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "note").touch()
    for into in (folder, tmp_path / "x", tmp_path / "x" / "note"):
        with pytest.raises(UsageError, match=str(into)):
            rollouts.merge([folder], into)


def test_damage_stops_a_copy(folder, tmp_path):
    entry = rollouts.read(folder).datasets[1]
    (folder / entry.name / entry.data_file).write_bytes(b"")
    with pytest.raises(rollouts.CorruptShard):
        rollouts.merge([folder], tmp_path / "m")
    assert not len(rollouts.read(tmp_path / "m"))  # all or nothing


def marked(source, seen, stop=None):
    """Groups with their answers set; raises at the group of number `stop`."""

    def changed(numbers):
        for number in numbers:
            if number == stop:
                raise DataError("stopped")
            seen.append(number)
            yield dataclasses.replace(source[number], answer=f"marked {number}")

    return changed


def test_a_stopped_copy_goes_on_behind_what_is_sealed(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(copying, "GROUPS_PER_DATASET", 3)
    source = rollouts.read(folder)
    out = tmp_path / "out"
    seen = []
    with pytest.raises(DataError, match="stopped"):
        derive(source, out, marked(source, [], stop=5), STEP, {})
    for _ in range(2):
        derive(source, out, marked(source, seen), STEP, {})
        assert seen == [*range(4, 12)]
    copy = rollouts.read(out)
    for number, (before, group) in enumerate(zip(source, copy, strict=True)):
        assert group == dataclasses.replace(before, answer=f"marked {number}")
    provenance = [(entry.groups, entry.policy_version) for entry in copy.datasets]
    assert provenance == [(3, 0), (1, 0), (3, 1), (1, 1), (3, 2), (1, 2)]
    assert copy.datasets[0].metadata == source.datasets[0].metadata | {"history": [STEP]}


def test_a_changed_copy_is_not_mixed_with_something_else(folder, tmp_path):
    source = rollouts.read(folder)
    out = tmp_path / "out"
    derive(source, out, marked(source, []), STEP, {})
    for step, place in ((STEP | {"with": 2}, out), (STEP, folder)):
        with pytest.raises(UsageError, match=str(place)):
            derive(source, place, marked(source, []), step, {})
