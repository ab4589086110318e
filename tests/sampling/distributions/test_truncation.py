"""Thresholds against float64 NumPy, over rows with ties and tokens that cannot be drawn."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from grre_jax.sampling.distributions.truncation import (
    MinP,
    TopK,
    TopP,
)

ROWS, VOCAB = 3, 17
# A grid of few values makes ties; the numbers beside it have any exponent. Above -90, so that no
# probability is lost to float32's range.
VALUES = st.one_of(
    st.sampled_from([-np.inf, -3.0, -1.5, -1.0, -0.0, 0.0, 0.5, 2.0]),
    st.floats(-40, 40, width=32, allow_subnormal=False),
    st.floats(-(2.0**-100), 2.0**-100, width=32, allow_subnormal=False),
)
ROW = arrays.arrays(np.float32, (ROWS, VOCAB), elements=VALUES)
FLOORS = st.sampled_from([-np.inf, -2.0, -0.0, 0.0, 0.5])
# To jax (0.10.2) two registered dataclasses of the same fields have equal tree structures, so one
# jitted function may find the program of another kind where their hashes meet: each kind has its
# own.
_jitted = {
    kind: jax.jit(lambda truncation, scaled, floor: truncation.threshold(scaled, floor))
    for kind in (TopK, TopP, MinP)
}


def threshold(truncation, scaled, floor):
    return _jitted[type(truncation)](truncation, scaled, floor)


def with_one_finite(scaled, floor):
    """At least one token of each row lies at or above the floor."""
    scaled = scaled.copy()
    scaled[:, 3] = np.maximum(scaled[:, 3], np.maximum(floor, -5.0))
    return scaled


def kept(truncation, scaled, floor=-np.inf):
    limit = np.asarray(
        threshold(truncation, jnp.asarray(scaled), jnp.full(len(scaled), floor, jnp.float32))
    )
    assert limit.shape == scaled.shape[:-1] and (limit >= np.float32(floor)).all()
    return scaled >= limit[:, None]


@settings(max_examples=150, deadline=None)
@given(ROW, st.integers(1, VOCAB - 1), FLOORS)
def test_top_k_keeps_the_k_largest_and_their_ties(scaled, k, floor):
    scaled = with_one_finite(scaled, floor)
    expected = (scaled >= np.sort(scaled, axis=1)[:, ::-1][:, k - 1 : k]) & (scaled >= floor)
    np.testing.assert_array_equal(kept(TopK(jnp.int32(k)), scaled, floor), expected)


@settings(max_examples=150, deadline=None)
@given(ROW, st.floats(0.015625, 0.9990234375, width=32), FLOORS)
def test_top_p_keeps_a_token_while_those_above_it_fall_short(scaled, p, floor):
    scaled = with_one_finite(scaled, floor)
    got = kept(TopP(jnp.float32(p)), scaled, floor)
    for row, keeps in zip(scaled.astype(np.float64), got, strict=True):
        weight = np.where(row >= floor, np.exp(row - row.max()), 0)
        above = np.array([weight[row > x].sum() for x in row])
        # Tokens too small for float32's range have no mass there: whether they are kept changes
        # nothing.
        decided = (abs(above / weight.sum() - p) > 1e-6) & ((weight > 1e-37) | (weight == 0))
        np.testing.assert_array_equal(
            keeps[decided], ((above < p * weight.sum()) & (weight > 0))[decided]
        )
        assert keeps[row.argmax()]


@settings(max_examples=150, deadline=None)
@given(ROW, st.floats(2.0**-20, 1.0, width=32), FLOORS)
def test_min_p_keeps_what_is_likely_enough_beside_the_most_probable(scaled, p, floor):
    scaled = with_one_finite(scaled, floor)
    distance = scaled.astype(np.float64) - scaled.max(axis=1, keepdims=True)
    decided = abs(distance - np.log(p)) > 1e-5 * (1 + abs(scaled.max(axis=1, keepdims=True)))
    decided |= (distance == 0) | (p == 1.0)
    expected = (distance >= np.log(p)) & (scaled >= floor)
    np.testing.assert_array_equal(
        kept(MinP(jnp.float32(p)), scaled, floor)[decided], expected[decided]
    )


@pytest.mark.parametrize("off", [TopK(0), TopK(VOCAB), TopK(VOCAB + 5), TopP(1.0), MinP(0.0)])
def test_what_is_off_keeps_all_that_is_there(off):
    scaled = np.random.default_rng(0).normal(size=(ROWS, VOCAB)).astype(np.float32)
    assert not bool(off.active(VOCAB)) and kept(off, scaled).all()
    np.testing.assert_array_equal(kept(off, scaled, 0.25), scaled >= 0.25)
