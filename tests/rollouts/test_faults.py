"""What may befall a rollout folder, and that what is sealed outlives it.

Kills, torn lines and full disks: test_writer.py, test_manifest.py.
"""

import dataclasses

import pytest

from grre_jax import rollouts
from grre_jax.rollouts import manifest


def test_a_manifest_line_that_somebody_copied_does_not_double_its_groups(folder):
    path = folder / manifest.FILENAME
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([lines[0], *lines]))
    reader = rollouts.read(folder)
    assert [group.group_id for group in reader] == [f"g{i}" for i in range(12)]
    assert reader.index[0] == [0]
    assert rollouts.verify(folder).groups == 12
    with open(path, "ab") as file:
        file.write(lines[1])
    assert reader.refresh() == 0 and len(reader) == 12


def test_of_groups_that_were_sealed_twice_the_first_counts_and_the_other_is_told(
    folder, make_group
):
    """As when two explorers are given one share, or one is started again while the other still
    runs.
    """
    again = make_group(5, version=1, texts=["other"] * 4)
    rollouts.write(folder, [again], writer="sampler", policy_version=1)
    reader = rollouts.read(folder)
    assert reader.find(5, 1) == 5 and reader.at(5, 1) == make_group(5, version=1)
    assert rollouts.verify(folder).ok


def test_a_folder_of_the_next_major_version_is_refused(folder):
    entry = rollouts.read(folder).datasets[0]
    manifest.append(folder, dataclasses.replace(entry, name="tomorrow", schema_version="2.0.0"))
    with pytest.raises(manifest.CorruptManifest, match="line 4: .*2.0.0"):
        rollouts.read(folder)
