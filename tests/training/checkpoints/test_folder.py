import dataclasses
import random
import shutil
import subprocess
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grre_jax import parallel
from grre_jax.errors import DataError
from grre_jax.training import checkpoints as training_checkpoints
from grre_jax.training.checkpoints import Checkpoints, listed
from grre_jax.training.config.sections import CheckpointConfig
from grre_jax.training.optimizer import OptimizerConfig, make_optimizer
from grre_jax.training.step import TrainState, fresh


@pytest.fixture(scope="module")
def state():
    """A state with bits of every kind: float32 and bfloat16 parameters, optimiser moments that
    are not zero, counters.
    """
    mesh = parallel.make_mesh(parallel.MeshConfig())
    draw = np.random.default_rng(0)

    def tree():
        embed = draw.normal(size=(7, 5)).astype(np.float32)
        return {"embed": embed, "q_proj": jnp.asarray(draw.normal(size=(2, 3, 4)), jnp.bfloat16)}

    params = tree()
    params["embed"][0, :3] = [1e-42, -0.0, np.inf]  # a subnormal, a signed zero, an infinity
    whole = parallel.replicated(mesh)
    settings = OptimizerConfig(learning_rate=0.1)
    state = fresh(jax.device_put(params, whole), settings, mesh)
    _, opt_state = jax.jit(make_optimizer(settings).update)(tree(), state.opt_state, state.params)
    return TrainState(state.params, jax.device_put(opt_state, whole), state.step)


def at(state, step):
    return dataclasses.replace(state, step=jax.device_put(jnp.int32(step), state.step.sharding))


def assert_same_bits(left, right):
    assert jax.tree.structure(left) == jax.tree.structure(right)
    for a, b in zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True):
        assert a.dtype == b.dtype and a.sharding == b.sharding
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


def test_a_state_comes_back_bit_for_bit(state, saved):
    folder = saved(3)
    checkpoints = Checkpoints(folder, read_only=True)

    def empty(dtype=None):
        return jax.tree.map(lambda x: jax.device_put(jnp.zeros_like(x, dtype), x.sharding), state)

    assert_same_bits(checkpoints.restore(empty()), at(state, 3))
    assert_same_bits(checkpoints.restore_params(empty().params, 3), state.params)
    half = jax.tree.map(lambda x: x.astype(jnp.float16), state.params)
    assert_same_bits(checkpoints.restore_params(empty(jnp.float16).params, 3), half)


@pytest.mark.parametrize(
    "keep, needed, expected",
    [
        ({"keep_every": 3}, None, [0, 3, 5]),
        ({"best": 1}, None, [0, 2, 5]),
        # Evaluations without the figure are the worst.
        ({"best": 1, "best_metric": "greedy_accuracy"}, None, [0, 4, 5]),
        ({}, lambda step: step in (1, 3), [0, 1, 3, 5]),
    ],
)
def test_what_is_kept(state, tmp_path, keep, needed, expected):
    """Besides the last; a choice of the best looks at no steps that were not evaluated. A new
    process goes on with the same choice.
    """
    scores = {2: {"accuracy": 0.9}, 4: {"accuracy": 0.1, "greedy_accuracy": 0.2}}
    for steps in (range(5), [5]):
        checkpoints = Checkpoints(tmp_path / "c", CheckpointConfig(keep=1, **keep), needed)
        for step in steps:
            checkpoints.save(at(state, step), wait=True, metrics=scores.get(step))
        checkpoints.close()
    assert listed(tmp_path / "c") == checkpoints.steps == expected


def test_a_full_disk_is_said_and_the_checkpoint_before_restores(state, tmp_path):
    mount = ["mount", "-t", "tmpfs", "-o", "size=1800k", "none", tmp_path]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("no right to mount a file system")
    try:
        noise = np.random.default_rng(0).normal(size=60_000)  # cannot be compressed
        big = jax.tree.map(lambda x: jax.device_put(noise, x.sharding) if x.ndim == 2 else x, state)
        checkpoints = Checkpoints(tmp_path / "c", CheckpointConfig(keep=5))
        with pytest.raises(DataError) as caught:
            for step in (1, 2, 3, 4):
                checkpoints.save(at(big, step), wait=True)
        last = listed(tmp_path / "c")[-1]
        assert f"step {last + 1}" in str(caught.value) and str(tmp_path) in str(caught.value)
        for path in (tmp_path / "c").glob("*-tmp*"):
            shutil.rmtree(path, ignore_errors=True)
        found = Checkpoints(tmp_path / "c").restore(jax.tree.map(jnp.zeros_like, big))
        assert_same_bits(found.params, big.params)
    finally:
        subprocess.run(["umount", "-l", tmp_path], capture_output=True)


def test_damaged_bits_are_never_taken_for_parameters(state, saved, flip):
    """Wherever a bit flips, what is restored is what was saved, or an error that says from where
    to go on.
    """
    folder = saved(1, 2)
    draw = random.Random(0)
    files = [path for path in (folder / "2").rglob("*") if path.is_file() and path.stat().st_size]
    largest = max(files, key=lambda path: path.stat().st_size)
    refused = 0
    for path in [*files, *[largest] * 2]:
        whole = path.read_bytes()
        flip(path, draw.randrange(len(whole)), draw.randrange(8))
        checkpoints = Checkpoints(folder, read_only=True)
        try:
            assert_same_bits(checkpoints.restore(at(state, 0)), at(state, 2))
        except DataError as error:
            refused += 1
            assert "c/2" in str(error) and "step 1" in str(error)
        checkpoints.close()
        path.write_bytes(whole)
    assert refused > 8


def test_what_a_killed_writer_left_does_not_count(saved):
    """Orbax writes under a temporary name: a folder that was never finished is no checkpoint,
    and is cleaned away.
    """
    torn = saved(1) / "2.orbax-checkpoint-tmp"
    torn.mkdir()
    (torn / "half").write_text("x")
    checkpoints = Checkpoints(torn.parent)
    assert checkpoints.steps == [1]
    while torn.exists():  # Orbax cleans in the background
        time.sleep(0.05)
    checkpoints.close()


@pytest.fixture
def saved(state, tmp_path):
    """`saved(*steps)`: the folder of these checkpoints, whose writer has ended."""

    def save(*steps):
        checkpoints = Checkpoints(tmp_path / "c")
        for step in steps:
            checkpoints.save(at(state, step), wait=True)
        checkpoints.close()
        return tmp_path / "c"

    return save


def test_checksums_name_an_array_that_is_not_what_was_stored(state, saved, monkeypatch):
    def wrong(tree):
        return jax.tree.map(lambda x: x.at[0].add(1), right(tree))

    right = training_checkpoints.checksums
    monkeypatch.setattr(training_checkpoints, "checksums", wrong)
    folder = saved(2)
    checkpoints = Checkpoints(folder, read_only=True)
    monkeypatch.setattr(training_checkpoints, "checksums", right)
    with pytest.raises(DataError, match=r"params: .*embed"):
        checkpoints.restore_params(state.params, 2)
    with pytest.raises(DataError, match=r"step 9.*\[2\]"):
        checkpoints.restore_params(state.params, 9)


def test_an_unreadable_checkpoint_is_refused_with_the_first_error(state, saved, monkeypatch):
    def load(*_):
        try:
            raise OSError("disk 7")
        except OSError:
            raise ValueError("handler")  # noqa: B904 - as Orbax raises: a context, no cause

    checkpoints = Checkpoints(saved(2), read_only=True)
    monkeypatch.setattr(training_checkpoints.ocp, "load_checkpointables", load)
    with pytest.raises(DataError, match="OSError.*disk 7"):
        checkpoints.restore_params(state.params, 2)
