"""Checkpoints in an object store: a checkpoint is there whole or not at all, whoever is killed,
cut off or late.
"""

import hashlib
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grre_jax import parallel
from grre_jax.errors import DataError
from grre_jax.storage.store_path import StorePath
from grre_jax.training.checkpoints.contents import CheckpointGone, listed
from grre_jax.training.checkpoints.folder import opened, read_params
from grre_jax.training.checkpoints.retention import Keep
from grre_jax.training.state import TrainState


def at(step, scale=1.0):
    """A state with bits of every kind."""
    whole = parallel.replicated(parallel.make_mesh(parallel.MeshConfig()))
    params = {
        "embed": np.array([np.float32(1e-42), -0.0, np.inf, scale, step], np.float32),
        "q": jnp.asarray([scale, 0.1], jnp.bfloat16),
    }
    return jax.device_put(
        TrainState(params, [np.arange(3), {"mu": np.full((2, 2), scale)}], np.int32(step)), whole
    )


def bits(state):
    return [(x.dtype, x.sharding, np.asarray(x).tobytes()) for x in jax.tree.leaves(state)]


@pytest.fixture
def folder(store):
    return StorePath(f"s3://{store.bucket}/run/checkpoints")


def names(folder):
    return sorted(path.name.split("-")[0] for path in folder.iterdir())


def local(tmp_path):
    """What is left on the local disk."""
    return [path for path in (tmp_path / "cache" / "runs").rglob("*") if path.is_file()]


def test_a_state_comes_back_bit_for_bit(folder, tmp_path, store):
    checkpoints = opened(folder, Keep())
    checkpoints.save(at(3), wait=True)
    checkpoints.save(at(3, scale=2.0), wait=True)  # a step that is there stays as it is
    checkpoints.close()
    checkpoints = opened(folder, Keep(), read_only=True)
    assert checkpoints.steps == listed(folder) == [3]
    like = at(0, scale=0.0)
    assert bits(checkpoints.restore(like)) == bits(checkpoints.restore(like, 3)) == bits(at(3))
    before = len(store.log)
    assert bits(checkpoints.restore_params(like.params, 3)) == bits(at(3).params)
    fetched = [path for method, path, _ in store.log[before:] if method == "GET"]
    assert any("/params/" in path for path in fetched) and not any(
        "/training/" in path for path in fetched
    )
    with pytest.raises(DataError, match="step 2"):
        checkpoints.restore(like, 2)
    checkpoints.close()
    assert not local(tmp_path)


def test_what_is_kept(folder):
    scores = {1: {"accuracy": 0.9}, 3: {"accuracy": 0.1}, 4: {"accuracy": 0.5}}
    for steps in (range(4), range(4, 7)):
        checkpoints = opened(folder, Keep(newest=1, best=1, every=5, needed=lambda step: step == 2))
        for step in steps:
            checkpoints.save(at(step), wait=True, metrics=scores.get(step))
        checkpoints.close()
    assert listed(folder) == [0, 1, 2, 5, 6]
    assert names(folder) == sorted(
        f"{step}{end}" for step in (0, 1, 2, 5, 6) for end in ("", ".json")
    )


def test_an_upload_that_fails_is_no_checkpoint(folder, store):
    checkpoints = opened(folder, Keep())
    checkpoints.save(at(1), wait=True)
    store.plan = lambda method, path, _: 403 if method == "PUT" and "_METADATA" in path else None
    with pytest.raises(DataError, match="step 2"):
        checkpoints.save(at(2), wait=True)
    store.plan = None
    assert listed(folder) == [1] and "2" in names(folder)
    checkpoints = opened(folder, Keep())  # the next learner clears up
    assert names(folder) == ["1", "1.json"] and bits(checkpoints.restore(at(0))) == bits(at(1))
    checkpoints.close()


def test_a_learner_that_was_replaced_enters_nothing(folder):
    def replaced():
        raise DataError("another took over")

    checkpoints = opened(folder, Keep(), before=replaced)
    with pytest.raises(DataError, match="another took over"):
        checkpoints.save(at(1), wait=True)
    assert listed(folder) == []


def test_a_checkpoint_that_goes_while_it_is_read_is_gone(folder, store):
    checkpoints = opened(folder, Keep(newest=9))
    for step in (1, 2):
        checkpoints.save(at(step), wait=True)
    with pytest.raises(CheckpointGone, match=r"step 7 is gone from s3://.*holds \[1, 2\]"):
        read_params(folder, 7, at(0).params)

    def removed(method, path, _):
        if method == "GET" and "/params/" in path:
            store.plan = None
            checkpoints._remove(1)

    store.plan = removed
    with pytest.raises(CheckpointGone, match=r"step 1 is gone from s3://.*holds \[2\]"):
        read_params(folder, 1, at(0).params)
    checkpoints.close()


def test_damage_is_named(folder, store, tmp_path):
    checkpoints = opened(folder, Keep())
    checkpoints.save(at(1), wait=True)
    entered = json.loads((folder / "1.json").read_text())
    name = next(name for name in entered["files"] if name.startswith("params/d/"))
    whole = (folder / entered["folder"] / name).read_bytes()
    assert entered["files"][name] == [len(whole), hashlib.sha256(whole).hexdigest()]
    store.files.pipe_file(
        f"{store.bucket}/run/checkpoints/{entered['folder']}/{name}",
        whole[:-1] + bytes([whole[-1] ^ 1]),
    )
    with pytest.raises(DataError, match=name):
        read_params(folder, 1, at(0).params)
    (folder / entered["folder"] / name).unlink()
    with pytest.raises(DataError, match=entered["folder"]) as caught:
        read_params(folder, 1, at(0).params)
    assert not isinstance(caught.value, CheckpointGone)
    (folder / "1.json").write_text("{")
    with pytest.raises(DataError, match=r"1\.json cannot be read"):
        read_params(folder, 1, at(0).params)
    store.plan = lambda *_: 403
    with pytest.raises(DataError, match="checkpoints"):
        listed(folder)
    store.plan = None
    checkpoints.close()
    assert not local(tmp_path)
