"""Metrics against NumPy, and the diagnostics that do not add up over micro-batches."""

import jax
import numpy as np
import pytest

from grre_jax import objectives
from grre_jax.objectives import diagnostics

pytestmark = pytest.mark.usefixtures("float64")


def test_metrics_of_ratios_and_clipping(example, gradient):
    objective = objectives.algorithm("rec_oneside_is")
    _, metrics = gradient.both(objective, example)
    live = example.live
    moved = example.moved[live]
    ratio = np.exp(moved)
    advantages = np.asarray(gradient.shaped(objective, example).advantages)
    sign = np.broadcast_to(np.sign(advantages)[:, None], live.shape)[live]
    positive, negative = np.mean((sign > 0) & (ratio > 1.2)), np.mean((sign < 0) & (ratio < 0.8))
    expected = {
        "ratio_mean": ratio.mean(),
        "ratio_second_moment": np.mean(ratio**2),
        "ratio_max": ratio.max(),
        "ratio_out_of_bounds": 0,
        "log_ratio_second_moment": np.mean(moved**2),
        "kl_behavior_k1": np.mean(-moved),
        "kl_behavior_k2": np.mean(moved**2) / 2,
        "kl_behavior_k3": np.mean(ratio - 1 - moved),
        "clip_fraction_positive": positive,
        "clip_fraction_negative": negative,
        "clip_fraction": positive + negative,
        "limited_fraction": 0,
        "penalty": 0,
    }
    assert positive > 0 and negative > 0
    assert metrics.keys() == expected.keys() | {"loss"}
    for name, value in expected.items():
        np.testing.assert_allclose(metrics[name], value, rtol=1e-10, err_msg=name)


def test_log_ratios_that_no_policy_near_the_data_has_are_counted():
    logprobs = np.array([[-1.0, -1.0, -22.0, -19.0, -1.0]])
    old = np.array([[-200.0, -1.0, -1.0, -1.0, np.nan]])
    batch = objectives.padded_batch(
        advantages=np.ones(1),
        mask=np.array([[1, 1, 1, 1, 0]]),
        groups=np.array([0]),
        old_logprobs=old,
    )
    _, metrics = jax.jit(objectives.policy_loss)(objectives.algorithm("grpo"), logprobs, batch)
    assert metrics["ratio_out_of_bounds"] == 0.5


def test_diagnostics_of_the_whole_batch(example):
    staleness = np.array([0, 3, 2, 300, 1, 0, 7])
    batch = objectives.padded_batch(
        advantages=np.zeros(7),
        mask=example.mask,
        groups=example.groups,
        old_logprobs=example.old,
        staleness=staleness,
    )
    logprobs = np.where(example.mask, example.logprobs, np.nan)
    metrics = jax.device_get(jax.jit(objectives.batch_diagnostics)(logprobs, batch))
    moved = example.moved[example.live]
    ratio = np.exp(moved)
    whole = np.exp(example.moved.sum(1))[example.groups >= 0]
    k3 = ratio - 1 - moved
    ages = np.broadcast_to(staleness[:, None], example.live.shape)[example.live]
    fresh = ages == 0
    expected = {
        "effective_sample_size": ratio.sum() ** 2 / np.sum(ratio**2) / ratio.size,
        "effective_sample_size_responses": whole.sum() ** 2 / np.sum(whole**2) / whole.size,
        "log_ratio_q01": np.quantile(moved, 0.01),
        "log_ratio_q50": np.quantile(moved, 0.5),
        "log_ratio_q99": np.quantile(moved, 0.99),
        "sampler_gap_mean": np.abs(moved[fresh]).mean(),
        "sampler_gap_max": np.abs(moved[fresh]).max(),
        "sampler_gap_kl": k3[fresh].mean(),
        "sampler_gap_tail": np.mean((ratio[fresh] < 0.8) | (ratio[fresh] > 1.25)),
    }
    for first, last in ((0, 0), (1, 1), (2, 3), (4, 7), (8, 15), (256, np.inf)):
        name = {first: f"{first}_{last}", last: f"{first}", 256: "256_up"}[first]
        inside = (ages >= first) & (ages <= last)
        expected[f"staleness_{name}"] = inside.mean()
        expected[f"kl_behavior_k3_staleness_{name}"] = k3[inside].sum() / max(inside.sum(), 1)
    assert 0 < expected["sampler_gap_tail"] < 1
    for name, value in expected.items():
        np.testing.assert_allclose(metrics[name], value, rtol=1e-10, err_msg=name)
    shares = [value for name, value in metrics.items() if name.startswith("staleness")]
    np.testing.assert_allclose(sum(shares), 1)


def test_an_expert_s_tokens_have_ratio_one(example):
    """They carry no log-probs of a policy of the run: what stands in their place is not read."""
    expert = np.arange(7) == 2
    fields = {"advantages": np.zeros(7), "mask": example.mask, "groups": example.groups}
    unknown = np.where(expert[:, None], 0.0, example.old)
    known = np.where(expert[:, None], example.logprobs, example.old)
    batch = objectives.padded_batch(old_logprobs=unknown, expert=expert, **fields)
    same = objectives.padded_batch(old_logprobs=known, **fields)
    assert example.groups[2] >= 0 and example.live[2].any()
    found, expected = (
        jax.device_get(objectives.batch_diagnostics(example.logprobs, each))
        for each in (batch, same)
    )
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-10, err_msg=name)


def test_share_of_groups_without_signal():
    share = jax.jit(diagnostics.zero_variance_groups)
    rewards = np.array([0.7, 0.7, 0.7, 1.0, 0.0, 3.0, np.nan])
    assert share(rewards, np.array([4, 4, 4, 0, 0, 9, -1])) == pytest.approx(2 / 3)
    assert share(rewards, np.full(7, -1)) == 0
