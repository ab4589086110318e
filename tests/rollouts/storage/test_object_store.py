"""Rollout folders in an object store: moto's S3 server on loopback, with faults put between it
and us.
"""

import pytest

from grre_jax import rollouts
from grre_jax.errors import DataError, UsageError
from grre_jax.rollouts import manifest
from grre_jax.rollouts.storage import shards

pytest.importorskip("s3fs", reason="needs the extras s3 and test")
pytest.importorskip("moto", reason="needs the extras s3 and test")


@pytest.fixture
def url(store):
    return f"s3://{store.folder}"


@pytest.fixture
def seal(url, make_group):
    """`seal(*positions)`: writes a data set of one group for each."""

    def write(*positions):
        for position in positions:
            rollouts.write(url, [make_group(position)], writer="w")

    return write


def fails(name, status, times=100):
    """A plan: uploads of such objects fail so many times."""
    left = [status] * times
    return lambda method, path, _: left.pop() if left and method == "PUT" and name in path else None


def test_a_folder_in_an_object_store_is_a_folder(store, url, folder, make_group):
    rollouts.merge([folder], url)
    reader = rollouts.read(url)
    assert list(reader) == list(rollouts.read(folder))
    assert reader.folder == url and reader.at(9, 2) == make_group(9, version=2)
    rollouts.write(url, [make_group(50)], writer="w", metadata={"contains": ["a/b"]})
    assert len(reader) == 12 and reader.refresh() == 1 and reader[12] == make_group(50)
    assert reader.contains == {"a/b"}
    report = rollouts.verify(url)
    assert report.ok and report.intact_groups == 13
    assert len(store.files.cat_file(f"{store.folder}/manifest.jsonl").splitlines()) == 4


def test_what_works_on_folders_works_there(url, folder, tmp_path):
    rollouts.merge([folder], url)
    rollouts.export(url, tmp_path / "e.jsonl")
    rollouts.import_rows("jsonl", tmp_path / "e.jsonl", f"{url}-again")
    assert list(rollouts.read(f"{url}-again")) == list(rollouts.read(folder))
    with pytest.raises(UsageError, match=url):
        rollouts.merge([folder], url)


def test_an_empty_a_foreign_and_a_missing_place(store, url):
    assert len(rollouts.read(url)) == 0
    store.files.pipe_file(f"{store.bucket}/photos/a.jpg", b"x")
    with pytest.raises(DataError, match="/photos"):
        rollouts.read(f"s3://{store.bucket}/photos")
    with pytest.raises(UsageError, match="nope://x"):
        rollouts.read("nope://x")
    store.plan = lambda *_: 403
    with pytest.raises(DataError, match="run/rollouts"):
        rollouts.read(url)


def test_an_upload_that_fails_seals_nothing_and_one_that_fails_once_is_repeated(store, url, seal):
    seal(0)
    store.plan = fails("metadata.json", 403)
    with pytest.raises(DataError, match=url):
        seal(1)
    assert len(rollouts.read(url)) == 1
    store.plan = fails("array_record", 503, times=1)
    seal(1)
    assert len(rollouts.read(url)) == 2
    store.plan = fails("manifest", 403)
    with pytest.raises(DataError, match=url):
        seal(2)
    store.plan = None
    seal(3)
    report = rollouts.verify(url)
    assert report.ok and report.groups == 3
    assert [group.position for group in rollouts.read(url)] == [0, 1, 3]


def test_the_layout_of_earlier_versions(store, url, seal, make_group):
    """They had an object for each entry, in a folder `manifest`."""
    seal(0, 1, 2)
    lines = store.files.cat_file(f"{store.folder}/manifest.jsonl").splitlines(keepends=True)
    store.files.rm_file(f"{store.folder}/manifest.jsonl")
    for number, line in enumerate(lines):
        store.files.pipe_file(f"{store.folder}/manifest/{number:08d}.jsonl", line)
    reader = rollouts.read(url)
    assert [group.position for group in reader] == [0, 1, 2]
    seal(3)
    assert reader.refresh() == 1 and reader[3] == make_group(3)
    assert rollouts.verify(url).ok


def test_damaged_missing_and_foreign_objects(store, url, make_group):
    for version in range(2):
        rollouts.write(url, [make_group(version, version=version)], writer="w")
    reader = rollouts.read(url)
    entry, _ = reader.datasets[0], reader[0]
    name = f"{store.folder}/{entry.name}/{entry.data_file}"
    content = bytearray(store.files.cat_file(name))
    content[65600] ^= 1
    store.files.pipe_file(name, bytes(content))
    store.files.pipe_file(f"{store.folder}/notes.txt", b"mine")
    assert reader[0] == make_group(0, version=0)  # the copy from before the damage
    assert "SHA-256" in str(rollouts.verify(url).problems[0])
    for remove in (store.files.rm_file, None):
        reader = rollouts.read(url)
        with pytest.raises(rollouts.CorruptShard) as caught:
            reader[0]
        assert caught.value.file == f"s3://{name}"
        assert reader[1] == make_group(1, version=1)
        if remove:
            remove(name)
    report = rollouts.verify(url)
    assert len(report.problems) == report.intact_groups == 1
    path = f"{store.folder}/manifest.jsonl"
    lines = store.files.cat_file(path)
    store.files.pipe_file(path, lines.replace(b'"writer":"w"', b'"writer":"x"'))
    with pytest.raises(manifest.CorruptManifest, match="manifest.jsonl, line 1:"):
        rollouts.read(url)


def test_a_file_is_copied_once_while_its_shard_is_open(store, url, seal, make_group, monkeypatch):
    seal(0, 1, 2, 3)
    monkeypatch.setattr(shards, "OPEN_FILES", 2)
    reader = rollouts.read(url)
    store.log.clear()
    for number in (0, 0, 1, 1, 0, 2, 3, 0):
        assert reader[number] == make_group(number)
    gets = [path for method, path, _ in store.log if method == "GET" and "array_record" in path]
    assert len(gets) == 5  # 0, 1, 2, 3, and 0 once more
    copies = list(reader.storage.file(reader.datasets[0], "features.json").parents[1].glob("w*"))
    assert len(copies) <= 3
