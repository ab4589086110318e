"""Weights, and the limit of an exponential one."""

from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest

from grre_jax.objectives.parts import weights


@pytest.fixture
def weigh(monkeypatch):
    """`weigh(weight, log_ratio, advantages, **numbers)`."""
    monkeypatch.setattr(weights, "level_log_ratio", lambda x: x.moved)

    def of(weight, log_ratio, advantages, **numbers):
        x = SimpleNamespace(moved=log_ratio, advantages=advantages, hyperparameters=numbers)
        return weight(x)

    return of


def test_exponential_weight_is_exact_up_to_its_limit(weigh):
    advantages = jnp.array([-80.0, 0.0, 1.0, 70.0, 80.0, 1e4], jnp.float32)
    weight, acted = weigh(weights.exponential, None, advantages, tau=1.0)
    np.testing.assert_allclose(weight[:4], np.exp([-80.0, 0.0, 1.0, 70.0]), rtol=1e-4)
    np.testing.assert_array_equal(acted, [False, False, False, False, True, True])
    np.testing.assert_allclose(np.log(weight[4:] * advantages[4:]), 75, rtol=1e-5)


def test_a_tapered_weight_is_one_for_positives_and_at_most_one_for_negatives(weigh):
    log_ratio = jnp.log(jnp.array([0.25, 4.0, 0.25, 4.0]))
    weight, _ = weigh(weights.tapered, log_ratio, jnp.array([1.0, 1.0, -1.0, -1.0]))
    np.testing.assert_allclose(weight, [1, 1, 0.25, 1], rtol=1e-6)


def test_a_gamma_weight_is_one_on_policy_and_small_far_away(weigh):
    signs = {f"{name}_{sign}": 2.0 for name in ("k", "lambda") for sign in ("positive", "negative")}
    log_ratio = jnp.array([0.0, -75.0, 75.0], jnp.float32)
    weight, _ = weigh(weights.gamma, log_ratio, jnp.ones(3), **signs)
    np.testing.assert_allclose(weight, [1, 0, 0], atol=1e-6)
