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


def listed(folder, count):
    """Entries of the manifest without files, a group at each position."""
    (entry, *_) = rollouts.read(folder).datasets
    about = [{"name": f"d{i}", "groups": 1, "positions": ((i, 1),)} for i in range(count)]
    return [dataclasses.replace(entry, **fields) for fields in about]


def test_random_access(folder, make_group):
    reader = rollouts.read(folder)
    assert len(reader) == 12 and reader.locate(5) == (reader.datasets[1], 1)
    for number in random.Random(0).sample(range(12), 12):
        assert reader[number] == make_group(number, version=number // 4)
    assert reader[-1] == reader[11]
    for number in (12, -13):
        with pytest.raises(IndexError, match=f"{number} of 12"):
            reader[number]


def test_the_first_data_sets_are_a_reader_of_their_own(folder, make_group):
    whole = rollouts.read(folder)
    first = whole.first(2)
    rollouts.write(folder, [make_group(3, version=9)], writer="other", policy_version=9)
    assert whole.refresh() == 1 and first.refresh() == 0
    assert list(first) == list(whole)[:8] and first.datasets == whole.datasets[:2]
    assert first.index[3] == [3] and whole.index[3] == [3, 12] and 9 not in first.index


def test_groups_by_position_and_policy_version(folder, make_group):
    rollouts.write(folder, [make_group(i, version=9) for i in (3, 40)], writer="other")
    reader = rollouts.read(folder)
    assert reader.at(3) == make_group(3, version=9)
    assert reader.at(3, policy_version=0) == make_group(3, version=0)
    for arguments, named in (((40, 1), "version 1 at position 40"), ((77,), "position 77")):
        with pytest.raises(DataError, match=named):
            reader.at(*arguments)
    rollouts.write(folder, [make_group(-1, version=-1)], writer="imported")
    assert reader.refresh() == 1 and reader.find(-1) is None


def test_a_folder_that_is_none_is_named(tmp_path):
    assert len(rollouts.read(tmp_path)) == 0
    (tmp_path / "photo.jpg").touch()
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(DataError, match=str(folder)):
            rollouts.read(folder)


@pytest.mark.parametrize("damage", ["missing", "truncated", "another"])
def test_damaged_shards_are_named_and_the_others_are_read(folder, make_group, damage):
    path = data_file(folder, 1)
    content = path.read_bytes()
    path.unlink()
    if damage == "another":  # of the same size, with fewer records
        rollouts.write(folder, [make_group(1)], writer="short")
        content = data_file(folder, 3).read_bytes() + b"\0"
    if damage != "missing":
        path.write_bytes(content[:-1])
    reader = rollouts.read(folder)
    with pytest.raises(rollouts.CorruptShard) as error:
        reader[5]
    assert error.value.file == str(path) and "copy" in str(error.value)
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
        offset = draw.choice(used) if draw.random() < 0.8 else draw.randrange(len(content))
        path.write_bytes(content)
        flip(path, offset, draw.randrange(8))
        report = rollouts.verify(folder)
        assert str(path) in str(report.problems[0]) and "SHA-256" in str(report.problems[0])
        reader = rollouts.read(folder)
        damaged = []
        for number in range(12):
            try:
                assert reader[number] == make_group(number, version=number // 4)
            except rollouts.CorruptShard as error:
                damaged.append(number)
                assert error.file == str(path)
                named += getattr(error, "record", None) == number - 4
        assert set(damaged) <= {4, 5, 6, 7} and len(damaged) == 12 - report.intact_groups
    assert named > 4


def test_threads_that_ask_for_places_while_the_folder_grows_find_each_group_once(tmp_path, folder):
    entries = listed(folder, 200)
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
            for entry in entries:
                manifest.append(tmp_path / "grows", entry)
                reader.refresh()
        finally:
            over.set()
            sys.setswitchinterval(before)
    assert reader.index == {position: [position] for position in range(200)}


def test_what_was_just_sealed_is_read_once_from_memory_and_then_from_the_disk(
    folder, make_group, monkeypatch
):
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
    # A reader of the same groups in memory takes one, and so makes room here too.
    assert reader.first(len(reader.datasets))[13] is groups[1]
    reader.keep(name, groups)
    assert [reader[12 + n] is groups[n] for n in range(2)] == [True, True]


def test_a_damaged_line_hides_nothing_from_a_reader_that_goes_on(tmp_path, folder, flip):
    (tmp_path / "grows").mkdir()
    reader = rollouts.read(tmp_path / "grows")
    manifest.append(tmp_path / "grows", *listed(folder, 3))
    path = tmp_path / "grows" / manifest.FILENAME
    lines = path.read_bytes().splitlines(keepends=True)
    flip(path, len(lines[0]) + 9)
    for _ in range(2):
        with pytest.raises(manifest.CorruptManifest, match="line 2:"):
            reader.refresh()
    path.write_bytes(lines[0] + lines[2])  # as the message says
    assert reader.refresh() == 2
    assert [one.name for one in reader.datasets] == ["d0", "d2"]
