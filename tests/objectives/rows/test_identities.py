"""The identities I1 to I3 of the surrogate's gradients, in float64, near the policy that sampled.
Those between algorithms follow from their formulas (test_formulas).
"""

from functools import partial

import jax
import numpy as np
import pytest
from hypothesis import given, settings

from grre_jax import objectives
from research import surrogate

from ..conftest import assert_close
from ..drawn_cases import NEAR

pytestmark = pytest.mark.usefixtures("float64")
examples = settings(max_examples=50, deadline=None, derandomize=True, database=None)
GROUP = objectives.algorithm("reinforce", aggregation="group")
PAIRWISE, VARIANCE = (
    jax.jit(jax.value_and_grad(partial(surrogate.surrogate_loss, form=form)))
    for form in ("pairwise", "variance")
)
POINTWISE = jax.jit(jax.value_and_grad(surrogate.pointwise_loss))


def differentiated(loss, case, anchor):
    """Value and gradient."""
    return loss(case.logprobs, anchor, case.rewards, case.groups, case.mask, tau=case.tau)


@examples
@given(case=NEAR)
def test_i1_the_surrogates_first_step_is_reinforce(gradient, case):
    """Its gradient at theta_t is 2 tau x group-relative REINFORCE, whoever sampled."""
    for loss in (PAIRWISE, VARIANCE):
        _, slope = differentiated(loss, case, case.logprobs)
        assert_close(slope, 2 * case.tau * gradient(GROUP, case))


@examples
@given(case=NEAR)
def test_i2_pairs_and_variance_have_one_value_and_gradient(case):
    found = differentiated(PAIRWISE, case, case.old)
    expected = differentiated(VARIANCE, case, case.old)
    assert_close(found[0], expected[0])
    assert_close(found[1], expected[1])


@examples
@given(case=NEAR)
def test_i3_the_pointwise_loss_is_opmd(gradient, case):
    """Its gradient is 2 tau (REINFORCE + gradient of (tau/2K) sum (l - l_old)^2)."""
    _, slope = differentiated(POINTWISE, case, case.old)
    opmd = objectives.algorithm("opmd", tau=case.tau)
    assert_close(slope, 2 * case.tau * gradient(opmd, case))
    groups, inverse, sizes = np.unique(case.groups, return_inverse=True, return_counts=True)
    shares = 1 / (sizes[inverse] * (groups >= 0).sum())
    squares = np.where(case.live, (case.tau * shares * case.moved.sum(1))[:, None], 0)
    assert_close(slope, 2 * case.tau * (gradient(GROUP, case) + squares))
