"""Masks at and around their bounds, weights and the limits that are documented."""

import jax.numpy as jnp
import numpy as np
import pytest

from grre_jax.objectives import weights

RATIOS = np.array([0.25, 0.4, 0.45, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0], np.float32)
NUMBERS = {"epsilon_low": 0.5, "epsilon_high": 0.5, "epsilon_low_prime": 0.75, "epsilon_high_prime": 2.0}


def passes(kind, advantage):
    return np.asarray(weights.MASKS[kind](jnp.asarray(RATIOS), jnp.full(RATIOS.shape, advantage), NUMBERS))


def test_one_side_stops_what_has_moved_far_enough_bounds_included():
    np.testing.assert_array_equal(passes("one_side", 1.0), RATIOS <= 1.5)
    np.testing.assert_array_equal(passes("one_side", -1.0), RATIOS >= 0.5)


def test_two_side_bounds_are_included():
    inside = (RATIOS >= 0.5) & (RATIOS <= 1.5)
    np.testing.assert_array_equal(passes("two_side", 1.0), inside)
    np.testing.assert_array_equal(passes("two_side", -1.0), inside)


def test_ring_lets_back_what_is_far_out_bounds_included():
    inside = (RATIOS >= 0.5) & (RATIOS <= 1.5)
    np.testing.assert_array_equal(passes("ring", 1.0), inside | (RATIOS <= 0.25))
    np.testing.assert_array_equal(passes("ring", -1.0), inside | (RATIOS >= 3.0))


@pytest.mark.parametrize("kind", weights.MASKS)
def test_a_zero_advantage_passes(kind):
    assert passes(kind, 0.0).all()


def test_frozen_log_ratio_is_at_the_nearest_bound():
    log_ratio = jnp.log(jnp.asarray(RATIOS))
    frozen = weights.frozen_log_ratio(log_ratio, passes("one_side", 1.0), 0.5, 0.5)
    np.testing.assert_allclose(np.exp(frozen), np.minimum(RATIOS, 1.5), rtol=1e-6)
    frozen = weights.frozen_log_ratio(log_ratio, passes("two_side", 1.0), 0.5, 0.5)
    np.testing.assert_allclose(np.exp(frozen), np.clip(RATIOS, 0.5, 1.5), rtol=1e-6)


def test_log_ratio_limit_is_reported_and_not_before_it_acts():
    limited, acted = weights.limit_log_ratio(jnp.array([-41.0, -40.0, 0.0, 40.0, 1e9], jnp.float32))
    np.testing.assert_array_equal(limited, [-40, -40, 0, 40, 40])
    np.testing.assert_array_equal(acted, [True, False, False, False, True])


def test_exponential_weight_is_exact_up_to_its_limit():
    advantages = jnp.array([-80.0, 0.0, 1.0, 70.0, 80.0, 1e4], jnp.float32)
    weight, acted = weights.exponential_weight(advantages, 1.0)
    np.testing.assert_allclose(weight[:4], np.exp([-80.0, 0.0, 1.0, 70.0]), rtol=1e-4)
    np.testing.assert_array_equal(acted, [False, False, False, False, True, True])
    np.testing.assert_allclose(np.log(weight[4:] * advantages[4:]), 75, rtol=1e-5)
