import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grre_jax.sampling.distributions.vocabulary import invert


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 9), min_size=8, max_size=8).filter(any), st.integers(0, 2**10 - 1))
def test_the_draw_is_where_the_uniform_falls(weights, numerator):
    """Small integers and a uniform of few bits: every number is exact."""
    at = numerator * sum(weights) / 2**10
    expected = int(np.searchsorted(np.cumsum(weights), at, side="right"))
    drawn = jax.jit(invert)(
        jnp.full(1, numerator / 2**10, jnp.float32), jnp.asarray([weights], jnp.float32)
    )
    assert int(drawn[0]) == expected and weights[expected] > 0


@pytest.mark.parametrize("uniform", [0.0, 0.25, 0.5, 1 - 2**-24])
def test_entries_without_weight_are_never_drawn(monkeypatch, uniform):
    """Not even where a backend's prefix sum is rounded so that an entry without weight seems to
    add some, as parallel prefix sums do.
    """
    weights = np.random.default_rng(0).random((64, 400), np.float32) * (
        np.random.default_rng(1).random((64, 400)) < 0.3
    )
    exact = jnp.cumsum

    def rounded(x, axis):
        steps = jnp.arange(x.shape[axis]) % 2
        return exact(x, axis=axis) * (1 + 0.01 * steps)

    for cumsum in (exact, rounded):
        monkeypatch.setattr(jnp, "cumsum", cumsum)
        drawn = np.asarray(invert(jnp.full(64, uniform, jnp.float32), jnp.asarray(weights)))
        assert (weights[np.arange(64), drawn] > 0).all()
