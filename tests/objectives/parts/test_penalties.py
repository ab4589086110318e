"""KL estimators: values, gradients, and what their expectations are."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grre_jax.objectives.parts import penalties

POLICY = np.log(np.array([0.5, 0.3, 0.2]))
ANCHOR = np.log(np.array([0.2, 0.2, 0.6]))


def estimated(estimator, logprobs, anchor):
    x = SimpleNamespace(logprobs=logprobs, ref_logprobs=anchor, hyperparameters={"kl_coef": 1.0})
    return penalties.KL[estimator, "reference"](x)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize(
    ("estimator", "value", "slope"),
    [
        ("k1", lambda x: -x, lambda x: np.ones_like(x)),
        ("k2", lambda x: x**2 / 2, lambda x: -x),
        ("k3", lambda x: np.exp(x) - 1 - x, lambda x: 1 - np.exp(x)),
    ],
)
def test_kl_estimators(estimator, value, slope):
    gap = ANCHOR - POLICY
    estimates, pull = jax.vjp(
        lambda logprobs: estimated(estimator, logprobs, ANCHOR), jnp.asarray(POLICY)
    )
    np.testing.assert_allclose(estimates, value(gap), rtol=1e-12)
    np.testing.assert_allclose(pull(jnp.ones(3))[0], slope(gap), rtol=1e-12)
    if estimator != "k2":  # k2 is biased
        kl = np.sum(np.exp(POLICY) * (POLICY - ANCHOR))
        np.testing.assert_allclose(np.sum(np.exp(POLICY) * estimates), kl, rtol=1e-12)


def test_k3_is_bounded_and_its_gradient_too():
    anchor = jnp.zeros(2, jnp.float32)
    estimates, pull = jax.vjp(
        lambda logprobs: estimated("k3", logprobs, anchor),
        jnp.array([-1e4, 1e4], jnp.float32),
    )
    np.testing.assert_allclose(estimates, [np.exp(40.0), 1e4], rtol=1e-4)
    np.testing.assert_allclose(pull(anchor + 1)[0], [-np.exp(40.0), 1], rtol=1e-5)
