"""Matrices in int8 and fp8."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grre_jax.models.quantised import DTYPES, MOST, quantise, scaled_product
from grre_jax.sampling.config import WEIGHT_DTYPES

# Columns of very different size, one of them zero.
W = np.random.default_rng(0).normal(size=(32, 5)) * [1e-6, 1, 30, 0, 1e4]


def test_the_configuration_offers_every_dtype():
    assert tuple(DTYPES) == tuple(MOST) == WEIGHT_DTYPES


@pytest.mark.parametrize("name", DTYPES)
def test_entries_move_by_at_most_their_bound(name):
    values, scale = (np.asarray(x, np.float64) for x in quantise(jnp.asarray(W), name))
    moved, size = np.abs(values * scale - W), np.abs(W)
    bound = scale / 2 if name == "int8" else np.maximum(size / 16, scale * 2.0**-10)
    assert (moved <= bound * (1 + 1e-5)).all() and moved.max() > 0
    assert (np.abs(values).max(0) == [MOST[name]] * 3 + [0, MOST[name]]).all()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", DTYPES)
def test_a_product_is_that_of_the_rounded_matrix(name, dtype):
    values, scale = quantise(jnp.asarray(W), name)
    x = jnp.asarray(np.random.default_rng(1).normal(size=(3, 32)), dtype)
    exact = np.asarray(x, np.float64) @ (np.asarray(values, np.float64) * np.asarray(scale))
    for stored in (values, values.astype(dtype)):
        got = scaled_product(x, stored, scale)
        assert got.dtype == jnp.float32
        size = np.maximum(np.abs(exact).max(0), 1e-30)
        np.testing.assert_allclose(got / size, exact / size, atol=1e-5)


def test_a_loop_cannot_convert_the_matrix_ahead():
    """The conversion takes what depends on the loop's own value."""
    traced = jax.make_jaxpr(scaled_product)(jnp.ones((2, 32)), *quantise(jnp.asarray(W), "int8"))
    barrier, convert = traced.eqns[:2]
    assert barrier.primitive.name == "optimization_barrier"
    assert set(barrier.invars) == set(traced.jaxpr.invars[:2])
    assert convert.primitive.name == "convert_element_type" and convert.invars[0] in barrier.outvars
