import jax.numpy as jnp
import numpy as np
import pytest

from grre_jax.sampling.distributions.vocabulary import invert


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
