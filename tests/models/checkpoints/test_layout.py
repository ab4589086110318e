"""Parameters and the checkpoint's tensors that they hold."""

import jax.numpy as jnp
import numpy as np

from grre_jax import models
from grre_jax.models.checkpoints import layout

CONFIG = models.ModelConfig(
    vocab_size=7,
    hidden_size=6,
    intermediate_size=5,
    num_layers=1,
    num_heads=6,
    num_kv_heads=2,
    head_dim=4,
    qkv_bias=True,
)


def one_layer():
    """A layer's slice of every stacked parameter, each number another."""
    return {
        name.removeprefix("layers."): value[0]
        for name, value in models.parameters(models.init(CONFIG)).items()
        if name.startswith("layers.")
    }


def test_split_undoes_join_in_the_stored_shapes():
    for name, value in one_layer().items():
        value = jnp.arange(value.size, dtype=jnp.float32).reshape(value.shape)
        pieces = layout.split(CONFIG, name, value)
        assert {k: v.shape for k, v in pieces.items()} == layout.stored_shapes(
            CONFIG, name, value.shape
        )
        assert tuple(pieces) == layout.pieces(name)
        np.testing.assert_array_equal(layout.join(CONFIG, name, pieces), value)


def test_a_group_is_its_queries_then_its_key_then_its_value():
    q, k, v = jnp.arange(24), 100 + jnp.arange(8), 200 + jnp.arange(8)
    joined = layout.join(CONFIG, "qkv_bias", {"q_bias": q, "k_bias": k, "v_bias": v})
    np.testing.assert_array_equal(
        joined,
        [
            *range(12),
            *range(100, 104),
            *range(200, 204),
            *range(12, 24),
            *range(104, 108),
            *range(204, 208),
        ],
    )
