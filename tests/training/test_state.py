import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from grre_jax import models, parallel
from grre_jax.training import step as training_state
from grre_jax.training.optimizer import OPTIMIZERS, OptimizerConfig, make_optimizer

from .test_step import CONFIG

CONFIG = dataclasses.replace(CONFIG, qkv_bias=True, qk_norm=True, tie_embeddings=False)


@pytest.fixture
def params():
    return {"up_proj": jnp.full((2, 4, 4), 2.0), "norm": jnp.full((2, 4), 2.0)}


def update(config, params, gradients):
    optimizer = make_optimizer(config)
    opt_state = jax.jit(optimizer.init)(params)
    return jax.jit(optimizer.update)(gradients, opt_state, params)[0]


def assert_updates(updates, factor, others, tolerance):
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, factor * y, rtol=tolerance), updates, others
    )


def test_gradients_are_clipped_by_their_global_norm(params):
    config = OptimizerConfig(name="sgd", learning_rate=1.0, b1=0.0, clip_norm=2.0)
    updates = update(config, params, params)
    norm = sum(float(jnp.square(x).sum()) for x in params.values()) ** 0.5
    assert_updates(updates, -2.0 / norm, params, 1e-5)


def test_updates_are_scaled_by_the_effective_sample_size(params):
    gradients = jax.tree.map(jnp.ones_like, params)
    optimizer = make_optimizer(OptimizerConfig(ess_exponent=0.5, ess_base=0.64))
    scale = jax.jit(optimizer.update)
    whole = update(OptimizerConfig(), params, gradients)
    for size, factor in ((0.16, 0.5), (0.9, 1)):
        state = optimizer.init(params)
        scaled, _ = scale(gradients, state, params, effective_sample_size=size)
        assert_updates(scaled, factor, whole, 1e-5)


@pytest.mark.parametrize("donate", [False, True])
def test_a_state_has_the_arrays_that_it_is_given(donate):
    model = models.Transformer(CONFIG, rngs=nnx.Rngs(0))
    before = jax.tree.map(np.array, models.parameters(model))
    mesh = parallel.make_mesh(parallel.MeshConfig())
    training_state.place(model, mesh)
    where = model.embed[...].unsafe_buffer_pointer()
    graph, params, _ = training_state.split(model)
    given = params if donate else training_state.copied(params, mesh)
    state = training_state.fresh(given, OptimizerConfig(), mesh)
    assert int(state.step) == 0 and all(x.sharding.mesh == mesh for x in jax.tree.leaves(state))
    assert (state.params["embed"].unsafe_buffer_pointer() == where) == donate
    after = models.parameters(nnx.merge(graph, state.params))
    jax.tree.map(np.testing.assert_array_equal, after, before)
    training_state.release(state)
    assert all(x.is_deleted() for x in jax.tree.leaves(state))
    assert model.embed[...].is_deleted() == donate


@pytest.mark.parametrize("name", sorted(OPTIMIZERS.keys() - {"sgd", "adafactor"}))
def test_a_step_moves_against_the_gradient_and_decays_matrices_alone(name, params):
    """By rate and decay, also after steps that moved by momentum, and with a rate of a schedule."""
    params["qkv_bias"] = jnp.full((2, 4), 2.0)
    fields = {"learning_rate": 0.05, "warmup_steps": 2, "clip_norm": 0.0}
    moved = []
    for decay in (0.0, 0.5):
        optimizer = make_optimizer(OptimizerConfig(name=name, weight_decay=decay, **fields))
        step = jax.jit(optimizer.update)
        updates, state = step(jax.tree.map(jnp.ones_like, params), optimizer.init(params), params)
        assert all((x < 0).all() for x in jax.tree.leaves(updates))
        for _ in range(2):
            updates, state = step(jax.tree.map(jnp.zeros_like, params), state, params)
        moved.append(updates)
    expected = jax.tree.map(jnp.zeros_like, params)
    expected["up_proj"] = -0.05 * 0.5 * params["up_proj"]
    for name, before in moved[0].items():
        np.testing.assert_allclose(moved[1][name] - before, expected[name], rtol=1e-3, atol=1e-6)


def test_muon_makes_every_matrix_orthogonal():
    draw = np.random.default_rng(0)
    shapes = {"up_proj": (2, 3, 5, 9), "embed": (5, 9)}
    gradients = {name: jnp.asarray(draw.normal(size=shape)) for name, shape in shapes.items()}
    optimizer = make_optimizer(OptimizerConfig(name="muon", learning_rate=0.5, clip_norm=0.0))
    updates, _ = jax.jit(optimizer.update)(gradients, optimizer.init(gradients), gradients)
    # Singular values near 1 (Newton-Schulz: within 0.3), times 0.2 sqrt(9) and the learning rate.
    values = np.linalg.svd(np.asarray(updates["up_proj"]), compute_uv=False) / (0.2 * 3 * 0.5)
    np.testing.assert_allclose(values, 1, atol=0.35)
    # The embedding's is Adam's first step, of its momentum ahead: the gradient's sign, scaled.
    np.testing.assert_allclose(updates["embed"] / -np.sign(gradients["embed"]), 0.7368, rtol=1e-3)


@pytest.mark.parametrize(
    "decay, middle, last", [("linear", 1.1, 0.2), ("cosine", 1.1, 0.2), ("none", 2.0, 2.0)]
)
def test_decays_end_at_their_fraction(decay, middle, last):
    config = OptimizerConfig(
        learning_rate=2.0, warmup_steps=10, decay=decay, decay_steps=110, final_fraction=0.1
    )
    rates = jax.vmap(config.schedule())(jnp.array([0, 9, 60, 500])).tolist()
    assert rates == pytest.approx([0.2, 2.0, middle, last])
