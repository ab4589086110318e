"""The identities I1 to I8 of the gradients, on any inputs, in float64; and a test of the tests: each fails when a formula is perturbed."""

import importlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grre_jax import objectives

pytestmark = pytest.mark.usefixtures("float64")
examples = settings(max_examples=100, deadline=None, derandomize=True)
data = st.data()


@jax.jit
@jax.value_and_grad
def ppo_clip(logprobs, old, advantages, mask, low, high):
    ratio = jnp.exp(logprobs - old)
    terms = -jnp.minimum(ratio * advantages[:, None], jnp.clip(ratio, 1 - low, 1 + high) * advantages[:, None])
    return jnp.sum(jnp.where(mask, terms, 0)) / jnp.maximum(mask.sum(), 1)


def mean_by_group(values, case, weights=None):
    """[responses] the weighted mean over each group, by loops; 0 on padding."""
    weights = np.ones(len(values)) if weights is None else weights
    means = np.zeros(len(values))
    for group in set(case.groups[case.groups >= 0]):
        members = case.groups == group
        means[members] = np.sum(weights[members] * values[members]) / np.sum(weights[members])
    return means


def check_i1(gradient, close, case):
    """Gradient of the surrogate at theta_t = 2 tau x group-relative REINFORCE, whoever sampled."""
    _, surrogate = gradient.surrogate(case.logprobs, case.logprobs, case.rewards, case.groups, case.mask, tau=case.tau)
    reinforce = gradient(objectives.algorithm("reinforce", aggregation="group"), case)
    close(surrogate, 2 * case.tau * reinforce)


def check_i2(gradient, close, case):
    """Pairwise form = variance form, value and gradient."""
    arguments = (case.logprobs, case.old, case.rewards, case.groups, case.mask)
    pairwise, pairwise_slope = gradient.surrogate(*arguments, tau=case.tau, form="pairwise")
    variance, variance_slope = gradient.surrogate(*arguments, tau=case.tau, form="variance")
    close(pairwise, variance)
    close(pairwise_slope, variance_slope)


def check_i3(gradient, close, case):
    """OPMD pointwise = 2 tau (REINFORCE + gradient of (tau/2K) sum (l - l_old)^2)."""
    pointwise = gradient.pointwise(case.logprobs, case.old, case.rewards, case.groups, case.mask, tau=case.tau)
    close(pointwise, 2 * case.tau * gradient(objectives.algorithm("opmd", tau=case.tau), case))

    moved = np.where(case.mask, case.logprobs - case.old, 0).sum(1)
    sizes = np.array([np.sum(case.groups == group) for group in case.groups])
    groups = len(set(case.groups[case.groups >= 0]))
    square = np.where(case.mask & (case.groups >= 0)[:, None], (case.tau * moved / sizes / groups)[:, None], 0)
    reinforce = gradient(objectives.algorithm("reinforce", aggregation="group"), case)
    close(pointwise, 2 * case.tau * (reinforce + square))


def check_i4(gradient, close, case):
    """AsymRE = REINFORCE + beta x imitation."""
    reinforce = objectives.algorithm("reinforce")
    imitation = gradient(reinforce, case, advantages=np.ones(len(case.rewards)))
    expected = gradient(reinforce, case) + case.beta * imitation
    close(gradient(objectives.algorithm("asymre", beta=case.beta), case), expected, scale=np.abs(gradient(reinforce, case)).max())


def check_i5(gradient, close, case):
    """RED-Weight = REINFORCE weighted about its own mean + imitation of the data with the same weights; and r_w >= r."""
    case = case.replace(rewards=np.clip(case.rewards, -10, 10), tau=max(case.tau, 0.5))
    reinforce = objectives.algorithm("reinforce")
    mean = mean_by_group(case.rewards, case)
    weights = np.exp((case.rewards - mean) / case.tau)
    weighted_mean = mean_by_group(case.rewards, case, weights)
    live = case.groups >= 0
    centred = gradient(reinforce, case, advantages=weights * (case.rewards - weighted_mean))
    imitation = gradient(reinforce, case, advantages=weights * (weighted_mean - mean))
    close(gradient(objectives.algorithm("red_weight", tau=case.tau), case), centred + imitation, scale=np.abs(centred).max())
    assert np.all((weighted_mean - mean)[live] >= -1e-12)


def check_i6(gradient, close, case):
    """RED-Drop = REINFORCE on the kept subset: exact with denominator = kept, else times the kept share (of tokens, of responses)."""
    dropped = np.asarray(gradient.shaped(objectives.algorithm("red_drop"), case).dropped)
    kept = case.replace(groups=np.where(dropped, -1, case.groups))
    shares = {
        "token": np.sum(kept.mask[kept.groups >= 0]) / max(np.sum(case.mask[case.groups >= 0]), 1),
        "group": np.array([[np.sum(kept.groups == group) / np.sum(case.groups == group)] for group in case.groups]),
    }
    for aggregation, share in shares.items():
        expected = gradient(objectives.algorithm("reinforce", aggregation=aggregation), kept)
        close(gradient(objectives.algorithm("red_drop", aggregation=aggregation, denominator="kept"), case), expected)
        close(gradient(objectives.algorithm("red_drop", aggregation=aggregation), case), expected * share)


def check_i7(gradient, close, case):
    """Autodiff of PPO-clip = the masked REC-OneSide-IS form; GRPO is that with the standardised advantage."""
    low, high = 0.3, 0.6
    ratio = np.exp(case.logprobs - case.old)
    mask = case.mask & (case.groups >= 0)[:, None] & (np.abs(ratio - (1 - low)) > 1e-9) & (np.abs(ratio - (1 + high)) > 1e-9)
    case = case.replace(mask=mask)
    deviations = case.rewards - mean_by_group(case.rewards, case)
    std = np.sqrt(mean_by_group(deviations**2, case))
    alike = np.array([np.ptp(case.rewards[case.groups == group]) == 0 for group in case.groups])
    for name, advantages in (("rec_oneside_is", deviations), ("grpo", np.where(alike, 0, deviations / (std + 1e-6)))):
        objective = objectives.algorithm(name, epsilon_low=low, epsilon_high=high)
        actual, metrics = gradient.both(objective, case)
        value, expected = ppo_clip(case.logprobs, case.old, jnp.where(alike, 0, advantages), mask, low, high)
        close(actual, expected, 1e-7)
        close(metrics["loss"], value, 1e-7, scale=np.abs(advantages).max() * ratio.max())


def check_i8(gradient, close, case):
    """At theta = pi_old every REC without std has the gradient of REINFORCE."""
    case = case.replace(logprobs=case.old)
    reinforce = gradient(objectives.algorithm("reinforce"), case)
    for name in objectives.algorithms():
        if name.startswith("rec_"):
            close(gradient(objectives.algorithm(name), case), reinforce)


@examples
@given(data=data)
def test_i1_surrogate_step_is_reinforce(gradient, assert_close, cases, data):
    check_i1(gradient, assert_close, data.draw(cases))


@examples
@given(data=data)
def test_i2_pairwise_is_variance(gradient, assert_close, cases, data):
    check_i2(gradient, assert_close, data.draw(cases))


@examples
@given(data=data)
def test_i3_opmd_pointwise(gradient, assert_close, cases, data):
    check_i3(gradient, assert_close, data.draw(cases))


@examples
@given(data=data)
def test_i4_asymre_adds_imitation(gradient, assert_close, cases, data):
    check_i4(gradient, assert_close, data.draw(cases))


@examples
@given(data=data)
def test_i5_red_weight_splits(gradient, assert_close, cases, data):
    check_i5(gradient, assert_close, data.draw(cases))


@examples
@given(data=data)
def test_i6_red_drop_is_reinforce_on_the_kept(gradient, assert_close, cases, data):
    check_i6(gradient, assert_close, data.draw(cases))


@examples
@given(data=data)
def test_i7_ppo_clip_is_rec_oneside_is(gradient, assert_close, cases, data):
    check_i7(gradient, assert_close, data.draw(cases))


@examples
@given(data=data)
def test_i8_all_agree_on_policy(gradient, assert_close, cases, data):
    check_i8(gradient, assert_close, data.draw(cases))


def _uncentred(rewards, groups, single="zero"):
    return jnp.where(groups.live, rewards, 0)


def _doubled_shift(rewards, groups, beta, single="zero"):
    return jnp.where(groups.live, rewards - groups.mean(rewards) + 2 * beta, 0)


def _drop_without_recentring(original):
    def perturbed(rewards, groups, key, single="zero"):
        advantages, dropped = original(rewards, groups, key, single)
        return jnp.where(dropped, 0, jnp.where(groups.live, rewards - groups.mean(rewards), 0)), dropped

    return perturbed


def _two_sided(ratio, advantages, epsilon_low, epsilon_high):
    return (ratio >= 1 - epsilon_low) & (ratio <= 1 + epsilon_high)


def _strict(ratio, advantages, epsilon_low, epsilon_high):
    return ((advantages > 0) & (ratio < 1)) | ((advantages < 0) & (ratio > 1))


def _normalised(original):
    def perturbed(advantages, tau):
        weights, limited = original(advantages, tau)
        return weights / weights.mean(), limited

    return perturbed


# identity, module, name in it, function from the original to the perturbed
PERTURBATIONS = [
    (check_i1, "advantages", "group_mean_advantages", lambda original: _uncentred),
    (check_i1, "surrogate", "response_logprobs", lambda original: lambda logprobs, mask=None: original(logprobs)),
    (check_i2, "surrogate", "_pair_squares", lambda original: lambda *arguments: 1.001 * original(*arguments)),
    (check_i3, "regularizers", "squared_response_log_ratio", lambda original: lambda sums, tau: tau * sums**2),
    (check_i4, "advantages", "asymre_advantages", lambda original: _doubled_shift),
    (check_i5, "weights", "exponential_weight", _normalised),
    (check_i6, "advantages", "red_drop", _drop_without_recentring),
    (check_i7, "weights", "one_side_mask", lambda original: _two_sided),
    (check_i7, "advantages", "group_std_advantages", lambda original: lambda r, g, e, *rest: original(r, g, 1e-3, *rest)),
    (check_i8, "weights", "one_side_mask", lambda original: _strict),
    (check_i8, "policy_loss", "limit_log_ratio", lambda original: lambda d: original(d + 0.01)),
]


@pytest.mark.parametrize(
    ("check", "module", "name", "perturb"), PERTURBATIONS, ids=[f"{check.__name__[6:]}-{name}" for check, _, name, _ in PERTURBATIONS]
)
def test_each_identity_can_fail(gradient, new_gradient, assert_close, example, monkeypatch, check, module, name, perturb):
    check(gradient, assert_close, example)
    where = importlib.import_module(f"grre_jax.objectives.{module}")
    monkeypatch.setattr(where, name, perturb(getattr(where, name)))
    with pytest.raises(AssertionError):
        check(new_gradient(), assert_close, example)
