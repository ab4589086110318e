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
    live = example.mask & (example.groups >= 0)[:, None]
    moved = (example.logprobs - example.old)[live]
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
    metrics = jax.jit(objectives.batch_diagnostics)(
        np.where(example.mask, example.logprobs, np.nan), batch
    )
    live = example.mask & (example.groups >= 0)[:, None]
    moved = np.where(live, example.logprobs - example.old, 0)
    tokens, ratio = moved[live], np.exp(moved[live])
    whole = np.exp(moved.sum(1))[example.groups >= 0]
    np.testing.assert_allclose(
        metrics["effective_sample_size"],
        ratio.sum() ** 2 / np.sum(ratio**2) / ratio.size,
        rtol=1e-10,
    )
    np.testing.assert_allclose(
        metrics["effective_sample_size_responses"],
        whole.sum() ** 2 / np.sum(whole**2) / whole.size,
        rtol=1e-10,
    )
    quantiles = [metrics[f"log_ratio_{name}"] for name in ("q01", "q50", "q99")]
    np.testing.assert_allclose(quantiles, np.quantile(tokens, [0.01, 0.5, 0.99]), rtol=1e-10)

    ages = np.broadcast_to(staleness[:, None], live.shape)[live]
    bins = {
        "0": (0, 0),
        "1": (1, 1),
        "2_3": (2, 3),
        "4_7": (4, 7),
        "8_15": (8, 15),
        "256_up": (256, 1e9),
    }
    for name, (first, last) in bins.items():
        inside = (ages >= first) & (ages <= last)
        np.testing.assert_allclose(metrics[f"staleness_{name}"], inside.mean(), rtol=1e-10)
        expected = np.mean((ratio - 1 - tokens)[inside]) if inside.any() else 0
        np.testing.assert_allclose(
            metrics[f"kl_behavior_k3_staleness_{name}"], expected, rtol=1e-10
        )
    np.testing.assert_allclose(
        sum(value for name, value in metrics.items() if name.startswith("staleness")), 1
    )
    gap = np.abs(tokens[ages == 0])
    fresh = tokens[ages == 0]
    expected = {
        "mean": gap.mean(),
        "max": gap.max(),
        "kl": np.mean(np.exp(fresh) - 1 - fresh),
        "tail": np.mean((np.exp(fresh) < 0.8) | (np.exp(fresh) > 1.25)),
    }
    assert 0 < expected["tail"] < 1
    for name, value in expected.items():
        np.testing.assert_allclose(metrics[f"sampler_gap_{name}"], value, rtol=1e-10)


def test_diagnostics_without_behavior_logprobs():
    bare = objectives.padded_batch(
        advantages=np.zeros(2), mask=np.ones((2, 3)), groups=np.array([0, 0])
    )
    assert objectives.batch_diagnostics(np.zeros((2, 3)), bare) == {}


def test_share_of_groups_without_signal():
    share = jax.jit(diagnostics.zero_variance_groups)
    rewards = np.array([0.7, 0.7, 0.7, 1.0, 0.0, 3.0, np.nan])
    assert share(rewards, np.array([4, 4, 4, 0, 0, 9, -1])) == pytest.approx(2 / 3)
    assert share(rewards, np.full(7, -1)) == 0
