import math

import pytest

from grre_jax.errors import UsageError
from grre_jax.rollouts.tools import expression


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("reward_mean == 0.5 and max(rewards) == 1 and rewards.std() == 0.5", True),
        ("position in (1, 4, 7) and question_id not in ['q5']", True),
        ("'4+1' in prompt and prompt.startswith('4') and is_expert.mean() == 0.5", True),
        ("task == 'gsm8k'", False),
    ],
)
def test_expressions(make_group, text, expected):
    assert expression.predicate(text)(make_group(4, rewards=[0, 0, 1, 1])) is expected


def test_accuracy_is_that_of_correctness_not_of_rewards(make_group):
    for components, accuracy in (({"correct": [0, 1, 1, 1]}, 0.75), ({}, math.nan)):
        names = expression.values(make_group(4, rewards=[-1, -1, 2, 2], components=components))
        assert names["accuracy"] == pytest.approx(accuracy, nan_ok=True)
        assert names["reward_mean"] == 0.5


@pytest.mark.parametrize("text", ["prompt := 3", "a; b", ""])
def test_what_is_not_an_expression_is_refused_before_any_group_is_read(text):
    with pytest.raises(UsageError):
        expression.predicate(text)


@pytest.mark.parametrize(
    ("text", "named"), [("reward > 1", "'reward'"), ("1 / position > 0", "zero")]
)
def test_an_expression_that_fails_names_the_cause_and_the_group(make_group, text, named):
    with pytest.raises(UsageError) as error:
        expression.predicate(text)(make_group(0))
    assert named in str(error.value) and "'g0'" in str(error.value)
