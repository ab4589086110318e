"""What the loss does whatever the formula: micro-batches, dtypes, constants, and what it
refuses. (The formulas: test_formulas.)
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grre_jax import objectives

pytestmark = pytest.mark.usefixtures("float64")


@pytest.mark.parametrize("name", ["m2po", "gepo"])
def test_decisions_of_the_whole_batch_need_its_statistics(gradient, example, name):
    objective = objectives.algorithm(name)
    batch = gradient.batch(example, gradient.shaped(objective, example))
    with pytest.raises(ValueError, match=name):
        objectives.policy_loss(objective, example.logprobs, batch, objectives.batch_stats(batch))
    if objective.needs_policy_stats:
        for logprobs in (None, np.zeros((2, 4))):
            with pytest.raises(ValueError, match="log-?prob"):
                objectives.batch_stats(batch, objective, logprobs)


def test_what_is_left_out_of_the_counts_is_not_penalised(gradient, example):
    """All groups alike: nothing is kept, and a penalty over no tokens would be a sum."""
    objective = objectives.algorithm(
        "dapo", kl_coef=0.1, kl_reference="behavior", kl_estimator="k2"
    )
    _, metrics = gradient.both(objective, example.replace(rewards=np.ones(7)))
    assert metrics["loss"] == metrics["penalty"] == 0


def test_nothing_flows_into_the_data(example):
    objective = objectives.algorithm("grpo", kl_coef=0.1, kl_reference="behavior")

    def loss(old, advantages):
        batch = objectives.padded_batch(
            advantages=advantages, mask=example.mask, groups=example.groups, old_logprobs=old
        )
        return objectives.policy_loss(objective, example.logprobs, batch)[0]

    slopes = jax.jit(jax.grad(loss, argnums=(0, 1)))(example.old, example.rewards)
    assert all(np.all(slope == 0) for slope in slopes)


def test_bfloat16_logprobs_are_reduced_in_float32(example):
    with jax.enable_x64(False):
        batch = objectives.padded_batch(
            advantages=np.ones(7, np.float32),
            mask=example.mask,
            groups=example.groups,
            old_logprobs=example.old.astype(np.float32),
        )
        loss, metrics = jax.jit(objectives.policy_loss)(
            objectives.algorithm("grpo"), jnp.asarray(example.logprobs, jnp.bfloat16), batch
        )
    assert loss.dtype == np.float32 and all(value.dtype == np.float32 for value in metrics.values())


@pytest.mark.parametrize(
    "name, present, missing",
    [
        ("grpo", (), "old_logprobs"),
        ("chord", ("old_logprobs",), "expert"),
        ("raft", (), "dropped="),
        ("dapo", ("old_logprobs",), "dropped="),
    ],
)
def test_missing_data_is_named(name, present, missing):
    fields = {field: np.zeros((2, 3)) for field in present}
    batch = objectives.padded_batch(
        advantages=np.ones(2), mask=np.ones((2, 3)), groups=np.zeros(2, int), **fields
    )
    with pytest.raises(ValueError, match=missing):
        objectives.policy_loss(objectives.algorithm(name), np.zeros((2, 3)), batch)
    with pytest.raises(ValueError, match="6 tokens"):
        objectives.policy_loss(objectives.algorithm("reinforce"), np.zeros((2, 4)), batch)
