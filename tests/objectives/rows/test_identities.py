"""The identities I1 to I3 of the surrogate's gradients, in float64, near the policy that sampled.
Those between algorithms follow from their formulas (test_formulas).
"""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings

from grre_jax import objectives
from research import surrogate

from ..drawn_cases import NEAR

pytestmark = pytest.mark.usefixtures("float64")
GROUP = objectives.algorithm("reinforce", aggregation="group")


def half_squares(logprobs, old, live, factors):
    """sum_i factors_i / 2 (l_i - l_old,i)^2 over responses."""
    return jnp.sum(factors / 2 * jnp.sum(jnp.where(live, logprobs - old, 0), axis=1) ** 2), {}


def pairwise(*arguments):
    return surrogate.surrogate_loss(*arguments[:-1], tau=arguments[-1], form="pairwise"), {}


def variance(*arguments):
    return surrogate.surrogate_loss(*arguments[:-1], tau=arguments[-1], form="variance"), {}


def pointwise(*arguments):
    return surrogate.pointwise_loss(*arguments[:-1], tau=arguments[-1]), {}


def data_of(case):
    return case.rewards, case.groups, case.mask, case.tau


def shares(case):
    """[responses] 1 / (size of the group x groups), the derivation's weight of a response."""
    groups, inverse, sizes = np.unique(case.groups, return_inverse=True, return_counts=True)
    return 1 / (sizes[inverse] * max((groups >= 0).sum(), 1))


def i1_surrogate_step_is_reinforce(gradient, close, case):
    """Gradient of the surrogate at theta_t = 2 tau x group-relative REINFORCE, whoever sampled."""
    for loss in (pairwise, variance):
        _, slope = gradient.of(loss, case, case.logprobs, *data_of(case))
        close(slope, 2 * case.tau * gradient(GROUP, case))


def i2_pairwise_is_variance(gradient, close, case):
    """Value and gradient."""
    found, expected = (
        gradient.of(loss, case, case.old, *data_of(case)) for loss in (pairwise, variance)
    )
    close(found[0], expected[0])
    close(found[1], expected[1])


def i3_opmd_pointwise(gradient, close, case):
    """OPMD pointwise = 2 tau (REINFORCE + gradient of (tau/2K) sum (l - l_old)^2)."""
    _, slope = gradient.of(pointwise, case, case.old, *data_of(case))
    close(slope, 2 * case.tau * gradient(objectives.algorithm("opmd", tau=case.tau), case))
    _, squares = gradient.of(half_squares, case, case.old, case.live, case.tau * shares(case))
    close(slope, 2 * case.tau * (gradient(GROUP, case) + squares))


@pytest.mark.parametrize(
    "identity", [i1_surrogate_step_is_reinforce, i2_pairwise_is_variance, i3_opmd_pointwise]
)
@settings(max_examples=50, deadline=None, derandomize=True, database=None)
@given(case=NEAR)
def test_identity(gradient, assert_close, identity, case):
    identity(gradient, assert_close, case)
