"""Metrics against NumPy, and the diagnostics that do not add up over micro-batches."""

import jax
import numpy as np
import pytest

from grre_jax import objectives

pytestmark = pytest.mark.usefixtures("float64")


def check(metrics, expected):
    for name, value in expected.items():
        np.testing.assert_allclose(metrics[name], value, rtol=1e-10, err_msg=name)


def test_metrics_of_ratios_and_clipping(example, gradient):
    objective = objectives.algorithm("rec_oneside_is")
    _, metrics = gradient.both(objective, example)
    live = example.live
    moved = example.moved[live]
    ratio = np.exp(moved)
    advantages = np.asarray(gradient.shaped(objective, example).advantages)
    advantages = np.broadcast_to(advantages[:, None], live.shape)[live]
    positive = np.mean((advantages > 0) & (ratio > 1.2))
    negative = np.mean((advantages < 0) & (ratio < 0.8))
    expected = {
        "ratio_mean": ratio.mean(),
        "ratio_second_moment": np.mean(ratio**2),
        "ratio_max": ratio.max(),
        "ratio_out_of_bounds": 0,
        "kl_behavior_k1": np.mean(-moved),
        "kl_behavior_k2": np.mean(moved**2) / 2,
        "kl_behavior_k3": np.mean(ratio - 1 - moved),
        "clip_fraction_positive": positive,
        "clip_fraction_negative": negative,
        "clip_fraction": positive + negative,
        "penalty": 0,
    }
    assert positive > 0 and negative > 0
    assert metrics.keys() == expected.keys() | {"loss"}
    check(metrics, expected)


def test_log_ratios_that_no_policy_near_the_data_has_are_counted(example, gradient):
    moved = np.array([0, 21, -21, 19, -19, 0, 0, 0])[:, None]
    case = example.replace(old=example.logprobs - moved)
    _, metrics = gradient.both(objectives.algorithm("grpo"), case)
    expected = case.live[1:3].sum() / case.live.sum()
    assert metrics["ratio_out_of_bounds"] == pytest.approx(expected) and expected > 0


def diagnosed(case, **fields):
    batch = objectives.padded_batch(
        advantages=np.zeros(8), mask=case.mask, groups=case.groups, **fields
    )
    return jax.device_get(jax.jit(objectives.batch_diagnostics)(case.logprobs, batch))


def test_diagnostics_of_the_whole_batch(example):
    staleness = np.array([0, 3, 2, 300, 1, 0, 7, 0])
    metrics = diagnosed(example, old_logprobs=example.old, staleness=staleness)
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
    }
    bins = {"0": (0, 0), "1": (1, 1), "2_3": (2, 3), "256_up": (256, np.inf)}
    for name, (first, last) in bins.items():
        inside = (ages >= first) & (ages <= last)
        expected[f"staleness_{name}"] = inside.mean()
        expected[f"kl_behavior_k3_staleness_{name}"] = k3[inside].sum() / max(inside.sum(), 1)
    check(metrics, expected)
    shares = [value for name, value in metrics.items() if name.startswith("staleness")]
    np.testing.assert_allclose(sum(shares), 1)


def test_an_expert_s_tokens_have_ratio_one(example):
    """They carry no log-probs of a policy of the run: what stands in their place is not read."""
    expert = np.arange(8) == 2
    assert example.live[2].any()
    unknown, known = (
        np.where(expert[:, None], place, example.old) for place in (0.0, example.logprobs)
    )
    found = diagnosed(example, old_logprobs=unknown, expert=expert)
    check(found, diagnosed(example, old_logprobs=known))
