"""Products and the gated unit: the gradients of plain products, in both precisions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grre_jax.models.products import left_transposed_product, product, swiglu


def normal(seed, *shape, dtype):
    return jax.random.normal(jax.random.key(seed), shape).astype(dtype)


@pytest.mark.parametrize("dtype, tolerance", [(jnp.float32, 1e-5), (jnp.bfloat16, 1e-2)])
@pytest.mark.parametrize("k, m", [(5, 9), (9, 5)])
def test_product_and_its_gradient(dtype, tolerance, k, m):
    shapes = ((7, k), (k, m), (7, m))
    x, w, g = (normal(i, *shape, dtype=dtype) for i, shape in enumerate(shapes))
    x64, w64, g64 = (np.asarray(a, float) for a in (x, w, g))
    out, back = jax.vjp(jax.jit(product), x, w)
    found = (out, *back(g), jax.jit(left_transposed_product)(x, g))
    assert {ours.dtype for ours in found[:3]} == {jnp.dtype(dtype)}
    expected = (x64 @ w64, g64 @ w64.T, x64.T @ g64, x64.T @ g64)
    for ours, exact in zip(found, expected, strict=True):
        atol = tolerance * np.abs(exact).max()
        np.testing.assert_allclose(np.asarray(ours, float), exact, atol=atol)


@pytest.mark.parametrize("dtype, tolerance", [(jnp.float32, 1e-5), (jnp.bfloat16, 2e-2)])
def test_swiglu_has_the_gradient_of_its_formula(dtype, tolerance):
    *inputs, g = (3 * normal(i, 6, 8, dtype=dtype) for i in range(3))

    def both(function, *arrays):
        *inputs, g = arrays
        out, back = jax.vjp(function, *inputs)
        return out, *back(g)

    found = both(jax.jit(swiglu), *inputs, g)
    exact = (x.astype(jnp.float32) for x in (*inputs, g))
    expected = both(lambda a, b: jax.nn.silu(a) * b, *exact)
    for ours, wanted in zip(found, expected, strict=True):
        atol = tolerance * float(jnp.abs(wanted).max())
        np.testing.assert_allclose(ours.astype(jnp.float32), wanted, atol=atol)
