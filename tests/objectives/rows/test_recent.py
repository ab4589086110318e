"""Components of rewards: which are taken, which apply, and what is refused. (Numbers of public
code: test_peers.)
"""

import numpy as np
import pytest

from grre_jax import objectives

pytestmark = pytest.mark.usefixtures("float64")
REWARDS, GROUPS = np.array([1.0, 0.0]), np.zeros(2, int)
BOTH = {"a": REWARDS, "b": REWARDS}


@pytest.mark.parametrize(
    "named, components, message",
    [
        (None, None, "pass components="),
        ("a,c", BOTH, "no reward component 'c'"),
        ("a", {"a": np.ones(3)}, "component 'a' must be"),
        ("a", {"a": np.array([1, np.inf])}, r"component 'a'\[1\] is inf"),
        ("a,a", BOTH, "components must be different"),
    ],
)
def test_components_that_cannot_be_taken_are_refused(named, components, message):
    with pytest.raises(ValueError, match=message):
        objectives.advantages(
            objectives.algorithm("gdpo", components=named), REWARDS, GROUPS, components=components
        )


def test_a_component_that_does_not_apply_is_left_out_of_its_mean():
    """The response has nothing of that component, and the others what they have without it."""
    values = np.array([1.0, 0.0, 3.0, np.nan])
    alone = objectives.algorithm("reinforce", advantage="decoupled", components="a")
    found = objectives.advantages(alone, np.zeros(4), np.zeros(4, int), components={"a": values})
    three = (values[:3] - values[:3].mean()) / (values[:3].std(ddof=1) + 1e-6)
    spread = np.append(three, 0)
    expected = spread / (spread.std(ddof=1) + 1e-6)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-12)
