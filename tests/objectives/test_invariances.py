"""The invariances I9 and the domain I11, in every algorithm; and a test of the tests: each fails when the code is perturbed."""

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
# Every part of every algorithm is in one of these.
NAMES = ("grpo", "rec_twoside_nois", "rec_ring_is", "opmd", "opmd_token", "opmd_logavgexp", "asymre", "red_drop", "red_weight")
names = st.sampled_from(NAMES)
# Those with something to overflow or to sum, for tests that compile shapes or dtypes of their own.
exponential = st.sampled_from(("grpo", "rec_ring_is", "opmd", "opmd_logavgexp", "red_drop", "red_weight"))


def build(name, **options):
    """The algorithm with a KL penalty as well, so that the invariances are tried on that too."""
    return objectives.algorithm(name, kl_coef=0.1, kl_reference="behavior", **options)


def eighths(case):
    """The case with rewards on a grid on which sums are exact: a std can then not amplify a rounding error of a group's mean."""
    return case.replace(rewards=np.round(case.rewards * 8) / 8)


def check_shift(gradient, close, name, case, shift):
    """Adding a constant to a group's rewards changes nothing."""
    case = eighths(case)
    objective = build(name)
    shifted = case.replace(rewards=case.rewards + np.where(case.groups == case.groups[0], shift, 0))
    close(gradient(objective, shifted), gradient(objective, case))


def check_permutation(gradient, close, name, case, order):
    """Permuting responses (so groups too) and renaming groups permutes the gradient; with a key a response, in RED-Drop too."""
    case = eighths(case)
    objective = build(name)
    keys = jax.random.split(jax.random.key(1), len(case.groups))
    arrays = {field: getattr(case, field)[order] for field in ("logprobs", "old", "mask", "rewards")}
    groups = case.groups[order]
    permuted = case.replace(**arrays, groups=np.where(groups >= 0, 1000 - groups, groups))
    close(gradient(objective, permuted, key=keys[order]), gradient(objective, case, key=keys)[order])


def check_padding(gradient, close, name, case, garbage):
    """Padding tokens and padding responses change nothing, whatever they hold."""
    objective = build(name)
    responses, time = case.mask.shape
    live = case.mask & (case.groups >= 0)[:, None]

    def pad(values, fill):
        padded = np.full((responses + 2, time + 1), fill, values.dtype)
        padded[:responses, :time] = values
        return padded

    padded = case.replace(
        logprobs=pad(np.where(live, case.logprobs, garbage), garbage),
        old=pad(np.where(live, case.old, -garbage), garbage),
        mask=np.concatenate([pad(case.mask, False)[:responses], np.ones((2, time + 1), bool)]),
        rewards=np.concatenate([np.where(case.groups >= 0, case.rewards, garbage), [garbage, 1.0]]),
        groups=np.concatenate([case.groups, [-1, -1]]),
    )
    expected, metrics = gradient.both(objective, case)
    actual, padded_metrics = gradient.both(objective, padded)
    close(actual, pad(expected, 0.0))
    for metric, value in metrics.items():
        close(padded_metrics[metric], value, scale=1e-3)


def check_split(gradient, close, name, case, first):
    """Losses, gradients and metrics of two micro-batches, given the global counts, add up to the batch's (maxima combine)."""
    objective = build(name)
    shaped = gradient.shaped(objective, case)
    stats = gradient.stats(gradient.batch(case, shaped))
    whole, metrics = gradient.both(objective, case, shaped)
    # Tokens of the other micro-batch are masked out, not cut out: one shape, one compilation.
    parts = [case.replace(mask=case.mask & rows[:, None]) for rows in (first, ~first)]
    slopes, part_metrics = zip(*(gradient.both(objective, part, shaped, stats) for part in parts), strict=True)
    close(slopes[0] + slopes[1], whole)
    for metric, value in metrics.items():
        values = [each[metric] for each in part_metrics]
        close(max(values) if metric.endswith("_max") else sum(values), value, scale=1e-3)
    added = gradient.stats(gradient.batch(parts[0], shaped)) + gradient.stats(gradient.batch(parts[1], shaped))
    jax.tree.map(np.testing.assert_array_equal, added, stats)


def check_scaling(gradient, close, name, case, scale):
    """Scaling rewards scales the gradient of REINFORCE and REC, and leaves GRPO's."""
    case = eighths(case)
    objective = objectives.algorithm(name)
    expected = gradient(objective, case)
    actual = gradient(objective, case.replace(rewards=case.rewards * scale))
    if name == "grpo":
        close(actual, expected, 1e-4)  # up to the 1e-6 that is added to the std
    else:
        close(actual, expected * scale)


def check_domain(gradient, close, name, case, dtype, garbage):
    """No NaN or Inf in loss, gradient or metrics over the stated domain, with garbage under the mask."""
    objective = build(name)
    largest = np.ptp(case.rewards[case.groups >= 0])
    if "tau" in objective.numbers:  # |A| / tau up to the domain's edge
        tau = max(largest / (500 if dtype == np.float64 else 80), 1e-3)
        objective = build(name, tau=tau)
    live = case.mask & (case.groups >= 0)[:, None]
    wild = case.replace(
        logprobs=np.where(live, case.logprobs, garbage).astype(dtype),
        old=np.where(live, case.old, garbage).astype(dtype),
        rewards=np.where(case.groups >= 0, case.rewards, garbage).astype(dtype),
    )
    slope, metrics = gradient.both(objective, wild)
    assert slope.dtype == dtype
    assert np.all(np.isfinite(slope)) and np.all(slope[~live] == 0)
    assert all(np.isfinite(value) for value in metrics.values()), metrics
    if name != "red_weight" or dtype == np.float64:
        assert metrics["limited_fraction"] == 0


def extreme(case, dtype, data):
    """The case with log-ratios and rewards at and inside the edges of the domain."""
    edge, reward = (80, 1e6) if dtype == np.float64 else (40, 1e4)
    shape = case.mask.shape
    moved = np.array(data.draw(st.lists(st.sampled_from([-1.0, -0.5, 0.0, 0.5, 1.0]), min_size=shape[0], max_size=shape[0])))
    steps = np.zeros(shape)
    steps[:, 0], steps[:, 1] = moved, np.where(dtype == np.float64, moved, 0)  # |S| within 700, and within 80
    rewards = data.draw(st.lists(st.sampled_from([-1.0, -0.3, 0.0, 1e-9, 0.3, 1.0]), min_size=shape[0], max_size=shape[0]))
    # Logs are kept on a coarse grid so that d is exactly at the edge after rounding to float32.
    old = np.round(case.old)
    return case.replace(old=old, logprobs=old + edge * steps, rewards=reward * np.array(rewards))


@examples
@given(data=data, name=names, shift=st.integers(-1_000_000, 1_000_000))
def test_i9_shifting_rewards(gradient, assert_close, cases, data, name, shift):
    check_shift(gradient, assert_close, name, data.draw(cases), shift)


@examples
@given(data=data, name=names, order=st.permutations(range(7)))
def test_i9_permuting_responses_and_groups(gradient, assert_close, cases, data, name, order):
    check_permutation(gradient, assert_close, name, data.draw(cases), np.array(order))


@examples
@given(data=data, name=exponential, garbage=st.sampled_from([np.nan, np.inf, -np.inf, 1e300, 0.0]))
def test_i9_padding_amount_and_content(gradient, assert_close, cases, data, name, garbage):
    check_padding(gradient, assert_close, name, data.draw(cases), garbage)


@examples
@given(data=data, name=names, first=st.lists(st.booleans(), min_size=7, max_size=7))
def test_i9_splitting_into_micro_batches(gradient, assert_close, cases, data, name, first):
    check_split(gradient, assert_close, name, data.draw(cases), np.array(first))


@examples
@given(
    data=data,
    name=st.sampled_from([name for name in NAMES if name.startswith(("rec", "grpo"))]),
    scale=st.sampled_from([0.25, 2.0, 1000.0]),
)
def test_i9_scaling_rewards(gradient, assert_close, cases, data, name, scale):
    check_scaling(gradient, assert_close, name, data.draw(cases), scale)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_i11_domain(gradient, assert_close, cases, dtype):
    @examples
    @given(data=data, name=names if dtype == np.float64 else exponential, garbage=st.sampled_from([np.nan, np.inf, -np.inf, 1e30]))
    def run(data, name, garbage):
        check_domain(gradient, assert_close, name, extreme(data.draw(cases), dtype, data), dtype, garbage)

    with jax.enable_x64(dtype == np.float64):
        run()


@pytest.mark.parametrize("aggregation", ["group", "response"])
def test_i9_packed_is_padded(example, aggregation):
    objective = objectives.algorithm("opmd", aggregation=aggregation, kl_coef=0.1, kl_reference="behavior")
    advantages = objectives.advantages(objective, example.rewards, example.groups)
    padded = objectives.padded_batch(advantages=advantages, mask=example.mask, groups=example.groups, old_logprobs=example.old)
    policy_loss = jax.jit(objectives.policy_loss)
    loss, metrics = policy_loss(objective, example.logprobs, padded)
    order = np.random.default_rng(0).permutation(np.flatnonzero(example.mask))
    packed_loss, packed_metrics = policy_loss(objective, example.logprobs.reshape(-1)[order], padded.select_tokens(order))
    np.testing.assert_allclose(packed_loss, loss, rtol=1e-12)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12), packed_metrics, metrics)


def _paired(group_ids):
    return importlib.import_module("grre_jax.objectives.groups").Groups(jnp.arange(group_ids.size) // 2, group_ids >= 0)


# invariance, its arguments, module, name in it, function from the original to the perturbed
PERTURBATIONS = {
    "shift": (check_shift, ("grpo", 1000), ".advantages", "group_mean_advantages", lambda original: lambda r, g, single: r),
    "permutation": (check_permutation, ("grpo", np.roll(np.arange(7), 1)), ".advantages", "segment_groups", lambda original: _paired),
    "padding": (check_padding, ("opmd", np.nan), ".policy_loss", "_data", lambda original: lambda v, mask, dtype: v),
    "padding responses": (check_padding, ("grpo", 1.0), ".batch", "live_tokens", lambda original: lambda batch: batch.mask),
    "split": (check_split, ("grpo", np.arange(7) < 3), "", "policy_loss", lambda original: lambda o, x, b, stats: original(o, x, b)),
    "scaling": (check_scaling, ("rec_ring_is", 2.0), ".advantages", "group_mean_advantages", lambda original: lambda r, g, s: jnp.sign(r)),
    "domain": (check_domain, ("opmd", np.float64, np.nan), ".policy_loss", "_data", lambda original: lambda v, mask, dtype: v),
}


@pytest.mark.parametrize("invariance", PERTURBATIONS)
def test_each_invariance_can_fail(gradient, new_gradient, assert_close, example, monkeypatch, invariance):
    check, arguments, module, name, perturb = PERTURBATIONS[invariance]
    check(gradient, assert_close, arguments[0], example, *arguments[1:])
    where = importlib.import_module("grre_jax.objectives" + module)
    monkeypatch.setattr(where, name, perturb(getattr(where, name)))
    with pytest.raises(AssertionError):
        check(new_gradient(), assert_close, arguments[0], example, *arguments[1:])
