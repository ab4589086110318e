"""The derivation beyond I1 to I3: the optimum, weighted surrogate, multi-turn trajectories,
padding.
"""

import jax
import numpy as np
import pytest

from research import surrogate

pytestmark = pytest.mark.usefixtures("float64")

weighted = jax.jit(jax.value_and_grad(surrogate.weighted_surrogate_loss))
GENERATOR = np.random.default_rng(1)
WEIGHTS = GENERATOR.random(7)


def test_all_values_agree_at_the_optimum_and_the_loss_is_zero():
    tau, rewards, anchor = 0.3, np.array([0.0, 0.8, 1.0]), np.array([0.3, 0.6, 0.1])
    optimum = anchor * np.exp(rewards / tau)
    logprobs = np.log(optimum / optimum.sum())
    values = surrogate.consistency_values(logprobs, np.log(anchor), rewards, tau=tau)
    np.testing.assert_allclose(values, values[0], rtol=1e-12)
    groups = np.zeros(3, int)
    loss = surrogate.surrogate_loss(logprobs, np.log(anchor), rewards, groups, tau=tau)
    assert loss < 1e-25


def test_weighted_step_is_reinforce_on_shaped_data(example, assert_close):
    """At theta_t: -(2 tau) (sum_j w_j) sum_i w_i (r_i - weighted mean) grad, group by group."""
    case, live = example, example.groups >= 0
    _, slope = weighted(
        case.logprobs, case.logprobs, case.rewards, case.groups, WEIGHTS, case.mask, tau=case.tau
    )
    members = [case.groups == group for group in case.groups]
    baseline = np.array([np.average(case.rewards[m], weights=WEIGHTS[m]) for m in members])
    totals = np.array([WEIGHTS[m].sum() for m in members])
    factor = -2 * case.tau * totals * WEIGHTS * (case.rewards - baseline) / 3
    assert_close(slope, np.where(case.mask & live[:, None], factor[:, None], 0))


def test_a_trajectory_is_the_sum_of_its_turns(example):
    turns = np.where(example.live, [0, 0, 1, 2], -1)
    logprobs = np.where(example.live, example.logprobs, np.nan)
    by_turn = np.asarray(surrogate.turn_logprobs(logprobs, turns, 3))
    expected = [np.where(turns == turn, example.logprobs, 0).sum(1) for turn in range(3)]
    np.testing.assert_allclose(by_turn, np.stack(expected, 1), rtol=1e-12)
    whole = surrogate.response_logprobs(logprobs, turns >= 0)
    np.testing.assert_allclose(by_turn.sum(1), whole, rtol=1e-12)
    with pytest.raises(ValueError, match="turns"):
        surrogate.turn_logprobs(logprobs, turns[:1], 3)
