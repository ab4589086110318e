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
        "log_ratio_second_moment": np.mean(moved**2),
        "kl_behavior_k1": np.mean(-moved),
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
    size = diagnostics.effective_sample_size(metrics)
    np.testing.assert_allclose(size * ratio.size, ratio.sum() ** 2 / np.sum(ratio**2), rtol=1e-10)


def test_reference_metrics():
    reference, policy = np.array([[-1.0, -2.0, np.nan]]), np.array([[-1.5, -1.0, 3.0]])
    batch = objectives.padded_batch(advantages=np.ones(1), mask=np.array([[1, 1, 0]]), groups=np.array([0]), ref_logprobs=reference)
    objective = objectives.algorithm("reinforce", kl_coef=0.3, kl_estimator="k2")
    loss, metrics = jax.jit(objectives.policy_loss)(objective, policy, batch)
    gap = np.array([0.5, -1.0])
    np.testing.assert_allclose(metrics["kl_reference_k1"], np.mean(-gap), rtol=1e-12)
    np.testing.assert_allclose(metrics["kl_reference_k3"], np.mean(np.exp(gap) - 1 - gap), rtol=1e-12)
    np.testing.assert_allclose(metrics["penalty"], 0.3 * np.mean(gap**2 / 2), rtol=1e-12)
    np.testing.assert_allclose(loss, 1.25 + metrics["penalty"], rtol=1e-12)
    assert "ratio_mean" not in metrics


def test_limits_are_reported():
    logprobs = np.array([[-1.0, -100.0, 0.0, -1.0]])
    batch = objectives.padded_batch(
        advantages=np.ones(1), mask=np.ones((1, 4)), groups=np.array([0]), old_logprobs=np.array([[-1.0, -1.0, -100.0, -1.0]])
    )
    _, metrics = jax.jit(objectives.policy_loss)(objectives.algorithm("grpo"), logprobs, batch)
    assert metrics["limited_fraction"] == 0.5
    np.testing.assert_allclose(metrics["ratio_max"], np.exp(80))


def test_quantiles_ignore_masked_tokens():
    log_ratio, mask = np.array([3.0, np.nan, 1.0, 2.0, 90.0]), np.array([True, False, True, True, False])
    quantiles = diagnostics.log_ratio_quantiles(log_ratio, mask, np.array([0, 0.5, 1]))
    np.testing.assert_array_equal(quantiles, [1, 2, 3])


def test_share_of_groups_without_signal():
    share = jax.jit(diagnostics.no_signal_groups)
    rewards = np.array([0.7, 0.7, 0.7, 1.0, 0.0, 3.0, np.nan])
    assert share(rewards, np.array([4, 4, 4, 0, 0, 9, -1])) == pytest.approx(2 / 3)
    assert share(rewards, np.full(7, -1)) == 0
