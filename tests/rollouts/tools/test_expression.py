import math

import pytest

from grre_jax.errors import UsageError
from grre_jax.rollouts.tools import copying


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("reward_mean == 0.5 and max(rewards) == 1 and has_reward_variance", True),
        ("is_expert.mean() == 0.5 and length_max == max(lengths)", True),
        ("task == 'gsm8k'", False),
    ],
)
def test_expressions(make_group, text, expected):
    assert copying.predicate(text)(make_group(4, rewards=[0, 0, 1, 1])) is expected


def test_accuracy_is_that_of_correctness_not_of_rewards(make_group):
    for components, accuracy in (({"correct": [0, 1, 1, 1]}, 0.75), ({}, math.nan)):
        names = copying.values(make_group(4, rewards=[-1, -1, 2, 2], components=components))
        assert names["accuracy"] == pytest.approx(accuracy, nan_ok=True)


def test_what_is_no_expression_is_refused_before_any_group_is_read_and_what_fails_with_it(
    make_group,
):
    with pytest.raises(UsageError):
        copying.predicate("prompt := 3")
    with pytest.raises(UsageError, match="'g0'.*'reward'"):
        copying.predicate("reward > 1")(make_group(0))
