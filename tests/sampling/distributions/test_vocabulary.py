import jax
import jax.numpy as jnp
import numpy as np

from grre_jax.sampling.distributions.vocabulary import invert


def test_entries_without_weight_are_never_drawn(monkeypatch):
    """Not even where a backend's prefix sum is rounded so that an entry without weight seems to
    add some, as parallel prefix sums do.
    """
    random = np.random.default_rng(0)
    weights = random.random((64, 400), np.float32) * (random.random((64, 400)) < 0.3)
    uniforms = np.resize(np.float32([0.0, 0.25, 0.5, 1 - 2**-24]), 64)
    exact = jnp.cumsum

    def rounded(x, axis):
        steps = jnp.arange(x.shape[axis]) % 2
        return exact(x, axis=axis) * (1 + 0.01 * steps)

    for cumsum in (exact, rounded):
        monkeypatch.setattr(jnp, "cumsum", cumsum)
        drawn = np.asarray(jax.jit(lambda *given: invert(*given))(uniforms, weights))
        assert (weights[np.arange(64), drawn] > 0).all()
