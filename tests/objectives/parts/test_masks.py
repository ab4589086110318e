"""Masks at and around their bounds."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grre_jax.objectives.parts import masks

RATIOS = np.array([0.25, 0.4, 0.45, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0], np.float32)
NUMBERS = {
    **{f"epsilon_{end}": 0.5 for end in ("low", "high")},
    **{"epsilon_low_prime": 0.75, "epsilon_high_prime": 2.0},
    **{f"divergence_{end}": 0.2 for end in ("low", "high")},
}


@pytest.fixture
def passes(monkeypatch):
    """`passes(mask, advantage)` at `RATIOS`, which are not rounded by a logarithm."""
    monkeypatch.setattr(masks, "level_ratio", lambda x: jnp.asarray(RATIOS))
    return lambda mask, advantage: np.asarray(
        mask(SimpleNamespace(advantages=jnp.full(RATIOS.shape, advantage), hyperparameters=NUMBERS))
    )


def diverges(mask, policy, old, advantages):
    return mask(
        SimpleNamespace(
            logprobs=policy,
            ratio_reference_logprobs=old,
            advantages=advantages,
            hyperparameters=NUMBERS,
        )
    )


def test_one_side_stops_what_has_moved_far_enough_bounds_included(passes):
    np.testing.assert_array_equal(passes(masks.one_side, 1.0), RATIOS <= 1.5)
    np.testing.assert_array_equal(passes(masks.one_side, -1.0), RATIOS >= 0.5)


def test_two_side_bounds_are_included(passes):
    inside = (RATIOS >= 0.5) & (RATIOS <= 1.5)
    np.testing.assert_array_equal(passes(masks.two_side, 1.0), inside)
    np.testing.assert_array_equal(passes(masks.two_side, -1.0), inside)


def test_ring_lets_back_what_is_far_out_bounds_included(passes):
    inside = (RATIOS >= 0.5) & (RATIOS <= 1.5)
    np.testing.assert_array_equal(passes(masks.ring, 1.0), inside | (RATIOS <= 0.25))
    np.testing.assert_array_equal(passes(masks.ring, -1.0), inside | (RATIOS >= 3.0))


@pytest.mark.parametrize("kind", ["one_side", "two_side", "ring"])
def test_a_zero_advantage_passes(passes, kind):
    assert passes(getattr(masks, kind), 0.0).all()


def test_divergences_stop_only_the_harmful_way():
    old, policy = (
        jnp.log(jnp.array(values)) for values in ([0.5, 0.5, 0.5, 0.5], [0.6, 0.9, 0.4, 0.1])
    )
    for mask in (masks.total_variation, masks.binary_kl):
        rising, falling = (diverges(mask, policy, old, sign * jnp.ones(4)) for sign in (1, -1))
        np.testing.assert_array_equal(rising, [True, False, True, True])
        np.testing.assert_array_equal(falling, [True, True, True, False])


def test_trust_region_candidates_have_moved_the_way_they_are_pushed():
    candidates = masks.trust_region_candidates(
        jnp.array([1.0, -1.0, 1.0, -1.0, 0.0]), jnp.array([1.0, 1.0, -1.0, -1.0, 1.0])
    )
    np.testing.assert_array_equal(candidates, [True, False, False, True, False])


def test_a_probability_near_one_keeps_its_divergence_under_jit():
    """In float32 1 - p is 0 for most p near 1, and 1e-8 beside a 1 is nothing."""
    old, policy = (
        jnp.log(jnp.array([0.999, 0.9], jnp.float32)),
        jnp.array([0.0, -1e-7], jnp.float32),
    )
    arguments = (masks.binary_kl, policy, old, jnp.ones(2))
    q = np.array([0.999, 0.9])
    kl = q * (np.log(q) - np.asarray(policy, float)) + (1 - q) * np.log(
        (1 - q + 1e-8) / (-np.expm1(np.asarray(policy, float)) + 1e-8)
    )
    np.testing.assert_array_equal(jax.jit(diverges, static_argnums=0)(*arguments), kl <= 0.2)
    np.testing.assert_array_equal(diverges(*arguments), kl <= 0.2)
