import dataclasses
import random
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from grre_jax import rollouts
from grre_jax.errors import DataError
from grre_jax.rollouts import manifest


def data_file(folder, number):
    entry = rollouts.read(folder).datasets[number]
    return folder / entry.name / entry.data_file


def test_groups_by_number(folder, make_group):
    reader = rollouts.read(folder)
    assert len(reader) == 12 and reader.locate(5) == (reader.datasets[1], 1)
    for number in random.Random(0).sample(range(12), 12):
        assert reader[number] == make_group(number, version=number // 4)
    assert reader[-1] == reader[11]
    for number in (12, -13):
        with pytest.raises(IndexError, match=f"{number} of 12"):
            reader[number]


def test_groups_by_position_and_policy_version(folder, make_group):
    rollouts.write(folder, [make_group(i, version=9) for i in (3, 40)], writer="other")
    reader = rollouts.read(folder)
    assert reader.at(3) == make_group(3, version=9)
    assert reader.at(3, policy_version=0) == make_group(3, version=0)
    with pytest.raises(DataError):
        reader.at(40, 1)
    rollouts.write(folder, [make_group(-1, version=-1)], writer="imported")
    assert reader.refresh() == 1 and reader.find(-1) is None


def test_of_groups_that_were_sealed_twice_the_first_counts(folder, make_group):
    """As when one explorer is started again while the other still runs."""
    again = make_group(5, version=1, texts=["other"] * 4)
    rollouts.write(folder, [again], writer="sampler", policy_version=1)
    assert rollouts.read(folder).at(5, 1) == make_group(5, version=1)


def test_the_first_data_sets_are_a_reader_of_their_own(folder, make_group):
    whole = rollouts.read(folder)
    first = rollouts.RolloutReader(folder, 2)
    rollouts.write(folder, [make_group(3, version=9)], writer="other", policy_version=9)
    assert whole.refresh() == 1 and first.refresh() == 0
    assert list(first) == list(whole)[:8] and first.datasets == whole.datasets[:2]
    assert first.index[3] == [3] and whole.index[3] == [3, 12]


def test_a_folder_that_is_none_is_named(tmp_path):
    assert len(rollouts.read(tmp_path)) == 0
    (tmp_path / "photo.jpg").touch()
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(DataError, match=str(folder)):
            rollouts.read(folder)


@pytest.mark.parametrize("damage", ["missing", "another"])
def test_damaged_shards_are_named_and_the_others_are_read(folder, make_group, damage):
    path = data_file(folder, 1)
    path.unlink()
    if damage == "another":  # with fewer records
        rollouts.write(folder, [make_group(1)], writer="short")
        path.write_bytes(data_file(folder, 3).read_bytes())
    reader = rollouts.read(folder)
    with pytest.raises(rollouts.CorruptShard) as error:
        reader[5]
    assert error.value.file == str(path)
    assert reader[0] == make_group(0, version=0) and reader[11] == make_group(11, version=2)
    report = rollouts.verify(folder)
    assert report.intact_groups == len(reader) - 4 and report.problems


def test_every_flipped_bit_is_found_and_intact_groups_are_read(folder, flip, make_group):
    path = data_file(folder, 1)
    content = path.read_bytes()
    draw = random.Random(1)
    used = [offset for offset, byte in enumerate(content) if byte]
    named = 0
    for _ in range(25):
        path.write_bytes(content)
        flip(path, draw.choice(used), draw.randrange(8))
        report = rollouts.verify(folder)
        assert str(path) in str(report.problems[0]) and "SHA-256" in str(report.problems[0])
        reader = rollouts.read(folder)
        intact = 8
        for number in range(4, 8):
            try:
                assert reader[number] == make_group(number, version=1)
                intact += 1
            except rollouts.CorruptShard as error:
                assert error.file == str(path)
                named += error.record == number - 4
        assert intact == report.intact_groups
    assert named > 4


def test_threads_that_ask_for_places_while_the_folder_grows_find_each_group_once(tmp_path, folder):
    entry = rollouts.read(folder).datasets[0]
    (tmp_path / "grows").mkdir()
    reader = rollouts.read(tmp_path / "grows")
    over = threading.Event()

    def ask():
        while not over.is_set():
            reader.find(3)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    with ThreadPoolExecutor(3) as pool:
        for _ in range(3):
            pool.submit(ask)
        try:
            for place in range(100):
                fields = {"name": f"d{place}", "groups": 1, "positions": ((place, 1),)}
                manifest.append(tmp_path / "grows", dataclasses.replace(entry, **fields))
                reader.refresh()
        finally:
            over.set()
            sys.setswitchinterval(before)
    assert reader.index == {position: [position] for position in range(100)}


def test_what_was_just_sealed_is_read_once_from_memory(folder, make_group, monkeypatch):
    reader, groups = rollouts.read(folder), [make_group(position) for position in (20, 21, 22)]
    name = rollouts.write(folder, groups, writer="own", policy_version=3)
    tokens = sum(len(group.tokens) for group in groups[:2])
    monkeypatch.setattr("grre_jax.rollouts.reader.KEPT_TOKENS", tokens)
    reader.keep(name, groups)
    reader.refresh()
    assert [reader[12 + n] is groups[n] for n in range(3)] == [True, True, False]
    assert list(reader)[12:] == groups and reader[12] is not groups[0]
    reader.keep(name, groups)  # there is room again
    assert reader[12] is groups[0]


def test_a_damaged_line_hides_nothing_from_a_reader_that_goes_on(folder, flip, make_group):
    reader = rollouts.read(folder)
    path = folder / manifest.FILENAME
    for position in (20, 21, 22):
        rollouts.write(folder, [make_group(position)], writer="w")
    flip(path, -9)
    rollouts.write(folder, [make_group(23)], writer="w")
    for _ in range(2):
        with pytest.raises(manifest.CorruptManifest, match="line 6:"):
            reader.refresh()
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:5] + lines[6:]))  # as the message says
    assert reader.refresh() == 3 and reader[14] == make_group(23)


def test_a_line_of_the_manifest_that_somebody_copied_does_not_double_its_groups(folder):
    path = folder / manifest.FILENAME
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([lines[0], *lines]))
    reader = rollouts.read(folder)
    assert [group.group_id for group in reader] == [f"g{i}" for i in range(12)]
    assert rollouts.verify(folder).groups == 12


def test_a_folder_of_the_next_major_version_is_refused(folder):
    entry = rollouts.read(folder).datasets[0]
    manifest.append(folder, dataclasses.replace(entry, name="tomorrow", schema_version="2.0.0"))
    with pytest.raises(manifest.CorruptManifest, match="line 4: .*2.0.0"):
        rollouts.read(folder)
