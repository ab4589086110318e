"""Scanned, the step's program does not grow with the model's depth; one compilation serves all
layers.
"""

import dataclasses

import jax
import numpy as np
import pytest
from flax import nnx

from grre_jax import objectives, parallel
from grre_jax.models import ModelConfig, Transformer
from grre_jax.training import optimizer as training_optimizer
from grre_jax.training import state as training_state
from grre_jax.training.data.pack import BatchShape, pack
from grre_jax.training.step import make_train_step

CONFIG = ModelConfig(
    vocab_size=16,
    hidden_size=8,
    intermediate_size=12,
    num_layers=4,
    num_heads=2,
    num_kv_heads=1,
    head_dim=4,
)


def program(make_group, layers):
    """Operations of the step's program before it is optimised."""
    windows = tuple(i % 3 > 0 for i in range(layers))
    config = dataclasses.replace(
        CONFIG, num_layers=layers, sliding_window=3, sliding_layers=windows
    )
    settings = training_optimizer.OptimizerConfig()
    optimizer, mesh = (
        training_optimizer.make_optimizer(settings),
        parallel.make_mesh(parallel.MeshConfig(), jax.devices()[:1]),
    )
    graph, state = training_state.create(
        Transformer(config, rngs=nnx.Rngs(0), unroll=False, remat="full"), optimizer, mesh
    )
    batch = pack([make_group(0), make_group(1)], BatchShape.of_run(2, 3, 3, 4, 0, 1))
    step = make_train_step(graph, optimizer, settings.schedule(), mesh)
    return (
        step.lower(state, batch, objectives.algorithm("grpo"), np.float32(1.0), jax.random.key(0))
        .as_text()
        .count(" = ")
    )


@pytest.mark.slow
def test_a_scanned_program_does_not_grow_with_depth(make_group):
    assert program(make_group, 32) == program(make_group, 4)
