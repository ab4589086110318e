"""Masks at and around their bounds, and the limits of exponentials."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grre_jax.objectives.parts import masks, ratios

RATIOS = np.array([0.25, 0.4, 0.45, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0], np.float32)
INSIDE = (RATIOS >= 0.5) & (RATIOS <= 1.5)
NUMBERS = {
    "epsilon_low": 0.5,
    "epsilon_high": 0.5,
    "epsilon_low_prime": 0.75,
    "epsilon_high_prime": 2.0,
    "divergence_low": 0.2,
    "divergence_high": 0.2,
}


@pytest.mark.parametrize(
    "kind, rising, falling",
    [
        ("one_side", RATIOS <= 1.5, RATIOS >= 0.5),
        ("two_side", INSIDE, INSIDE),
        ("ring", INSIDE | (RATIOS <= 0.25), INSIDE | (RATIOS >= 3.0)),
    ],
)
def test_bounds_are_included_and_a_zero_advantage_passes(monkeypatch, kind, rising, falling):
    """At ratios that are not rounded by a logarithm."""
    monkeypatch.setattr(masks, "level_ratio", lambda x: jnp.asarray(RATIOS))
    for advantage, expected in ((1.0, rising), (-1.0, falling), (0.0, RATIOS > 0)):
        advantages = jnp.full(RATIOS.shape, advantage)
        x = SimpleNamespace(advantages=advantages, hyperparameters=NUMBERS)
        np.testing.assert_array_equal(getattr(masks, kind)(x), expected)


def test_a_probability_that_moved_up_to_its_bound_passes(monkeypatch):
    monkeypatch.setattr(masks, "probability", lambda x: x)
    moved = jnp.array([-0.5, -0.25, 0.25, 0.5, 0.5])
    x = SimpleNamespace(
        advantages=jnp.array([-1.0, -1.0, 1.0, 1.0, 0.0]),
        logprobs=0.5 + moved,
        ratio_reference_logprobs=jnp.full(5, 0.5),
        hyperparameters={"divergence_low": 0.25, "divergence_high": 0.25},
    )
    np.testing.assert_array_equal(masks.total_variation(x), [False, True, True, False, True])


def test_a_probability_near_one_keeps_its_divergence_under_jit():
    """In float32 1 - p is 0 for most p near 1, and 1e-8 beside a 1 is nothing."""
    q, policy = np.array([0.999, 0.9]), np.array([0.0, -1e-7])
    fields = {"advantages": jnp.ones(2), "hyperparameters": NUMBERS}

    def passes(policy, old):
        x = SimpleNamespace(logprobs=policy, ratio_reference_logprobs=old, **fields)
        return masks.binary_kl(x)

    kl = q * (np.log(q) - policy) + (1 - q) * np.log((1 - q + 1e-8) / (-np.expm1(policy) + 1e-8))
    found = jax.jit(passes)(jnp.asarray(policy, jnp.float32), jnp.log(jnp.asarray(q, jnp.float32)))
    np.testing.assert_array_equal(found, kl <= 0.2)


def test_exponentials_are_limited_at_their_bounds_and_not_before():
    limited = ratios.limited(jnp.array([-41.0, -40.0, 0.0, 40.0, 1e9], jnp.float32))
    np.testing.assert_array_equal(limited, [-40, -40, 0, 40, 40])

    advantages = jnp.array([-80.0, 0.0, 1.0, 70.0, 80.0, 1e4], jnp.float32)
    x = SimpleNamespace(advantages=advantages, hyperparameters={"tau": 1.0})
    weight = ratios.exponential(x)
    np.testing.assert_allclose(weight[:4], np.exp(advantages[:4]), rtol=1e-6)
    np.testing.assert_allclose(np.log(weight[4:] * advantages[4:]), 75, rtol=1e-5)
