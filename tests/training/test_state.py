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


@pytest.fixture(scope="module")
def params():
    return nnx.to_pure_dict(nnx.state(models.Transformer(CONFIG, rngs=nnx.Rngs(0))))


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
    scaled, _ = optimizer.update(gradients, optimizer.init(params), params, **given)
    assert_updates(scaled, factor, update(OptimizerConfig(), params, gradients), 1e-5)


@pytest.fixture
def model():
    return models.Transformer(CONFIG, rngs=nnx.Rngs(0))


def test_a_state_is_a_copy_of_the_model_laid_out_over_the_mesh(model):
    mesh = parallel.make_mesh(parallel.MeshConfig())
    optimizer = make_optimizer(OptimizerConfig())
    before = {name: np.array(value) for name, value in models.parameters(model).items()}
    graph, state = training_state.create(model, optimizer, mesh)
    assert int(state.step) == 0 and all(x.sharding.mesh == mesh for x in jax.tree.leaves(state))
    copied = models.parameters(nnx.merge(graph, state.params))
    jax.tree.map(np.testing.assert_array_equal, dict(copied), before)
    jax.jit(lambda s: jax.tree.map(lambda x: x + 1, s), donate_argnums=0)(state)  # as the step does
    assert state.params["embed"].is_deleted()
    # The caller's model is still there.
    jax.tree.map(np.testing.assert_array_equal, dict(models.parameters(model)), before)


def test_a_model_that_is_given_away_is_not_copied(model):
    mesh = parallel.make_mesh(parallel.MeshConfig())
    before = {name: np.array(value) for name, value in models.parameters(model).items()}
    training_state.place(model, mesh)
    placed = models.parameters(model)
    jax.tree.map(np.testing.assert_array_equal, dict(placed), before)
    assert all(value.sharding.mesh == mesh for value in placed.values())
    where = {name: value.unsafe_buffer_pointer() for name, value in placed.items()}
    optimizer = make_optimizer(OptimizerConfig())
    graph, state = training_state.create(model, optimizer, mesh, donate=True)
    kept = models.parameters(nnx.merge(graph, state.params))
    assert {name: value.unsafe_buffer_pointer() for name, value in kept.items()} == where
    training_state.release(state)
    assert all(x.is_deleted() for x in jax.tree.leaves(state)) and model.embed[...].is_deleted()


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_every_optimiser_descends_and_decays_matrices_alone(name):
    config = OptimizerConfig(name=name, learning_rate=0.05, weight_decay=0.5, clip_norm=1.0)
    optimizer = make_optimizer(config)
    params = {"up_proj": jnp.full((2, 4, 4), 2.0), "norm": jnp.full((2, 4), 2.0)}
    params["qkv_bias"] = jnp.zeros((2, 4))
    state, start = optimizer.init(params), params

    def loss(params):
        return jnp.square(params["up_proj"] - 1).sum() + jnp.square(params["norm"] - 1).sum()

    for _ in range(5):
        updates, state = optimizer.update(jax.grad(loss)(params), state, params)
        params = optax.apply_updates(params, updates)
    assert float(loss(params)) < float(loss(start))
    still, state = jax.tree.map(jnp.zeros_like, start), optimizer.init(start)
    updates, _ = optimizer.update(still, state, start)
    # No gradient: what moves is decay.
    assert (np.asarray(updates["up_proj"]) < 0).all()
    assert not np.any(updates["norm"]) and not np.any(updates["qkv_bias"])


def test_decays_end_at_their_fraction():
    for decay, middle in (("linear", 0.55), ("cosine", 0.55), ("none", 1.0)):
        config = OptimizerConfig(
            learning_rate=2.0, warmup_steps=10, decay=decay, decay_steps=110, final_fraction=0.1
        )
        rate = config.schedule()
        assert [float(rate(count)) for count in (0, 9, 60)] == pytest.approx(
            [0.2, 2.0, 2.0 * middle]
        )
        assert float(rate(500)) == pytest.approx(2.0 if decay == "none" else 0.2)
