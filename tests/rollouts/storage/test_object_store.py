"""Rollout folders in an object store: moto's S3 server on loopback, with faults put between it
and us.
"""

import random

import pytest

from grre_jax import rollouts
from grre_jax.errors import DataError, UsageError
from grre_jax.rollouts import manifest
from grre_jax.rollouts.storage import object_store
from grre_jax.storage import cache

pytest.importorskip("s3fs", reason="needs the extras s3 and test")
pytest.importorskip("moto", reason="needs the extras s3 and test")


def url(store):
    return f"s3://{store.folder}"


def test_a_folder_in_an_object_store_is_a_folder(store, folder, make_group):
    for version in range(3):
        groups = [make_group(4 * version + i, version=version) for i in range(4)]
        about = {"policy_version": version, "metadata": {"contains": ["a/b"]}}
        rollouts.write(url(store), groups, writer="sampler", **about)
    reader = rollouts.read(url(store))
    assert list(reader) == list(rollouts.read(folder)) and reader.contains == {"a/b"}
    assert reader.folder == url(store) and reader.at(9, 2) == make_group(9, version=2)
    rollouts.write(url(store), [make_group(50)], writer="w")
    assert len(reader) == 12 and reader.refresh() == 1 and reader[12] == make_group(50)
    report = rollouts.verify(url(store))
    assert report.ok and report.intact_groups == 13 and not report.ignored
    names = [name.rsplit("/", 1)[1] for name in store.files.ls(f"{store.folder}/manifest")]
    assert sorted(names) == [f"{i:08d}.jsonl" for i in range(4)]


def test_what_works_on_folders_works_there(store, folder, tmp_path):
    rollouts.merge([folder], url(store))
    assert len(store.files.ls(f"{store.folder}/manifest")) == 1  # three data sets, entered together
    rollouts.filter(url(store), tmp_path / "f", rollouts.predicate("position < 5"), "position < 5")
    assert [group.position for group in rollouts.read(tmp_path / "f")] == [0, 1, 2, 3, 4]
    rollouts.export(url(store), tmp_path / "e.jsonl")
    rollouts.import_rows("jsonl", tmp_path / "e.jsonl", f"{url(store)}-again")
    assert list(rollouts.read(f"{url(store)}-again")) == list(rollouts.read(folder))
    with pytest.raises(UsageError, match="exists already"):
        rollouts.merge([folder], url(store))
    with pytest.raises(UsageError, match="is already in s3://"):
        rollouts.import_rows("jsonl", tmp_path / "e.jsonl", f"{url(store)}-again")


def test_an_empty_a_foreign_and_a_missing_place(store):
    assert len(rollouts.read(url(store))) == 0
    store.files.pipe_file(f"{store.bucket}/photos/a.jpg", b"x")
    with pytest.raises(DataError, match="/photos is not a rollout folder"):
        rollouts.read(f"s3://{store.bucket}/photos")
    with pytest.raises(UsageError, match="nope://x.*use a path, s3:// or gs://"):
        rollouts.read("nope://x")
    store.plan = lambda *_: 403
    with pytest.raises(DataError, match="cannot be listed .*check its name and your access"):
        rollouts.read(url(store))


def test_an_upload_that_fails_seals_nothing_and_one_that_fails_once_is_repeated(store, make_group):
    rollouts.write(url(store), [make_group(0)], writer="w")
    before = store.files.find(store.folder)
    store.plan = lambda method, path, _: (
        403 if method == "PUT" and "metadata.json" in path else None
    )
    with pytest.raises(DataError, match="Cannot write rollouts to s3://.*nothing was sealed"):
        rollouts.write(url(store), [make_group(1)], writer="w")
    assert store.files.find(store.folder) == before
    failed = []
    store.plan = lambda method, path, _: (
        failed.append(path) or 503
        if method == "PUT" and "array_record" in path and not failed
        else None
    )
    rollouts.write(url(store), [make_group(1)], writer="w")
    assert failed and len(rollouts.read(url(store))) == 2 and rollouts.verify(url(store)).ok


def test_an_entry_whose_answer_is_lost_is_there_once(store, make_group):
    lost = []
    store.plan = lambda method, path, _: (
        (lost.append(path) or "lost")
        if method == "PUT" and "/manifest/" in path and not lost
        else None
    )
    rollouts.write(url(store), [make_group(0)], writer="w")
    assert lost and [group.position for group in rollouts.read(url(store))] == [0]
    assert len(store.files.ls(f"{store.folder}/manifest")) == 1


def test_an_entry_that_cannot_be_made_leaves_the_data_unlisted(store, make_group):
    store.plan = lambda method, path, _: 403 if method == "PUT" and "/manifest/" in path else None
    with pytest.raises(DataError, match="nothing was sealed"):
        rollouts.write(url(store), [make_group(0)], writer="w")
    store.plan = None
    rollouts.write(url(store), [make_group(1)], writer="w")
    report = rollouts.verify(url(store))
    assert report.ok and report.groups == 1 and len(report.ignored) == 4


def test_listings_that_are_slow_or_old_lose_no_entry(store, make_group, monkeypatch):
    rollouts.write(url(store), [make_group(0)], writer="w")
    store.plan = lambda method, path, query: 0.3 if "list-type" in query else None
    rollouts.write(url(store), [make_group(1)], writer="w")
    with monkeypatch.context() as old:
        old.setattr(object_store.ObjectTail, "numbers", lambda self: [])
        rollouts.write(url(store), [make_group(2)], writer="w")
    assert [group.position for group in rollouts.read(url(store))] == [0, 1, 2]


def test_damaged_missing_and_foreign_objects(store, tmp_path, make_group):
    for version in range(2):
        rollouts.write(url(store), [make_group(version, version=version)], writer="w")
    reader = rollouts.read(url(store))
    entry, _ = reader.datasets[0], reader[0]
    name = f"{store.folder}/{entry.name}/{entry.data_file}"
    content = bytearray(store.files.cat_file(name))
    content[65600] ^= 1
    store.files.pipe_file(name, bytes(content))
    store.files.pipe_file(f"{store.folder}/notes.txt", b"mine")
    reader = rollouts.read(url(store))
    assert reader[0] == make_group(
        0, version=0
    )  # from the cache, which was filled when the store was whole
    assert "SHA-256" in str(rollouts.verify(url(store)).problems[0])  # not from the cache
    for cached in (tmp_path / "cache").rglob("*array_record*"):
        cached.unlink()
    reader = rollouts.read(url(store))
    with pytest.raises(rollouts.CorruptShard, match=f"s3://{name}: its SHA-256 is not the one"):
        reader[0]
    assert reader[1] == make_group(1, version=1)
    store.files.rm_file(name)
    with pytest.raises(rollouts.CorruptShard, match="lists this object but it is missing"):
        reader[0]
    report = rollouts.verify(url(store))
    assert len(report.problems) == report.intact_groups == 1 and report.ignored == ["notes.txt"]
    path = f"{store.folder}/manifest/00000001.jsonl"
    line = store.files.cat_file(path)
    store.files.pipe_file(path, line.replace(b'"writer":"w"', b'"writer":"x"'))
    with pytest.raises(manifest.CorruptManifest, match="00000001.jsonl, line 1: damaged"):
        rollouts.read(url(store))


def test_reading_is_through_a_bounded_cache_that_heals(
    store, make_group, tmp_path, monkeypatch, flip
):
    for position in range(4):
        rollouts.write(url(store), [make_group(position, longest=500)], writer="w")
    reader = rollouts.read(url(store))
    size = reader.datasets[0].bytes
    reader[0], reader[0]
    gets = [path for method, path, _ in store.log if method == "GET" and store.bucket in path]
    assert len([path for path in gets if "array_record" in path]) == 1
    (cached,) = (path for path in (tmp_path / "cache").rglob("*array_record*"))
    flip(cached, 65600)
    assert rollouts.read(url(store))[0] == make_group(0, longest=500)  # fetched once more
    monkeypatch.setenv(cache.LIMIT_VARIABLE, str(2 * size))
    reader = rollouts.read(url(store))
    draw = random.Random(0)
    for number in [draw.randrange(4) for _ in range(30)]:
        assert reader[number] == make_group(number, longest=500)
    kept = [path.stat().st_size for path in (tmp_path / "cache").rglob("*array_record*")]
    assert 0 < sum(kept) <= 2 * size
