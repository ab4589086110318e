"""I11: no NaN or Inf in any loss, gradient, advantage or metric over the stated domain, in every
algorithm and variant, with garbage under the mask. In float64 one of every kind is in
test_invariances, which compiles them.

The domain, in float64: |d| <= 80 a token, |S| <= 700 a response, |r| <= 1e6, |A| / tau <= 500; in
float32 40, 80, 1e4 and 80. The examples reach its edges: rows in which every token stands at one,
sums scaled down to theirs.
"""

from dataclasses import replace

import jax
import numpy as np
import pytest
from hypothesis import given, settings

from ..all_objectives import every_objective
from ..drawn_cases import SINGLE

examples = settings(max_examples=50, deadline=None, derandomize=True, database=None)
BOUND = {np.float64: 500, np.float32: 80}
CHOSEN = every_objective(True)
# With exponentials of rewards or of whole responses, and with statistics of the batch.
QUICK = ("opmd_logavgexp-mean", "gepo-default")


def at_temperature(objective, case):
    """The objective with the case's temperature, raised to the edge of the domain where it is
    too low for the case's rewards.
    """
    spreads = [
        np.ptp(case.rewards[case.groups == group].astype(float))
        for group in set(case.groups[case.groups >= 0])
    ]
    # A rounded quotient does not leave the domain.
    lowest = max(spreads) / BOUND[case.logprobs.dtype.type] * (1 + 1e-5)
    numbers = dict(objective.hyperparameters)
    numbers |= dict.fromkeys(numbers.keys() & {"tau", "beta_1"}, max(case.tau, lowest))
    return replace(objective, hyperparameters=numbers)


def check_finite(gradient, objective, case, **layout):
    """Everything finite, and nothing where nothing counts."""
    objective = at_temperature(objective, case)
    shaped = gradient.shaped(objective, case)
    slope, metrics = gradient.both(objective, case, shaped, **layout)
    assert slope.dtype == case.logprobs.dtype
    assert np.isfinite(slope).all() and np.isfinite(shaped.advantages).all()
    assert np.isfinite(list(metrics.values())).all(), metrics
    assert not slope[~case.live].any()


@pytest.mark.parametrize(
    "name", [pytest.param(x, marks=() if x in QUICK else pytest.mark.slow) for x in CHOSEN]
)
def test_i11_no_nan_or_inf_on_the_domain(gradient, name):
    with jax.enable_x64(False):

        @examples
        @given(case=SINGLE)
        def run(case):
            check_finite(gradient, CHOSEN[name], case)

        run()
