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


def test_weights_by_pair(example, assert_close):
    case = example
    arguments = (case.logprobs, case.old, case.rewards, case.groups)
    product = weighted(*arguments, WEIGHTS, case.mask, tau=case.tau)
    pairs = weighted(*arguments, np.outer(WEIGHTS, WEIGHTS), case.mask, tau=case.tau)
    assert_close(pairs[0], product[0])
    assert_close(pairs[1], product[1])


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


def test_residuals_make_up_the_loss(example):
    arguments = (example.logprobs, example.old, example.rewards, example.groups, example.mask)
    residuals = np.asarray(surrogate.consistency_residuals(*arguments, tau=0.7))
    np.testing.assert_allclose(residuals, -residuals.T, atol=1e-12)
    groups = [example.groups == group for group in {*example.groups.tolist()} - {-1}]
    expected = sum((residuals[group] ** 2).sum() / (2 * group.sum() ** 2) for group in groups)
    loss = surrogate.surrogate_loss(*arguments, tau=0.7)
    np.testing.assert_allclose(loss, expected / len(groups), rtol=1e-10)


@pytest.mark.parametrize(
    "tau, reward, named", [(0.0, 0, "tau"), (np.ones(2), 0, "tau"), (1.0, np.nan, r"rewards\[1\]")]
)
def test_values_outside_their_domain_are_refused(tau, reward, named):
    zeros, rewards = np.zeros(2), np.array([0, reward])
    with pytest.raises(ValueError, match=named):
        surrogate.surrogate_loss(zeros, zeros, rewards, np.zeros(2, int), tau=tau)
