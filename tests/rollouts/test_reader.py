import dataclasses
import random
import sys
import threading
from types import SimpleNamespace

import pytest

from grre_jax import rollouts
from grre_jax.errors import DataError
from grre_jax.rollouts import manifest


def data_file(folder, number):
    entry = rollouts.read(folder).datasets[number]
    return folder / entry.name / entry.data_file


def test_random_access(folder, make_group):
    reader = rollouts.read(folder)
    assert len(reader) == 12
    for number in random.Random(0).sample(range(12), 12):
        assert reader[number] == make_group(number, version=number // 4)
    assert reader[-1] == reader[11]
    for number in (12, -13):
        with pytest.raises(IndexError, match=f"group {number} of 12"):
            reader[number]
    assert reader.locate(5) == (reader.datasets[1], 1)


def test_the_first_data_sets_are_a_reader_of_their_own(folder, make_group):
    whole = rollouts.read(folder)
    first = whole.first(2)
    rollouts.write(folder, [make_group(3, version=9)], writer="other", policy_version=9)
    assert whole.refresh() == 1 and first.refresh() == 0 and len(first) == 8 and len(whole) == 13
    assert list(first) == list(whole)[:8] and first.datasets == whole.datasets[:2]
    assert first.index[3] == [3] and whole.index[3] == [3, 12] and 9 not in first.index


def test_groups_by_position_and_policy_version(folder, make_group):
    rollouts.write(folder, [make_group(i, version=9) for i in (3, 40)], writer="other")
    reader = rollouts.read(folder)
    assert reader.at(3) == make_group(3, version=9)
    assert reader.at(3, policy_version=0) == make_group(3, version=0)
    assert reader.find(40, policy_version=1) is None
    with pytest.raises(DataError, match="no group of policy version 1 at position 40"):
        reader.at(40, policy_version=1)
    with pytest.raises(DataError, match="no group at position 77"):
        reader.at(77)
    rollouts.write(folder, [make_group(-1, version=-1)], writer="imported")
    assert reader.refresh() == 1 and reader.find(-1) is None


def test_ten_thousand_data_sets_open_without_reading_their_files(tmp_path, folder):
    (entry, *_) = rollouts.read(folder).datasets
    listed = [
        dataclasses.replace(entry, name=f"d{i}", groups=1, positions=((i, 1),))
        for i in range(10_000)
    ]
    manifest.append(tmp_path, *listed)
    reader = rollouts.read(tmp_path)
    assert len(reader) == len(reader.index) == 10_000
    assert reader.find(7_000, entry.policy_version) == 7_000
    assert reader.locate(7_000)[0].name == "d7000"


def test_a_folder_that_is_none_is_named(tmp_path):
    with pytest.raises(DataError, match="nowhere does not exist"):
        rollouts.read(tmp_path / "nowhere")
    assert len(rollouts.read(tmp_path)) == 0
    (tmp_path / "photo.jpg").touch()
    with pytest.raises(DataError, match="not a rollout folder"):
        rollouts.read(tmp_path)


def test_missing_truncated_and_empty_shards_are_named_and_the_others_are_read(folder, make_group):
    path = data_file(folder, 1)
    content = path.read_bytes()
    for damaged in (None, content[:-1], b""):
        path.unlink() if damaged is None else path.write_bytes(damaged)
        reader = rollouts.read(folder)
        said = "missing" if damaged is None else "bytes where the manifest lists"
        with pytest.raises(rollouts.CorruptShard, match=said) as error:
            reader[5]
        assert error.value.file == str(path) and "copy" in str(error.value)
        assert reader[0] == make_group(0, version=0) and reader[11] == make_group(11, version=2)
        report = rollouts.verify(folder)
        assert not report.ok and report.intact_groups == 8 and len(report.problems) == 1
        path.write_bytes(content)


def test_a_shard_with_another_number_of_records_is_refused(folder, make_group):
    """As when somebody puts another file of the same size in its place."""
    path = data_file(folder, 1)
    rollouts.write(folder, [make_group(1)], writer="short")
    path.write_bytes(data_file(folder, 3).read_bytes())
    with pytest.raises(rollouts.CorruptShard, match="holds 1 records where the manifest lists 4"):
        rollouts.read(folder)[4]
    assert rollouts.verify(folder).intact_groups == 9


def test_every_flipped_bit_is_found_and_intact_groups_are_read(folder, flip, make_group):
    path = data_file(folder, 1)
    content = path.read_bytes()
    draw = random.Random(1)
    used = [offset for offset, byte in enumerate(content) if byte]
    named = 0
    for _ in range(40):
        offset = draw.choice(used) if draw.random() < 0.8 else draw.randrange(len(content))
        path.write_bytes(content)
        flip(path, offset, draw.randrange(8))
        report = rollouts.verify(folder)
        assert str(path) in str(report.problems[0]) and "SHA-256" in str(report.problems[0])
        named += any(isinstance(found, rollouts.CorruptRecord) for found in report.problems)
        reader = rollouts.read(folder)
        intact = 0
        for number in range(12):
            try:
                assert reader[number] == make_group(number, version=number // 4)
                intact += 1
            except (rollouts.CorruptRecord, rollouts.CorruptShard) as error:
                assert number in range(4, 8) and error.file == str(path)
        assert intact == report.intact_groups >= 8
    assert named > 7


def test_a_changed_record_fails_its_own_checksum(tmp_path, make_group):
    """ArrayRecord's own checks pass here: only the record's checksum can tell."""
    from array_record.python import array_record_module
    from tensorflow_datasets.proto import tf_example_pb2

    from grre_jax.rollouts import encoding

    rollouts.write(tmp_path, [make_group(0), make_group(1)], writer="w")
    entry = rollouts.read(tmp_path).datasets[0]
    path = tmp_path / entry.name / entry.data_file
    example = tf_example_pb2.Example.FromString(encoding.encode(make_group(1)))
    example.features.feature["answer"].bytes_list.value[0] = b"3"
    forged = example.SerializeToString()
    output = array_record_module.ArrayRecordWriter(str(path), "group_size:1")
    for data in (encoding.encode(make_group(0)), forged):
        output.write(data)
    output.close()
    assert path.stat().st_size == entry.files[entry.data_file].bytes
    reader = rollouts.read(tmp_path)
    assert reader[0] == make_group(0)
    with pytest.raises(rollouts.CorruptRecord, match="record 1: damaged .*checksum") as error:
        reader[1]
    assert (error.value.file, error.value.record) == (str(path), 1)


def test_threads_share_a_reader_with_few_open_files(folder, make_group, monkeypatch):
    monkeypatch.setattr("grre_jax.rollouts.storage.shards.OPEN_FILES", 1)
    reader = rollouts.read(folder)
    wrong = []

    def run(seed):
        draw = random.Random(seed)
        for number in (draw.randrange(12) for _ in range(100)):
            if reader[number] != make_group(number, version=number // 4):
                wrong.append(number)

    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and len(reader._shards._open) == 1


def test_threads_that_ask_for_places_while_the_folder_grows_find_each_group_once(
    tmp_path, make_group
):
    for version in range(40):
        rollouts.write(
            tmp_path,
            [make_group(5 * version + i, version=version) for i in range(5)],
            writer="w",
            policy_version=version,
        )
    reader, over, before = rollouts.read(tmp_path), threading.Event(), sys.getswitchinterval()
    entries = reader.datasets
    reader._tail = SimpleNamespace(
        new=lambda: [entries[len(reader.datasets)]]
    )  # one data set comes at a time
    reader._listed, reader._names = ([], []), set()

    def ask():
        while not over.is_set():
            reader.find(3)

    threads = [threading.Thread(target=ask) for _ in range(3)]
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for _ in entries:
            reader.refresh()
    finally:
        over.set()
        sys.setswitchinterval(before)
        for thread in threads:
            thread.join(60)
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
    assert reader[12] is groups[0] and reader[13] is groups[1] and reader[14] is not groups[2]
    assert list(reader)[12:] == groups and reader[12] is not groups[0]
    reader.keep(name, groups)  # there is room again
    assert reader[12] is groups[0]
