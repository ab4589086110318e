"""Rotary positions: what the rotation keeps, and the gradient that is written by hand."""

import jax
import jax.numpy as jnp
import numpy as np

from grre_jax.models.rotary import rope_frequencies, rotate_groups


def test_values_are_not_turned_and_the_gradient_is_that_of_the_formula():
    rng = np.random.default_rng(0)
    group = 3
    y = rng.normal(size=(2, 5, 2, group + 2, 8)).astype(np.float32)
    angle = rng.integers(0, 50, (2, 5, 1)) * np.asarray(rope_frequencies(8, 1e4))
    cos, sin = np.cos(angle, dtype=np.float32), np.sin(angle, dtype=np.float32)

    def plain(y):
        """Entry i and entry i + dim/2 are the parts of a complex number that is multiplied by
        exp(i angle).
        """
        turned = (y[..., :4] + 1j * y[..., 4:]) * (cos + 1j * sin)[:, :, None, None]
        turned = jnp.concatenate([turned.real, turned.imag], -1)
        return turned[..., :group, :], turned[..., group, :], y[..., group + 1, :]

    @jax.jit
    def both(y):
        pairs = []
        for rotate in (lambda y: rotate_groups(y, cos, sin), plain):
            out, back = jax.vjp(rotate, y)
            pairs.append((out, back(tuple(jnp.sin(3 * x) for x in out))))
        return pairs

    found, expected = both(y)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
