import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from grre_jax import models, parallel
from grre_jax.training import state as training_state
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
    huge = jax.tree.map(lambda p: jnp.full_like(p, 1e3), params)
    # With eps far above the gradients Adam's step is proportional to them, so the clip shows in it.
    free, clipped = (
        update(OptimizerConfig(learning_rate=1.0, eps=1e6, clip_norm=clip), params, huge)
        for clip in (0.0, 2.0)
    )
    norm = 1e3 * sum(p.size for p in jax.tree.leaves(params)) ** 0.5
    assert_updates(clipped, 2.0 / norm, free, 1e-2)


@pytest.mark.parametrize("size, factor", [(0.16, 0.5), (0.9, 1), (None, 1)])
def test_updates_are_scaled_by_the_effective_sample_size(params, size, factor):
    gradients = jax.tree.map(jnp.ones_like, params)
    optimizer = make_optimizer(OptimizerConfig(ess_exponent=0.5, ess_base=0.64))
    given = {} if size is None else {"effective_sample_size": size}
    scaled, _ = jax.jit(optimizer.update)(gradients, optimizer.init(params), params, **given)
    assert_updates(scaled, factor, update(OptimizerConfig(), params, gradients), 1e-5)


def arrays(model):
    return {name: np.array(value) for name, value in models.parameters(model).items()}


@pytest.mark.parametrize("donate", [False, True])
def test_a_state_is_a_copy_of_the_model_unless_it_is_given_away(donate):
    model = models.Transformer(CONFIG, rngs=nnx.Rngs(0))
    before = arrays(model)
    mesh = parallel.make_mesh(parallel.MeshConfig())
    training_state.place(model, mesh)
    assert all(value.sharding.mesh == mesh for value in models.parameters(model).values())
    where = model.embed[...].unsafe_buffer_pointer()
    optimizer = make_optimizer(OptimizerConfig())
    graph, state = training_state.create(model, optimizer, mesh, donate=donate)
    assert int(state.step) == 0 and all(x.sharding.mesh == mesh for x in jax.tree.leaves(state))
    assert (state.params["embed"].unsafe_buffer_pointer() == where) == donate
    jax.tree.map(np.testing.assert_array_equal, arrays(nnx.merge(graph, state.params)), before)
    training_state.release(state)
    assert all(x.is_deleted() for x in jax.tree.leaves(state))
    assert model.embed[...].is_deleted() == donate


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_every_optimiser_descends_and_decays_matrices_alone(name, params):
    config = OptimizerConfig(name=name, learning_rate=0.05, weight_decay=0.5, clip_norm=1.0)
    optimizer = make_optimizer(config)
    params["qkv_bias"] = jnp.zeros((2, 4))

    @jax.jit
    def step(params, factor):
        gradient = jax.grad(lambda params: factor * loss(params))(params)
        return optimizer.update(gradient, optimizer.init(params), params)[0]

    def loss(params):
        return jnp.square(params["up_proj"] - 1).sum() + jnp.square(params["norm"] - 1).sum()

    assert loss(optax.apply_updates(params, step(params, 1.0))) < loss(params)
    # No gradient: what moves is decay.
    updates = step(params, 0.0)
    assert (np.asarray(updates["up_proj"]) < 0).all()
    assert not np.any(updates["norm"]) and not np.any(updates["qkv_bias"])


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_a_step_decays_by_rate_and_decay_alone(name, params):
    """Also after steps that moved by momentum, and with a rate of a schedule."""
    fields = {"learning_rate": 0.05, "warmup_steps": 2, "clip_norm": 0.0}
    changes = []
    for decay in (0.0, 0.5):
        optimizer = make_optimizer(OptimizerConfig(name=name, weight_decay=decay, **fields))
        state = optimizer.init(params)
        for factor in (1.0, 0.0, 0.0):
            gradient = jax.tree.map(lambda x, factor=factor: jnp.full_like(x, factor), params)
            updates, state = jax.jit(optimizer.update)(gradient, state, params)
        changes.append(updates["up_proj"])
    expected = -0.05 * 0.5 * params["up_proj"]
    np.testing.assert_allclose(changes[1] - changes[0], expected, rtol=1e-3, atol=1e-6)


def test_muon_makes_every_matrix_orthogonal():
    random = np.random.default_rng(0)
    gradients = {"up_proj": random.normal(size=(2, 3, 5, 9)), "embed": random.normal(size=(5, 9))}
    gradients = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), gradients)
    optimizer = make_optimizer(OptimizerConfig(name="muon", learning_rate=0.5, clip_norm=0.0))
    updates, _ = jax.jit(optimizer.update)(gradients, optimizer.init(gradients), gradients)
    # Singular values near 1 (Newton-Schulz: within 0.3), times 0.2 sqrt(9) and the learning rate.
    values = np.linalg.svd(np.asarray(updates["up_proj"]), compute_uv=False) / (0.2 * 3 * 0.5)
    np.testing.assert_allclose(values, 1, atol=0.35)
    # Adam's first step is the gradient's sign, times what looking ahead makes of it.
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
