"""Products and the gated unit: the gradients of plain products, in both precisions."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grre_jax.models.products import left_transposed_product, product, swiglu


def normal(seed, *shape, dtype):
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


@jax.jit
def products(x, w, g):
    out, back = jax.vjp(product, x, w)
    return (out, *back(g), left_transposed_product(x, g))


# The smaller operand is transposed, in bfloat16 as a copy.
@pytest.mark.parametrize(
    "dtype, tolerance, k, m", [(jnp.float32, 1e-5, 5, 9), (jnp.bfloat16, 1e-2, 9, 5)]
)
def test_product_and_its_gradient(dtype, tolerance, k, m):
    shapes = ((7, k), (k, m), (7, m))
    x, w, g = (normal(i, *shape, dtype=dtype) for i, shape in enumerate(shapes))
    x64, w64, g64 = (np.asarray(a, float) for a in (x, w, g))
    found = products(x, w, g)
    assert {ours.dtype for ours in found[:3]} == {jnp.dtype(dtype)}
    expected = (x64 @ w64, g64 @ w64.T, x64.T @ g64, x64.T @ g64)
    for ours, exact in zip(found, expected, strict=True):
        atol = tolerance * np.abs(exact).max()
        np.testing.assert_allclose(np.asarray(ours, float), exact, atol=atol)


@partial(jax.jit, static_argnums=0)
def gated(function, a, b, g):
    out, back = jax.vjp(function, a, b)
    return out, *back(g)


def formula(a, b):
    return jax.nn.silu(a) * b


@pytest.mark.parametrize("dtype, tolerance", [(jnp.float32, 1e-5), (jnp.bfloat16, 2e-2)])
def test_swiglu_has_the_gradient_of_its_formula(dtype, tolerance):
    inputs = [(3 * normal(i, 6, 8, dtype=float)).astype(dtype) for i in range(3)]
    found = gated(swiglu, *inputs)
    expected = gated(formula, *(x.astype(np.float32) for x in inputs))
    for ours, wanted in zip(found, expected, strict=True):
        atol = tolerance * np.abs(wanted).max()
        np.testing.assert_allclose(np.asarray(ours, np.float32), wanted, atol=atol)
