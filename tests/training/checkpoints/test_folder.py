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
from grre_jax.training.checkpoints import integrity
from grre_jax.training.checkpoints.folder import (
    Checkpoints,
    Keep,
    listed,
)
from grre_jax.training.optimizer import OptimizerConfig, make_optimizer
from grre_jax.training.state import TrainState, fresh


@pytest.fixture(scope="module")
def state():
    """A state with bits of every kind: float32 and bfloat16 parameters, optimiser moments that
    are not zero, counters.
    """
    mesh = parallel.make_mesh(parallel.MeshConfig())
    whole = parallel.replicated(mesh)
    draw = np.random.default_rng(0)
    params = {
        "embed": draw.normal(size=(7, 5)).astype(np.float32),
        "layers": {"q_proj": jnp.asarray(draw.normal(size=(2, 3, 4)), jnp.bfloat16)},
    }
    params["embed"][0, :3] = [1e-42, -0.0, np.inf]  # a subnormal, a signed zero, an infinity
    optimizer = make_optimizer(OptimizerConfig(learning_rate=0.1))
    state = fresh(jax.device_put(params, whole), optimizer, mesh)
    gradients = jax.tree.map(lambda p: jnp.asarray(draw.normal(size=p.shape), p.dtype), params)
    _, opt_state = jax.jit(optimizer.update)(gradients, state.opt_state, state.params)
    return TrainState(state.params, jax.device_put(opt_state, whole), state.step)


def at(state, step):
    return dataclasses.replace(state, step=jax.device_put(jnp.int32(step), state.step.sharding))


def assert_same_bits(left, right):
    assert jax.tree.structure(left) == jax.tree.structure(right)
    for a, b in zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True):
        assert a.dtype == b.dtype and a.sharding == b.sharding
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


def test_a_state_comes_back_bit_for_bit(state, tmp_path):
    checkpoints = Checkpoints(tmp_path / "c", Keep())
    checkpoints.save(at(state, 3), wait=True)
    other = jax.tree.map(lambda x: x + 1, state)
    checkpoints.save(at(other, 3), wait=True)  # a step that is there stays as it is
    checkpoints.close()
    checkpoints = Checkpoints(tmp_path / "c", Keep())
    empty = jax.tree.map(lambda x: jax.device_put(jnp.zeros_like(x), x.sharding), state)
    assert_same_bits(checkpoints.restore(empty), at(state, 3))
    assert_same_bits(checkpoints.restore(empty, 3), at(state, 3))
    assert_same_bits(checkpoints.restore_params(empty.params, 3), state.params)
    checkpoints.close()
    half = jax.tree.map(lambda x: jax.device_put(x.astype(jnp.float16), x.sharding), empty.params)
    wanted = jax.tree.map(lambda x: x.astype(jnp.float16), state.params)
    checkpoints = Checkpoints(tmp_path / "c", Keep(), read_only=True)
    assert_same_bits(checkpoints.restore_params(half, 3), wanted)


@pytest.mark.parametrize(
    "keep, expected",
    [
        (Keep(newest=1, every=3), [0, 3, 6, 7]),
        (Keep(newest=1, best=2), [0, 2, 5, 7]),
        (Keep(newest=1, best=1, metric="kl", smallest=True), [0, 4, 7]),
        (Keep(newest=2, needed=lambda step: step in (1, 4)), [0, 1, 4, 6, 7]),
    ],
)
def test_what_is_kept(state, tmp_path, keep, expected):
    """Steps 2, 4 and 5 were evaluated; a choice of the best looks at no others.

    A new process goes on with the same choice.
    """
    figures = {2: (0.9, 2.0), 4: (0.1, 1.0), 5: (0.5, 3.0)}
    scores = {step: {"accuracy": a, "kl": b} for step, (a, b) in figures.items()}
    for steps in (range(6), (6, 7)):
        checkpoints = Checkpoints(tmp_path / "c", keep)
        for step in steps:
            checkpoints.save(at(state, step), wait=True, metrics=scores.get(step))
        checkpoints.close()
    assert listed(tmp_path / "c") == checkpoints.steps == expected


@pytest.fixture
def small_disk(tmp_path):
    """`small_disk(kilobytes)`: a folder on a file system of that size."""
    folder = tmp_path / "disk"
    folder.mkdir()

    def mount(kilobytes):
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "none", folder],
            capture_output=True,
            text=True,
        )
        if done.returncode:
            pytest.skip(f"no right to mount a file system: {done.stderr.strip()}")
        return folder

    yield mount
    subprocess.run(["umount", "-l", folder], capture_output=True)


def test_a_full_disk_is_said_and_the_checkpoint_before_restores(state, small_disk):
    draw = np.random.default_rng(0)  # what cannot be compressed
    random = draw.normal(size=60_000).astype(np.float32)
    big = jax.tree.map(lambda x: jax.device_put(random, x.sharding) if x.ndim == 2 else x, state)
    folder = small_disk(1800) / "c"
    checkpoints = Checkpoints(folder, Keep(5))
    with pytest.raises(DataError) as caught:
        for step in (1, 2, 3, 4):
            checkpoints.save(at(big, step))
        checkpoints.wait()
    left = listed(folder)
    assert f"step {left[-1] + 1}" in str(caught.value) and str(folder) in str(caught.value)
    for path in folder.glob("*-tmp*"):
        shutil.rmtree(path, ignore_errors=True)
    checkpoints = Checkpoints(folder, Keep(5))
    assert_same_bits(checkpoints.restore(jax.tree.map(lambda x: x * 0, big)).params, big.params)
    checkpoints.close()


def test_damaged_bits_are_never_taken_for_parameters(state, tmp_path):
    """Wherever a bit flips, what is restored is what was saved, or an error that says from where
    to go on.
    """
    draw, folder = random.Random(0), tmp_path / "c"
    checkpoints = Checkpoints(folder, Keep())
    checkpoints.save(at(state, 1), wait=True)
    checkpoints.save(at(state, 2), wait=True)
    checkpoints.close()
    files = [path for path in (folder / "2").rglob("*") if path.is_file() and path.stat().st_size]
    largest, refused = max(files, key=lambda path: path.stat().st_size), 0
    for path in [*files, *[largest] * 30]:
        whole = path.read_bytes()
        damaged = bytearray(whole)
        damaged[draw.randrange(len(whole))] ^= 1 << draw.randrange(8)
        path.write_bytes(damaged)
        checkpoints = Checkpoints(folder, Keep(), read_only=True)
        try:
            assert_same_bits(checkpoints.restore(at(state, 0)), at(state, 2))
        except DataError as error:
            refused += 1
            assert "c/2" in str(error) and "step 1" in str(error)
        checkpoints.close()
        path.write_bytes(whole)
    assert refused > 20


def test_an_array_that_is_not_what_was_stored_is_named(state, tmp_path, monkeypatch):
    checkpoints, of = Checkpoints(tmp_path / "c", Keep()), integrity.of
    monkeypatch.setattr(
        integrity, "of", lambda tree: jax.tree.map(lambda x: x.at[0].add(1), of(tree))
    )
    checkpoints.save(at(state, 1), wait=True)
    checkpoints.close()
    monkeypatch.undo()
    with pytest.raises(DataError, match=r"params\['embed'\]"):
        Checkpoints(tmp_path / "c", Keep()).restore_params(state.params, 1)


def test_checkpoints_of_earlier_versions_have_no_checksums(state, tmp_path, monkeypatch):
    checkpoints = Checkpoints(tmp_path / "c", Keep())
    monkeypatch.setattr(integrity, "beside", lambda parts: parts)
    checkpoints.save(at(state, 1), wait=True)
    assert_same_bits(checkpoints.restore(at(state, 0)), at(state, 1))
    assert_same_bits(checkpoints.restore_params(state.params, 1), state.params)
    checkpoints.close()


def test_what_a_killed_writer_left_does_not_count(state, tmp_path):
    """Orbax writes under a temporary name: a folder that was never finished is no checkpoint,
    and is cleaned away.
    """
    checkpoints = Checkpoints(tmp_path / "c", Keep())
    checkpoints.save(at(state, 1), wait=True)
    checkpoints.close()
    torn = tmp_path / "c" / "2.orbax-checkpoint-tmp"
    torn.mkdir()
    (torn / "half").write_text("x")
    checkpoints = Checkpoints(tmp_path / "c", Keep())
    assert checkpoints.steps == [1]
    while torn.exists():  # Orbax cleans in the background
        time.sleep(0.05)
    checkpoints.close()
