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

from ..all_objectives import Together, every_objective
from ..drawn_cases import SINGLE

examples = settings(max_examples=100, deadline=None, derandomize=True, database=None)
BOUND = {np.float64: 500, np.float32: 80}
TEMPERATURES = ("tau", "beta_1")


def at_temperature(chosen, case):
    """The objectives with the case's temperature, raised to the edge of the domain where it is
    too low for the case's rewards.
    """
    spreads = [
        np.ptp(case.rewards[case.groups == group].astype(float))
        for group in set(case.groups[case.groups >= 0])
    ]
    # A rounded quotient does not leave the domain.
    lowest = max(spreads) / BOUND[case.logprobs.dtype.type] * (1 + 1e-5)

    def heated(objective):
        numbers = objective.hyperparameters
        changed = {name: max(case.tau, lowest) for name in TEMPERATURES if name in numbers}
        return replace(objective, hyperparameters={**numbers, **changed})

    return {name: heated(objective) for name, objective in chosen.items()}


def unlimited(objective):
    """Whether no weight of the objective is an exponential of a reward or of a whole response's
    log-ratio.
    """
    return (
        objective.level.name == "token"
        and objective.weight.name != "exponential"
        and objective.term.name != "geometric_mean"
    )


def check_finite(together, case):
    """Everything finite, and nothing where nothing counts; the bound of a token's log-ratio
    never acts, as it is the domain's edge.
    """
    chosen = at_temperature(together.chosen, case)
    *found, metrics = together(case, chosen=chosen)
    slopes = found[1]
    assert slopes.dtype == case.logprobs.dtype
    names, metric_names = np.array(list(chosen)), np.array(together.metrics)
    for what, values in zip(("loss", "gradient", "advantages"), found, strict=True):
        wrong = ~np.isfinite(values.reshape(len(names), -1)).all(1)
        assert not wrong.any(), (what, names[wrong])
    assert np.isfinite(metrics).all(), metric_names[~np.isfinite(metrics)]
    stray = slopes[:, ~case.live].any(1)
    assert not stray.any(), names[stray]
    if case.logprobs.dtype == np.float64:  # float32 rounds the edge itself
        tokenwise = [f"{name} limited_fraction" for name in names if unlimited(chosen[name])]
        acted = metric_names[np.isin(metric_names, tokenwise) & (metrics != 0)]
        assert not acted.size, acted


# In float32 those with exponentials of rewards or of whole responses, and with statistics of the
# batch.
STEEP = ("gspo-population", "opmd_logavgexp-mean", "red_weight-default", "vespo-default")
GATHERING = ("clip_cov-default", "dpo-default", "gepo-default")


@pytest.mark.parametrize("names", [STEEP + GATHERING, pytest.param((), marks=pytest.mark.slow)])
def test_i11_no_nan_or_inf_on_the_domain(names):
    with jax.enable_x64(False):
        chosen = every_objective(True)
        together = Together({name: chosen[name] for name in names or chosen})

        @examples
        @given(case=SINGLE)
        def run(case):
            check_finite(together, case)

        run()
