"""The identities I1 to I8 of the gradients, in float64, near the policy that sampled."""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings

from grre_jax import objectives
from research import surrogate

from ..drawn_cases import NEAR

pytestmark = pytest.mark.usefixtures("float64")
TOKEN = objectives.algorithm("reinforce")
GROUP = objectives.algorithm("reinforce", aggregation="group")


def ppo_clip(logprobs, old, advantages, live, low, high):
    """PPO's clipped objective, differentiated as it stands."""
    ratio = jnp.exp(jnp.where(live, logprobs - old, 0))
    clipped = jnp.clip(ratio, 1 - low, 1 + high)
    terms = -jnp.minimum(ratio * advantages[:, None], clipped * advantages[:, None])
    return jnp.sum(jnp.where(live, terms, 0)) / jnp.maximum(live.sum(), 1), {}


def half_squares(logprobs, old, live, factors):
    """sum_i factors_i / 2 (l_i - l_old,i)^2 over responses."""
    return jnp.sum(factors / 2 * jnp.sum(jnp.where(live, logprobs - old, 0), axis=1) ** 2), {}


def pairwise(*arguments):
    return surrogate.surrogate_loss(*arguments[:-1], tau=arguments[-1], form="pairwise"), {}


def variance(*arguments):
    return surrogate.surrogate_loss(*arguments[:-1], tau=arguments[-1], form="variance"), {}


def pointwise(*arguments):
    return surrogate.pointwise_loss(*arguments[:-1], tau=arguments[-1]), {}


def data_of(case):
    return case.rewards, case.groups, case.mask, case.tau


def by_group(values, groups, reduce):
    """[responses] of each group's `reduce(values)`, by loops; 0 on padding."""
    values, found = np.broadcast_to(values, groups.shape), np.zeros(groups.shape)
    for group in np.unique(groups[groups >= 0]):
        found[groups == group] = reduce(values[groups == group])
    return found


def deviations(case):
    """[responses] r - mean(r)."""
    rewards = np.where(case.groups >= 0, case.rewards, 0)
    return rewards - by_group(rewards, case.groups, np.mean)


def shares(case):
    """[responses] 1 / (size of the group x groups), the derivation's weight of a response."""
    groups = len(np.unique(case.groups[case.groups >= 0]))
    return 1 / np.maximum(by_group(1, case.groups, len), 1) / max(groups, 1)


def i1_surrogate_step_is_reinforce(gradient, close, case):
    """Gradient of the surrogate at theta_t = 2 tau x group-relative REINFORCE, whoever sampled."""
    for loss in (pairwise, variance):
        _, slope = gradient.of(loss, case, case.logprobs, *data_of(case))
        close(slope, 2 * case.tau * gradient(GROUP, case))


def i2_pairwise_is_variance(gradient, close, case):
    """Value and gradient."""
    found, expected = (
        gradient.of(loss, case, case.old, *data_of(case)) for loss in (pairwise, variance)
    )
    close(found[0], expected[0])
    close(found[1], expected[1])


def i3_opmd_pointwise(gradient, close, case):
    """OPMD pointwise = 2 tau (REINFORCE + gradient of (tau/2K) sum (l - l_old)^2)."""
    _, slope = gradient.of(pointwise, case, case.old, *data_of(case))
    close(slope, 2 * case.tau * gradient(objectives.algorithm("opmd", tau=case.tau), case))
    _, squares = gradient.of(half_squares, case, case.old, case.live, case.tau * shares(case))
    close(slope, 2 * case.tau * (gradient(GROUP, case) + squares))


def i4_asymre_adds_imitation(gradient, close, case):
    """AsymRE = REINFORCE + beta x imitation."""
    imitation = gradient(TOKEN, case, advantages=np.ones(len(case.rewards)))
    asymre = gradient(objectives.algorithm("asymre", beta=case.beta), case)
    close(asymre, gradient(TOKEN, case) + case.beta * imitation)


def i5_red_weight_splits(gradient, close, case):
    """RED-Weight = REINFORCE weighted about its own mean + imitation of the data with the same
    weights; and r_w >= r.
    """
    centred = deviations(case)
    tau = max(case.tau, np.abs(centred).max() / 50)
    weights = np.exp(centred / tau)
    total = np.maximum(by_group(weights, case.groups, np.sum), 1e-300)
    above = by_group(weights * centred, case.groups, np.sum) / total  # r_w - mean(r)
    weighted = gradient(TOKEN, case, advantages=weights * (centred - above))
    imitation = gradient(TOKEN, case, advantages=weights * above)
    close(gradient(objectives.algorithm("red_weight", tau=tau), case), weighted + imitation)
    assert np.all(above >= -1e-9)


def i6_red_drop_is_reinforce_on_the_kept(gradient, close, case):
    """Exact with denominator = kept, else times the kept share (of tokens, of responses)."""
    dropped = np.asarray(gradient.shaped(objectives.algorithm("red_drop"), case).dropped)
    kept = case.replace(groups=np.where(dropped, -1, case.groups))
    sizes, kept_sizes = (np.maximum(by_group(1, each.groups, len), 1) for each in (case, kept))
    tokens = kept.live.sum() / max(case.live.sum(), 1)
    for reinforce, share in ((TOKEN, tokens), (GROUP, kept_sizes / sizes)):
        aggregation = reinforce.aggregation.name
        advantages = np.asarray(gradient.shaped(reinforce, kept).advantages)
        for factor, denominator in ((1, "kept"), (share, "all")):
            objective = objectives.algorithm(
                "red_drop", aggregation=aggregation, denominator=denominator
            )
            expected = gradient(reinforce, kept, advantages=advantages * factor)
            close(gradient(objective, case), expected)


def i7_ppo_clip_is_rec_oneside_is(gradient, close, case):
    """Autodiff of PPO-clip = the masked REC-OneSide-IS form (off the bounds); GRPO is that with
    the standardised advantage.
    """
    low, high = abs(case.beta) / 2, abs(case.beta)
    ratio = np.exp(case.moved)
    off = (np.abs(ratio - (1 - low)) > 1e-9) & (np.abs(ratio - (1 + high)) > 1e-9)
    case = case.replace(mask=case.mask & off)
    for name in ("rec_oneside_is", "grpo"):
        objective = objectives.algorithm(name, epsilon_low=low, epsilon_high=high)
        advantages = gradient.shaped(objective, case).advantages
        slope, metrics = gradient.both(objective, case)
        value, expected = gradient.of(ppo_clip, case, case.old, advantages, case.live, low, high)
        close(slope, expected)
        if name == "grpo":  # the value of the REC family is that of its coefficient form
            close(metrics["loss"], value)


def i8_all_agree_on_policy(gradient, close, case):
    """At theta = pi_old every REC without std has the gradient of REINFORCE."""
    case = case.replace(old=case.logprobs)
    response = objectives.algorithm("reinforce", aggregation="response")
    reinforce = {"token": gradient(TOKEN, case), "response": gradient(response, case)}
    for name in objectives.algorithms():
        if name.startswith("rec_"):
            objective = objectives.algorithm(name)
            close(gradient(objective, case), reinforce[objective.aggregation.name])


IDENTITIES = (
    i1_surrogate_step_is_reinforce,
    i2_pairwise_is_variance,
    i3_opmd_pointwise,
    i4_asymre_adds_imitation,
    i5_red_weight_splits,
    i6_red_drop_is_reinforce_on_the_kept,
    i7_ppo_clip_is_rec_oneside_is,
    i8_all_agree_on_policy,
)


@pytest.mark.parametrize("identity", IDENTITIES, ids=lambda identity: identity.__name__)
@settings(max_examples=50, deadline=None, derandomize=True, database=None)
@given(case=NEAR)
def test_identity(gradient, assert_close, identity, case):
    identity(gradient, assert_close, case)
