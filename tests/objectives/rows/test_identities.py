"""The identities I1 to I8 of the gradients, on any inputs, in float64.

A tolerance is always a share, 1e-11 unless said otherwise, of the size of the terms whose sum or
difference is compared, entry by entry: where they cancel nothing better can be asked of float64,
and where they do not it is a relative error of the entry itself. The sizes are of rewards for what
subtracts a mean from rewards as they are (the surrogate), and of a group's spread for advantages,
which are formed after a shift by the smallest.
"""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grre_jax import objectives
from research import surrogate

pytestmark = pytest.mark.usefixtures("float64")
examples = settings(max_examples=100, deadline=None, derandomize=True, database=None)
data = st.data()


def ppo_clip(logprobs, old, advantages, live, low, high):
    """PPO's clipped objective, differentiated as it stands."""
    ratio = jnp.exp(jnp.where(live, logprobs - old, 0))
    terms = -jnp.minimum(
        ratio * advantages[:, None], jnp.clip(ratio, 1 - low, 1 + high) * advantages[:, None]
    )
    return jnp.sum(jnp.where(live, terms, 0)) / jnp.maximum(live.sum(), 1), {}


def half_squares(logprobs, old, live, factors):
    """sum_i factors_i / 2 (l_i - l_old,i)^2 over responses."""
    return jnp.sum(factors / 2 * jnp.sum(jnp.where(live, logprobs - old, 0), axis=1) ** 2), {}


def minimised(form):
    def loss(logprobs, old, rewards, groups, mask, tau):
        return (
            surrogate.surrogate_loss(logprobs, old, rewards, groups, mask, tau=tau, form=form),
            {},
        )

    return loss


def pointwise(logprobs, old, rewards, groups, mask, tau):
    return surrogate.pointwise_loss(logprobs, old, rewards, groups, mask, tau=tau), {}


pairwise, variance = minimised("pairwise"), minimised("variance")


def by_group(values, groups, reduce):
    """[responses] of each group's `reduce(values)`, by loops; 0 on padding."""
    values, found = np.broadcast_to(values, groups.shape), np.zeros(groups.shape)
    for group in np.unique(groups[groups >= 0]):
        found[groups == group] = reduce(values[groups == group])
    return found


def deviations(case):
    """[responses] r - mean(r), of rewards shifted by one of their group: the mean of 1e6 and 1e6
    + 1e-6 then loses nothing.
    """
    shifted = np.where(case.groups >= 0, case.rewards, 0) - by_group(
        case.rewards, case.groups, lambda rewards: rewards[0]
    )
    return np.where(case.groups >= 0, shifted - by_group(shifted, case.groups, np.mean), 0)


def spread(case):
    """[responses] the size of what a group's advantages are differences of."""
    return by_group(case.rewards, case.groups, np.ptp)


def largest(case):
    """[responses] the largest reward of the group, in size."""
    return by_group(case.rewards, case.groups, lambda rewards: np.abs(rewards).max())


def shares(case):
    """[responses] 1 / (size of the group x groups), the derivation's weight of a response."""
    return (
        1
        / np.maximum(by_group(1, case.groups, len), 1)
        / max(len(np.unique(case.groups[case.groups >= 0])), 1)
    )


def token_share(case):
    return 1 / max(case.live.sum(), 1)


def consistency_sizes(case):
    """[responses] the size of r - tau S, the largest of the group."""
    return by_group(largest(case) + case.tau * np.abs(case.moved).sum(1), case.groups, np.max)


def check_i1(gradient, within, case):
    """Gradient of the surrogate at theta_t = 2 tau x group-relative REINFORCE, whoever sampled."""
    reinforce = gradient(objectives.algorithm("reinforce", aggregation="group"), case)
    scale = gradient.size(case, (2 * case.tau * largest(case) * shares(case))[:, None])
    for loss in (pairwise, variance):
        _, slope = gradient.of(
            loss, case, case.logprobs, case.rewards, case.groups, case.mask, case.tau
        )
        within(slope, 2 * case.tau * reinforce, scale)


def check_i2(gradient, within, case):
    """Pairwise form = variance form, value and gradient."""
    arguments = (case.old, case.rewards, case.groups, case.mask, case.tau)
    (value, slope), (expected, expected_slope) = (
        gradient.of(loss, case, *arguments) for loss in (pairwise, variance)
    )
    sizes = consistency_sizes(case)
    within(value, expected, np.sum(shares(case) * sizes**2))
    within(
        slope, expected_slope, gradient.size(case, (2 * case.tau * sizes * shares(case))[:, None])
    )


def check_i3(gradient, within, case):
    """OPMD pointwise = 2 tau (REINFORCE + gradient of (tau/2K) sum (l - l_old)^2)."""
    _, slope = gradient.of(
        pointwise, case, case.old, case.rewards, case.groups, case.mask, case.tau
    )
    scale = gradient.size(case, (2 * case.tau * consistency_sizes(case) * shares(case))[:, None])
    within(slope, 2 * case.tau * gradient(objectives.algorithm("opmd", tau=case.tau), case), scale)

    reinforce = gradient(objectives.algorithm("reinforce", aggregation="group"), case)
    _, squares = gradient.of(half_squares, case, case.old, case.live, case.tau * shares(case))
    within(slope, 2 * case.tau * (reinforce + squares), scale)


def check_i4(gradient, within, case):
    """AsymRE = REINFORCE + beta x imitation."""
    reinforce = objectives.algorithm("reinforce")
    imitation = gradient(reinforce, case, advantages=np.ones(len(case.rewards)))
    scale = gradient.size(case, (spread(case) + abs(case.beta))[:, None] * token_share(case))
    asymre = gradient(objectives.algorithm("asymre", beta=case.beta), case)
    within(asymre, gradient(reinforce, case) + case.beta * imitation, scale)


def check_i5(gradient, within, case):
    """RED-Weight = REINFORCE weighted about its own mean + imitation of the data with the same
    weights; and r_w >= r.
    """
    reinforce, centred = objectives.algorithm("reinforce"), deviations(case)
    tau = max(case.tau, np.abs(centred).max() / 500)  # the stated domain, |A| / tau <= 500
    weights = np.exp(centred / tau)
    total = by_group(weights, case.groups, np.sum)
    above = by_group(weights * centred, case.groups, np.sum) / np.where(
        total > 0, total, 1
    )  # r_w - mean(r)
    scale = spread(case) * (1 + spread(case) / tau)  # the exponent's rounding is magnified by exp
    weighted = gradient(reinforce, case, advantages=weights * (centred - above))
    imitation = gradient(reinforce, case, advantages=weights * above)
    sizes = gradient.size(case, (weights * scale)[:, None] * token_share(case))
    within(gradient(objectives.algorithm("red_weight", tau=tau), case), weighted + imitation, sizes)
    assert np.all(above >= -1e-10 * scale)


def check_i6(gradient, within, case):
    """RED-Drop = REINFORCE on the kept subset: exact with denominator = kept, else times the
    kept share (of tokens, of responses).
    """
    dropped = np.asarray(gradient.shaped(objectives.algorithm("red_drop"), case).dropped)
    kept = case.replace(groups=np.where(dropped, -1, case.groups))
    sizes, kept_sizes = (np.maximum(by_group(1, each.groups, len), 1) for each in (case, kept))
    kept_shares = {"token": kept.live.sum() / max(case.live.sum(), 1), "group": kept_sizes / sizes}
    factors = {"token": token_share(kept), "group": shares(kept)[:, None]}
    for aggregation, share in kept_shares.items():
        reinforce = objectives.algorithm("reinforce", aggregation=aggregation)
        advantages = np.asarray(gradient.shaped(reinforce, kept).advantages)
        scale = gradient.size(kept, spread(kept)[:, None] * factors[aggregation])
        expected = gradient(reinforce, kept, advantages=advantages)
        within(
            gradient(
                objectives.algorithm("red_drop", aggregation=aggregation, denominator="kept"), case
            ),
            expected,
            scale,
        )
        expected = gradient(reinforce, kept, advantages=advantages * share)
        within(
            gradient(objectives.algorithm("red_drop", aggregation=aggregation), case),
            expected,
            scale,
        )


def check_i7(gradient, within, case):
    """Autodiff of PPO-clip = the masked REC-OneSide-IS form (off the bounds); GRPO is that with
    the standardised advantage.
    """
    low, high = abs(case.beta) / 2, abs(case.beta)
    ratio = np.exp(case.moved)
    case = case.replace(
        mask=case.mask & (np.abs(ratio - (1 - low)) > 1e-9) & (np.abs(ratio - (1 + high)) > 1e-9)
    )
    std = np.sqrt(by_group(deviations(case) ** 2, case.groups, np.mean))
    raw = np.where(spread(case) == 0, 0, deviations(case))
    for name, unit in (("rec_oneside_is", np.ones(len(std))), ("grpo", std + 1e-6)):
        objective = objectives.algorithm(name, epsilon_low=low, epsilon_high=high)
        actual, metrics = gradient.both(objective, case)
        value, expected = gradient.of(ppo_clip, case, case.old, raw / unit, case.live, low, high)
        terms = np.where(
            case.live, (spread(case) / unit)[:, None] * np.maximum(ratio, 1 + high), 0
        ) * token_share(case)
        within(actual, expected, gradient.size(case, terms))
        if name == "grpo":  # the value of the REC family is that of its coefficient form
            within(metrics["loss"], value, terms.sum())


def check_i8(gradient, within, case):
    """At theta = pi_old every REC without std has the gradient of REINFORCE."""
    case = case.replace(old=case.logprobs)
    reinforce = {
        name: gradient(objectives.algorithm("reinforce", aggregation=name), case)
        for name in ("token", "response")
    }
    responses = max(np.sum(case.groups >= 0), 1) * np.maximum(case.live.sum(1), 1)[:, None]
    factors = {"token": token_share(case), "response": 1 / responses}
    for name in objectives.algorithms():
        if name.startswith("rec_"):
            objective = objectives.algorithm(name)
            scale = gradient.size(case, spread(case)[:, None] * factors[objective.aggregation.name])
            within(gradient(objective, case), reinforce[objective.aggregation.name], scale)


@examples
@given(data=data)
def test_i1_surrogate_step_is_reinforce(gradient, assert_within, strategies, data):
    check_i1(gradient, assert_within, data.draw(strategies.wide))


@examples
@given(data=data)
def test_i2_pairwise_is_variance(gradient, assert_within, strategies, data):
    check_i2(gradient, assert_within, data.draw(strategies.wide))


@examples
@given(data=data)
def test_i3_opmd_pointwise(gradient, assert_within, strategies, data):
    check_i3(gradient, assert_within, data.draw(strategies.wide))


@examples
@given(data=data)
def test_i4_asymre_adds_imitation(gradient, assert_within, strategies, data):
    check_i4(gradient, assert_within, data.draw(strategies.wide))


@examples
@given(data=data)
def test_i5_red_weight_splits(gradient, assert_within, strategies, data):
    check_i5(gradient, assert_within, data.draw(strategies.wide))


@examples
@given(data=data)
def test_i6_red_drop_is_reinforce_on_the_kept(gradient, assert_within, strategies, data):
    check_i6(gradient, assert_within, data.draw(strategies.wide))


@examples
@given(data=data)
def test_i7_ppo_clip_is_rec_oneside_is(gradient, assert_within, strategies, data):
    check_i7(gradient, assert_within, data.draw(strategies.wide))


@examples
@given(data=data)
def test_i8_all_agree_on_policy(gradient, assert_within, strategies, data):
    check_i8(gradient, assert_within, data.draw(strategies.wide))
