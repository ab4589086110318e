import dataclasses

import numpy as np
import pytest

from grre_jax import rollouts
from grre_jax.errors import DataError
from grre_jax.rollouts import encoding

from ..groups import played_group, text_group


def test_text_only_group_has_the_defaults_of_unknown_origin():
    group = text_group(1)
    assert group.lengths.tolist() == [0, 0] and group.policy_version.tolist() == [-1, -1]
    assert group.behavior_logprobs is None and group.finish_reasons == ["imported"] * 2
    assert encoding.decode(encoding.encode(group)) == group


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("rewards", [1.0, 0.0]),
        ("texts", [1, 2, 3, 4]),
        ("lengths", [1, 1, 1, 99]),
        ("tokens", [[1], [2]]),
        ("finish_reasons", ["stop", "stop", "stop", "eos"]),
        ("components", {"format": [1.0]}),
        ("top_p", 0.0),
        ("turn_tokens", [0, 1, 3, 2, 0, 1, 2, 3]),
        ("turn_rewards", [0, float("nan"), 0, 0]),
        ("routes", [1, 2, 3]),
    ],
)
def test_a_wrong_field_is_named(make_group, field, value):
    make = played_group if field.startswith(("turn", "environment")) else make_group
    with pytest.raises(DataError, match=f"'g5': field {field}"):
        make(5, **{field: value})


def test_logprobs_are_checked_where_the_policy_generated(make_group):
    group = make_group(2)
    for bad in (np.nan, 0.5, -np.inf):
        logprobs = np.where(group.mask == 0, bad, group.behavior_logprobs)
        dataclasses.replace(group, behavior_logprobs=logprobs)
        logprobs[np.flatnonzero(group.mask)[0]] = bad
        with pytest.raises(DataError, match=f"field behavior_logprobs.*{bad}"):
            dataclasses.replace(group, behavior_logprobs=logprobs)


def test_correctness_is_the_component_or_rewards_of_0_and_1():
    def group(rewards, **components):
        return text_group(1, "abc", rewards, components=components)

    known = group([0, 1, 0])
    assert known.correct.tolist() == [False, True, False]
    assert group([-1, 0.5, 2], correct=[0, 1, 1]).correct.tolist() == [False, True, True]
    share = group([0, 1, 0], correct=[0, 0.5, 1])  # what it is a share of, it does not say
    assert share.correct is rollouts.correctness([known, share]) is None
    assert [row.tolist() for row in rollouts.correctness([known])] == [[False, True, False]]
