"""Preferences between the responses of a group: all pairs, without an array of all pairs. (Values:
test_formulas.)
"""

import jax
import numpy as np
import pytest

from grre_jax import objectives

RESPONSES, TIME = 37, 2


def shapes(jaxpr):
    for equation in jaxpr.eqns:
        yield from (variable.aval.shape for variable in equation.outvars)
        for parameter in jax.tree.leaves(
            list(equation.params.values()), is_leaf=lambda each: hasattr(each, "eqns")
        ):
            inner = getattr(parameter, "jaxpr", parameter)
            if hasattr(inner, "eqns"):
                yield from shapes(inner)


@pytest.mark.parametrize("name", ["dpo", "ipo"])
def test_no_array_is_quadratic_in_the_responses(name):
    objective = objectives.algorithm(name)
    batch = objectives.padded_batch(
        advantages=np.zeros(RESPONSES),
        mask=np.ones((RESPONSES, TIME)),
        groups=np.arange(RESPONSES) // 9,
        ref_logprobs=np.zeros((RESPONSES, TIME)),
        rewards=np.arange(RESPONSES) % 4.0,
    )
    traced = jax.make_jaxpr(
        jax.grad(lambda values: objectives.policy_loss(objective, values, batch)[0])
    )(np.zeros((RESPONSES, TIME), np.float32))
    found = set(shapes(traced.jaxpr))
    assert (RESPONSES,) in found and (RESPONSES, TIME) in found
    assert max(int(np.prod(shape)) for shape in found) < RESPONSES**2
