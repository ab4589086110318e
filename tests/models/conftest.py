"""The stored checkpoints of scripts/make_model_fixtures.py."""

import dataclasses
import shutil
import zlib
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
from flax import nnx

from grre_jax import models

STORED = Path(__file__).parent / "fixtures"


def edit_tensors(file, change):
    """Calls `change` with the tensors of a safetensors file, by name, and stores them again."""
    tensors = safetensors.numpy.load_file(file)
    change(tensors)
    safetensors.numpy.save_file(tensors, file)


@pytest.fixture
def checkpoint(tmp_path):
    """`checkpoint(name)` copies a stored checkpoint to where a test may damage it."""

    def copy(name="qwen2"):
        return Path(shutil.copytree(STORED / name, tmp_path / name))

    return copy


SHAPE = models.ModelConfig(
    vocab_size=29,
    hidden_size=16,
    intermediate_size=24,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=6,
)


def random_model(scale=0.3, **fields):
    """A model of two layers with every parameter random, norms, biases and low-rank terms too, by
    their names. Nothing is compiled for it.
    """
    names = ("dtype", "compute_dtype", "remat", "lora")
    options = {name: fields.pop(name) for name in names if name in fields}
    config = dataclasses.replace(SHAPE, **fields)
    graph, state = nnx.split(nnx.eval_shape(lambda: models.init(config, **options)))

    def fill(path, p):
        random = np.random.default_rng(zlib.crc32(jax.tree_util.keystr(path).encode()))
        return jnp.asarray(random.normal(scale=scale, size=p.shape).astype(p.dtype))

    return nnx.merge(graph, jax.tree_util.tree_map_with_path(fill, state))


@pytest.fixture(scope="session")
def small():
    """`small(**fields)`: see `random_model`."""
    return random_model
