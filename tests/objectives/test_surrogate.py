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


def test_a_multi_turn_trajectory_is_the_sum_of_its_turns(example, assert_close):
    """Observations between the turns are conditioned on and never scored: [responses, turns,
    time] masks do what one long row does.
    """
    case = example

    def of(*shape):
        logprobs, old, mask = (x.reshape(shape) for x in (case.logprobs, case.old, case.mask))
        return weighted(logprobs, old, case.rewards, case.groups, WEIGHTS, mask, tau=case.tau)

    loss, slope = of(7, 2, 2)
    flat_loss, flat_slope = of(7, 4)
    assert_close(loss, flat_loss)
    assert_close(slope.reshape(7, 4), flat_slope)


def test_a_trajectory_is_the_sum_of_its_turns():
    logprobs = np.array(
        [[np.nan, -1.0, -2.0, np.nan, -4.0, np.inf], [-1.0, np.nan, np.nan, np.nan, np.nan, np.nan]]
    )
    turns = np.array([[-1, 0, 0, -1, 1, -1], [0, -1, -1, -1, -1, -1]])
    by_turn = surrogate.turn_logprobs(logprobs, turns, 3)
    np.testing.assert_array_equal(by_turn, [[-3, -4, 0], [-1, 0, 0]])
    np.testing.assert_array_equal(by_turn.sum(1), surrogate.response_logprobs(logprobs, turns >= 0))
    with pytest.raises(ValueError, match="turns"):
        surrogate.turn_logprobs(logprobs, turns[:1], 3)


def test_residuals_make_up_the_loss(example):
    arguments = (example.logprobs, example.old, example.rewards, example.groups, example.mask)
    residuals = surrogate.consistency_residuals(*arguments, tau=0.7)
    np.testing.assert_allclose(residuals, -residuals.T, atol=1e-12)
    sizes = np.array([np.sum(example.groups == group) for group in example.groups])
    live, groups = example.groups >= 0, len(set(example.groups[example.groups >= 0]))
    expected = np.sum((np.asarray(residuals) ** 2).sum(1)[live] / (2 * sizes[live] ** 2)) / groups
    np.testing.assert_allclose(surrogate.surrogate_loss(*arguments, tau=0.7), expected, rtol=1e-10)


@pytest.mark.parametrize(
    "tau, reward, named", [(0.0, 0, "tau"), (np.ones(2), 0, "tau"), (1.0, np.nan, r"rewards\[1\]")]
)
def test_values_outside_their_domain_are_refused(tau, reward, named):
    zeros, rewards = np.zeros(2), np.array([0, reward])
    with pytest.raises(ValueError, match=named):
        surrogate.surrogate_loss(zeros, zeros, rewards, np.zeros(2, int), tau=tau)
