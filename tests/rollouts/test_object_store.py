"""Rollout folders in an object store: moto's S3 server on loopback, with faults put between it
and us.
"""

import pytest

from grre_jax import rollouts
from grre_jax.errors import DataError, UsageError
from grre_jax.storage.files import files_below
from grre_jax.storage.remote import Store


@pytest.fixture
def url(store, folder):
    """A copy of `folder`."""
    url = f"s3://{store.folder}"
    Store(url).upload(files_below(folder), folder)
    return url


def test_a_folder_in_an_object_store_is_a_folder(store, url, folder, make_group):
    reader = rollouts.read(url)
    store.log.clear()
    assert list(reader) == list(rollouts.read(folder))
    gets = [path for method, path, _ in store.log if method == "GET" and "array_record" in path]
    assert len(gets) == 3  # a file is copied once
    report = rollouts.verify(url)
    assert report.ok and report.intact_groups == 12
    with pytest.raises(UsageError, match=url):
        rollouts.write(url, [make_group(50)], writer="w")


def test_an_empty_a_foreign_and_a_missing_place(store):
    assert len(rollouts.read(f"s3://{store.folder}")) == 0
    store.files.pipe_file(f"{store.bucket}/photos/a.jpg", b"x")
    with pytest.raises(DataError, match="/photos"):
        rollouts.read(f"s3://{store.bucket}/photos")
    store.plan = lambda *_: 403
    with pytest.raises(DataError, match="run/rollouts"):
        rollouts.read(f"s3://{store.folder}")


def test_damaged_and_missing_objects(store, url, make_group):
    entry = rollouts.read(url).datasets[0]
    name = f"{store.folder}/{entry.name}/{entry.data_file}"
    content = bytearray(store.files.cat_file(name))
    content[65600] ^= 1
    store.files.pipe_file(name, bytes(content))
    assert "SHA-256" in str(rollouts.verify(url).problems[0])
    store.files.rm_file(name)
    reader = rollouts.read(url)
    with pytest.raises(rollouts.CorruptShard) as caught:
        reader[0]
    assert caught.value.file == f"s3://{name}"
    assert reader[4] == make_group(4, version=1)
