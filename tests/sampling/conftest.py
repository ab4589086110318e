import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from grre_jax import models
from grre_jax.models.config import ModelConfig

VOCAB = 24
ENDS = (0, 5, 11, 17)  # 0 is also what rows are padded with


def make_model(**options):
    """A small model whose attention matters. Nothing is compiled for it."""
    shape = dict(
        vocab_size=VOCAB,
        hidden_size=16,
        intermediate_size=24,
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        head_dim=8,
        eos_ids=ENDS,
    )
    config = ModelConfig(**shape | options)
    graph, params = nnx.split(nnx.eval_shape(lambda: models.Transformer(config, rngs=nnx.Rngs(0))))
    random = np.random.default_rng(3)

    def fill(p):
        # Matrices of the usual size attend nearly evenly: larger ones make position and context
        # matter.
        scale = 2.5 * p.shape[-2] ** -0.5 if p.ndim == 3 else 0.5
        return jnp.asarray(random.normal(scale=scale, size=p.shape).astype(p.dtype))

    return nnx.merge(graph, jax.tree.map(fill, params))


@pytest.fixture(scope="session")
def tiny():
    return make_model
