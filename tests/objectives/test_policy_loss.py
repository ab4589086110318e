"""What the loss does whatever the formula: micro-batches, dtypes, constants, and what it
refuses. (The formulas: test_formulas.)
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grre_jax import objectives

pytestmark = pytest.mark.usefixtures("float64")
FIELDS = {"advantages": np.ones(2), "mask": np.ones((2, 3)), "groups": np.zeros(2, int)}


def test_decisions_of_the_whole_batch_need_its_statistics():
    objective = objectives.algorithm("m2po")
    logprobs = np.zeros((2, 3))
    batch = objectives.padded_batch(**FIELDS, old_logprobs=logprobs)
    with pytest.raises(KeyError, match="second_moment"):
        objectives.policy_loss(objective, logprobs, batch, objectives.batch_stats(batch))
    for wrong in (None, np.zeros((2, 4))):
        with pytest.raises(ValueError, match="log-?prob"):
            objectives.batch_stats(batch, objective, wrong)


def test_what_is_left_out_of_the_counts_is_not_penalised(gradient, example):
    """All groups alike: nothing is kept, and a penalty over no tokens would be a sum."""
    kl = {"kl_coef": 0.1, "kl_reference": "behavior", "kl_estimator": "k2"}
    alike = example.replace(rewards=np.ones(8))
    _, metrics = gradient.both(objectives.algorithm("dapo", **kl), alike)
    assert metrics["loss"] == metrics["penalty"] == 0


def test_dropped_responses_leave_the_denominator():
    fields = {"advantages": np.array([1.0, 0.0]), "dropped": np.array([False, True])}
    batch = objectives.padded_batch(**FIELDS | fields, old_logprobs=np.zeros((2, 3)))
    loss, _ = objectives.policy_loss(objectives.algorithm("dapo"), np.zeros((2, 3)), batch)
    assert loss == -1


def test_bfloat16_logprobs_are_reduced_in_float32(example):
    with jax.enable_x64(False):
        batch = objectives.padded_batch(
            advantages=np.ones(8, np.float32),
            mask=example.mask,
            groups=example.groups,
            old_logprobs=example.old.astype(np.float32),
        )
        logprobs = jnp.asarray(example.logprobs, jnp.bfloat16)
        found = jax.eval_shape(
            objectives.policy_loss, objectives.algorithm("grpo"), logprobs, batch
        )
    assert {value.dtype for value in jax.tree.leaves(found)} == {np.dtype(np.float32)}


def test_preferences_take_no_array_of_all_pairs():
    """Values: test_formulas."""
    logprobs = np.zeros((37, 2))
    batch = objectives.padded_batch(
        advantages=np.zeros(37),
        mask=np.ones((37, 2)),
        groups=np.arange(37) // 9,
        ref_logprobs=logprobs,
        rewards=np.arange(37) % 4.0,
    )

    def loss(logprobs):
        return objectives.policy_loss(objectives.algorithm("dpo"), logprobs, batch)[0]

    traced = str(jax.make_jaxpr(jax.grad(loss))(logprobs))
    assert "[37,2]" in traced and "37,37]" not in traced


@pytest.mark.parametrize(
    "name, present, missing",
    [
        ("grpo", (), "old_logprobs"),
        ("chord", ("old_logprobs",), "expert"),
        ("dapo", ("old_logprobs",), "dropped="),
    ],
)
def test_missing_data_is_named(name, present, missing):
    batch = objectives.padded_batch(**FIELDS, **dict.fromkeys(present, np.zeros((2, 3))))
    with pytest.raises(ValueError, match=missing):
        objectives.policy_loss(objectives.algorithm(name), np.zeros((2, 3)), batch)
    with pytest.raises(ValueError, match="6 tokens"):
        objectives.policy_loss(objectives.algorithm("reinforce"), np.zeros((2, 4)), batch)
