"""Runs inside one graph: the same samples, rewards, gradients and schedule as the ordinary
road's.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from grre_jax import objectives, sampling
from grre_jax.config import Regime
from grre_jax.random_streams import Purpose, run_key
from grre_jax.rollouts.schema import Group
from grre_jax.training.data import pack
from grre_jax.training.optimizer import OptimizerConfig, make_optimizer
from grre_jax.training.step import loss_and_gradient
from research.in_graph import batch as graph_data, run as graph_run
from research.in_graph.batch import STREAM
from research.in_graph.run import Inputs, Schedule
from tests.research.tiny import TINY

SCALE = dataclasses.replace(TINY, groups=3, samples=4, questions=12)
STEPS, FILL, RING, RATE, SEED = 3, 2, 3, 1e-2, 5
MENU = tuple(
    jax.tree.map(jnp.float32, objectives.algorithm(name, **options))
    for name, options in (
        ("rec_oneside_is", {"epsilon_low": 0.01, "epsilon_high": 0.01}),
        ("red_drop", {}),
        ("grpo", {"kl_coef": 0.1}),
    )
)


@pytest.fixture(scope="module", autouse=True)
def rewards_of_a_random_model():
    """Rewards that a model without training gets too; the task's own have a test of theirs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            graph_data,
            "verdicts",
            lambda _, prompts, tokens, lengths: (tokens.sum(1) % 3 == 0).astype(jnp.float32),
        )
        yield


@pytest.fixture(scope="module")
def start():
    return SCALE.parameters(jax.random.key(3))


@pytest.fixture(scope="module")
def simulate(start):
    program = graph_run.compiled(SCALE, STEPS, FILL, RING, 0)

    def simulate(choice, regime, stored=0, seed=SEED):
        inputs = Inputs(choice, MENU, RATE, 0.0, Schedule.of(regime, stored), seed, start)
        return program(jax.tree.map(jnp.asarray, inputs))

    return simulate


def prompts_of(step):
    return SCALE.task.questions_batch(np.arange(SCALE.groups) + SEED * STREAM + step * SCALE.groups)


def groups_of(drawn, step, version):
    """The batch as the ordinary road stores it."""
    for number in range(SCALE.groups):
        own = slice(number * SCALE.samples, (number + 1) * SCALE.samples)
        lengths = np.asarray(drawn.lengths[own])
        tokens, logprobs = (
            np.concatenate([row[:n] for row, n in zip(x[own], lengths, strict=True)])
            for x in (np.asarray(drawn.tokens), np.asarray(drawn.logprobs))
        )
        yield Group(
            group_id=f"{step}:{number}",
            prompt="",
            texts=[""] * SCALE.samples,
            rewards=np.asarray(drawn.rewards[own]),
            prompt_tokens=np.asarray(drawn.prompts[number]),
            lengths=lengths,
            tokens=tokens,
            behavior_logprobs=logprobs,
            policy_version=np.full(SCALE.samples, version),
        )


@pytest.mark.parametrize("choice", [0, 1, 2])
def test_steps_in_the_graph_are_the_train_steps(start, simulate, choice):
    found = simulate(choice, Regime(sync_interval=2, sync_offset=1))
    seed_key = jax.random.fold_in(run_key(0, Purpose.STUDY), SEED)
    explore, shaping = (
        jax.random.fold_in(seed_key, int(purpose)) for purpose in (Purpose.EXPLORE, Purpose.SHAPE)
    )
    shape = pack.BatchShape.of_run(
        SCALE.groups, SCALE.samples, SCALE.task.prompt_length, SCALE.task.answer_length, 0, 0
    )
    optimizer = make_optimizer(OptimizerConfig(learning_rate=RATE))
    step = jax.jit(
        lambda params, batch, key: loss_and_gradient(
            SCALE.graph, params, batch, MENU[choice], jnp.float32(1), key, start
        )[1]
    )
    draw = jax.jit(
        lambda params, prompts, positions: graph_data.draw(
            SCALE, params, prompts, SCALE.samples, explore, positions
        )
    )
    params, state, versions = start, optimizer.init(start), [start]
    for t in range(STEPS):
        version = max(t - 1, 0) // 2 * 2
        positions = np.arange(SCALE.groups, dtype=np.int32) + SEED * STREAM + t * SCALE.groups
        drawn = draw(versions[version], jnp.asarray(prompts_of(t)), positions)
        packed = pack.pack(list(groups_of(drawn, t, version)), shape, learner_version=t)
        grads = step(params, packed, jax.random.fold_in(shaping, t))
        updates, state = optimizer.update(grads, state, params)
        params = jax.tree.map(jnp.add, params, updates)
        versions.append(params)
        assert float(found.steps["reward"][t]) == pytest.approx(float(drawn.rewards.mean()))
    moved = max(
        float(jnp.abs(x - y).max())
        for x, y in zip(jax.tree.leaves(params), jax.tree.leaves(start), strict=True)
    )
    assert moved > RATE  # Adam's steps are of the learning rate's size: something was trained
    for ours, theirs in zip(jax.tree.leaves(found.params), jax.tree.leaves(params), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=3e-5)


def test_draws_are_the_samplers(start):
    key, positions = jax.random.key(7), jnp.arange(SCALE.groups, dtype=jnp.int32)
    prompts = jnp.asarray(prompts_of(0))
    drawn = jax.jit(
        lambda params: graph_data.draw(SCALE, params, prompts, SCALE.samples, key, positions)
    )(start)
    theirs = sampling.sample(
        nnx.merge(SCALE.graph, start),
        prompts,
        sampling.SamplingParams(max_new_tokens=SCALE.task.answer_length),
        key=key,
        group_size=SCALE.samples,
        prompt_lengths=jnp.full(SCALE.groups, prompts.shape[1], jnp.int32),
    )
    np.testing.assert_array_equal(drawn.tokens, theirs.tokens.reshape(drawn.tokens.shape))
    np.testing.assert_array_equal(drawn.lengths, theirs.lengths.reshape(-1))
    logprobs = theirs.behavior_logprobs.reshape(drawn.logprobs.shape)
    np.testing.assert_allclose(drawn.logprobs, logprobs, atol=1e-6)


@pytest.mark.parametrize(
    "regime",
    [
        Regime(),
        Regime(sync_interval=2),
        Regime(sync_offset=2),
        Regime(staleness=1),
        Regime(offline=True),
        Regime(reuse=2),
    ],
    ids=lambda regime: regime.described,
)
def test_the_data_is_of_the_version_that_the_regime_says(simulate, regime):
    found = simulate(0, regime)
    assert found.versions.tolist() == [regime.version(step) for step in range(STEPS)]
    assert found.checks["accuracy"].shape == (3,)  # before steps 0 and 2, and at the end


def test_side_by_side_is_one_after_the_other(simulate, start):
    chosen = [(0, Regime(), 1), (1, Regime(sync_offset=2), 2), (2, Regime(offline=True), 3)]
    each = [
        jax.tree.map(jnp.asarray, Inputs(choice, MENU, RATE, 0.0, Schedule.of(regime), seed, start))
        for choice, regime, seed in chosen
    ]
    together = graph_run.compiled(SCALE, STEPS, FILL, RING, 3)(
        jax.tree.map(lambda *x: jnp.stack(x), *each)
    )
    for index, (choice, regime, seed) in enumerate(chosen):
        alone = jax.tree.leaves(simulate(choice, regime, seed=seed))
        for ours, theirs in zip(alone, jax.tree.leaves(together), strict=True):
            np.testing.assert_allclose(ours, theirs[index], atol=2e-5)
