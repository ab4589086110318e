"""Rotary positions: what the rotation keeps, and the gradient that is written by hand."""

import jax
import jax.numpy as jnp
import numpy as np

from grre_jax.models.rotary import rope_frequencies, rotate_groups


def tables(positions, dim):
    angle = positions[..., None] * rope_frequencies(dim, 1e4)
    return jnp.cos(angle), jnp.sin(angle)


def test_values_are_not_turned_and_the_gradient_is_that_of_the_formula():
    rng, group = np.random.default_rng(0), 3
    y = jnp.asarray(rng.normal(size=(2, 5, 2, group + 2, 8)), jnp.float32)
    cos, sin = tables(jnp.asarray(rng.integers(0, 50, (2, 5))), 8)

    def plain(y):
        """Entry i and entry i + dim/2 are the parts of a complex number that is multiplied by
        exp(i angle).
        """
        turned = (y[..., :4] + 1j * y[..., 4:]) * (cos + 1j * sin)[:, :, None, None]
        turned = jnp.concatenate([turned.real, turned.imag], -1)
        return turned[..., :group, :], turned[..., group, :], y[..., group + 1, :]

    def both(rotate):
        out, back = jax.vjp(rotate, y)
        return out, back(tuple(jnp.sin(jnp.arange(x.size)).reshape(x.shape) for x in out))

    found, expected = both(lambda y: rotate_groups(y, cos, sin)), both(plain)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
