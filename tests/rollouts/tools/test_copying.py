import pytest

from grre_jax import rollouts
from grre_jax.errors import UsageError


def test_merge_keeps_groups_order_and_provenance(folder, tmp_path, make_group):
    other = tmp_path / "other"
    metadata = {"contains": ["gsm8k/test"], "task": "gsm8k"}
    rollouts.write(other, [make_group(-1, version=-1)], writer="import", metadata=metadata)
    merged = rollouts.merge([folder, other, folder], tmp_path / "m")
    assert list(merged) == [*rollouts.read(folder), *rollouts.read(other)]
    assert [entry.policy_version for entry in merged.datasets] == [0, 1, 2, -1]
    assert [entry.writer for entry in merged.datasets] == ["sampler"] * 3 + ["import"]
    assert merged.contains == {"gsm8k/test"} and merged.datasets[3].metadata["task"] == "gsm8k"
    step = {"operation": "merge", "folders": ["rollouts", "other", "rollouts"]}
    assert merged.datasets[0].metadata["history"] == [step]
    rollouts.merge([tmp_path / "m"], tmp_path / "mm")
    assert len(rollouts.read(tmp_path / "mm").datasets[3].metadata["history"]) == 2


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
    assert not (tmp_path / "m").exists()  # all or nothing
