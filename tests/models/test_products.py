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
    x, w, g = (
        normal(0, 7, k, dtype=dtype),
        normal(1, k, m, dtype=dtype),
        normal(2, 7, m, dtype=dtype),
    )
    x32, w32, g32 = (np.asarray(a, np.float64) for a in (x, w, g))
    out, back = jax.vjp(jax.jit(product), x, w)
    for ours, exact in zip((out, *back(g)), (x32 @ w32, g32 @ w32.T, x32.T @ g32), strict=True):
        assert ours.dtype == dtype
        np.testing.assert_allclose(
            np.asarray(ours, np.float64), exact, atol=tolerance * np.abs(exact).max()
        )
    np.testing.assert_allclose(
        np.asarray(jax.jit(left_transposed_product)(x, g), np.float64),
        x32.T @ g32,
        atol=tolerance * 20,
    )


@pytest.mark.parametrize("dtype, tolerance", [(jnp.float32, 1e-5), (jnp.bfloat16, 2e-2)])
def test_swiglu_has_the_gradient_of_its_formula(dtype, tolerance):
    gate, up, g = (3 * normal(i, 6, 8, dtype=dtype) for i in range(3))
    out, back = jax.vjp(jax.jit(swiglu), gate, up)
    exact, exact_back = jax.vjp(
        lambda a, b: jax.nn.silu(a) * b, gate.astype(jnp.float32), up.astype(jnp.float32)
    )
    for ours, wanted in zip(
        (out, *back(g)), (exact, *exact_back(g.astype(jnp.float32))), strict=True
    ):
        np.testing.assert_allclose(
            ours.astype(jnp.float32), wanted, atol=tolerance * float(jnp.abs(wanted).max())
        )
