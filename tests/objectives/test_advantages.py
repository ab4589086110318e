"""Advantages by hand, degenerate groups, RED-Drop's draws, and refusals."""

import hypothesis.extra.numpy
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, strategies as st

from grre_jax import objectives
from grre_jax.objectives.objective import Advantage, named

pytestmark = pytest.mark.usefixtures("float64")

GROUPS = np.array([9, 2, 9, 2, 2, 4, -1])  # {0, 2}, {1, 3, 4}, {5}
KEY = jax.random.key(3)


@jax.jit
def advantages_of(objective, rewards, groups, components=None):
    """One program for what each operation would be by itself."""
    return objectives.advantages(objective, rewards, groups, components=components)


def test_red_drop_drops_extra_negatives_at_random():
    # 1 positive, 5 negatives: 4 of them are dropped, each in 4 draws out of 5.
    rewards, groups = np.array([0.0, 0.1, 0.2, 5.0, 0.3, 0.1, 1.0]), np.array([0, 0, 0, 0, 0, 0, 1])
    objective = objectives.algorithm("red_drop")
    shape = jax.vmap(lambda key: objectives.shape_data(objective, rewards, groups, key).dropped)
    dropped = np.asarray(jax.jit(shape)(jax.random.split(KEY, 2000)))
    np.testing.assert_array_equal(dropped.sum(1), 4)
    assert not dropped[:, [3, 6]].any()
    share = dropped[:, [0, 1, 2, 4, 5]].mean(0)
    np.testing.assert_allclose(share, 0.8, atol=5 * np.sqrt(0.16 / 2000))


def test_large_constant_costs_no_precision_in_float32():
    grpo = objectives.algorithm("grpo")
    rewards = np.array([0, 1, 0, 1, 1, 0, 0], np.float32)
    with jax.enable_x64(False):
        found = advantages_of(grpo, rewards + 4096, GROUPS)
        np.testing.assert_array_equal(found, advantages_of(grpo, rewards, GROUPS))


PAIR = np.array([1.0, 0.0])


@pytest.mark.parametrize(
    "name, names, rewards, options, field",
    [
        ("reinforce", None, np.zeros(3), {}, "rewards"),
        ("reinforce", None, np.array([0.0, np.inf]), {}, r"rewards\[1\]"),
        ("opo", None, PAIR, {}, "lengths"),
        ("red_drop", None, PAIR, {}, "key"),
        ("gdpo", None, PAIR, {}, "components"),
        ("gdpo", "a,c", PAIR, {"components": {"a": PAIR}}, "'c'"),
    ],
)
def test_refusals(name, names, rewards, options, field):
    with pytest.raises(ValueError, match=field):
        objective = objectives.algorithm(name, components=names)
        objectives.advantages(objective, rewards, np.zeros(2, int), **options)


@jax.jit
def every_advantage(rewards, groups):
    """Advantages of every kind, by name: one program."""
    lengths = jnp.arange(1, len(GROUPS) + 1)
    components = {"a": rewards * 2, "b": rewards**2}
    keys = jax.random.split(KEY, len(GROUPS))
    return {
        name: objectives.advantages(
            objectives.algorithm("reinforce", advantage=name),
            rewards,
            groups,
            key=keys,
            lengths=lengths,
            components=components,
        )
        for name in named(Advantage)
    }


ACT_WITHOUT_VARIANCE = "asymre reward sign positive whitened_returns decoupled decoupled_whitened"


def test_equal_rewards_give_exactly_zero():
    rewards = np.array([0.1, 0.7, 0.1, 0.7, 0.7, 0.3, 5.0])  # the mean of three 0.7s is not 0.7
    assert (np.float64(0.7) + 0.7 + 0.7) / 3 != 0.7
    for name, found in every_advantage(rewards, GROUPS).items():
        if name not in ACT_WITHOUT_VARIANCE.split():
            np.testing.assert_array_equal(found, 0, err_msg=name)


@given(
    rewards=hypothesis.extra.numpy.arrays(float, len(GROUPS), elements=st.floats(-8, 8, width=16)),
    absent=st.sets(st.integers(0, len(GROUPS) - 1), min_size=1),
)
def test_a_response_without_a_verdict_changes_nothing_for_the_others(rewards, absent):
    """At any place, for every advantage, it is as if it were padding, and in a group of fewer than
    two verdicts nothing counts.
    """
    without = GROUPS.copy()
    without[list(absent)] = -1
    for group in set(GROUPS[list(absent)].tolist()):
        if (without == group).sum() < 2:
            without[without == group] = -1
    expected = every_advantage(rewards, without)
    rewards[list(absent)] = np.nan
    for name, found in every_advantage(rewards, GROUPS).items():
        np.testing.assert_array_equal(found, expected[name], err_msg=name)
        np.testing.assert_array_equal(np.asarray(found)[without < 0], 0, err_msg=name)


def test_a_response_without_a_verdict_has_no_loss_and_no_penalty(gradient, example):
    """The loss and its gradient are those of the batch without it, KL penalty included."""
    absent = np.arange(8) == 4
    case = example.replace(ref=example.old - 0.2)
    objective = objectives.algorithm("asymre", kl_coef=0.5)
    rewards, groups = np.where(absent, np.nan, case.rewards), np.where(absent, -1, case.groups)
    slope, metrics = gradient.both(objective, case.replace(rewards=rewards))
    expected, others = gradient.both(objective, case.replace(groups=groups))
    np.testing.assert_allclose(metrics["loss"], others["loss"], rtol=1e-12)
    np.testing.assert_allclose(slope, expected, rtol=1e-12)
    assert not slope[4].any()


def test_a_component_that_does_not_apply_is_left_out_of_its_mean():
    """The response has nothing of that component, and the others what they have without it."""
    values = np.array([1.0, 0.0, 3.0, np.nan])
    alone = objectives.algorithm("reinforce", advantage="decoupled", components="a")
    found = advantages_of(alone, np.zeros(4), np.zeros(4, int), {"a": values})
    three = (values[:3] - values[:3].mean()) / (values[:3].std(ddof=1) + 1e-6)
    spread = np.append(three, 0)
    expected = spread / (spread.std(ddof=1) + 1e-6)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-12)
