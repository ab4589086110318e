"""Products in bfloat16, whose operands are copied. (In float32: test_transformer.)"""

import jax
import jax.numpy as jnp
import numpy as np

from grre_jax.models.products import left_transposed_product, product


def test_product_and_its_gradient():
    random = np.random.default_rng(0)
    shapes = ((7, 9), (9, 5), (7, 5))
    x, w, g = (jnp.asarray(random.normal(size=shape), jnp.bfloat16) for shape in shapes)

    @jax.jit
    def products(x, w, g):
        out, back = jax.vjp(product, x, w)
        return out, *back(g), left_transposed_product(x, g)

    found = products(x, w, g)
    assert {ours.dtype for ours in found} == {jnp.dtype("bfloat16")}
    x64, w64, g64 = (np.asarray(a, float) for a in (x, w, g))
    expected = (x64 @ w64, g64 @ w64.T, x64.T @ g64, x64.T @ g64)
    for ours, exact in zip(found, expected, strict=True):
        atol = 1e-2 * np.abs(exact).max()
        np.testing.assert_allclose(np.asarray(ours, float), exact, atol=atol)
