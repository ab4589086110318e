import math
import re

import numpy as np
import pytest

from grre_jax.errors import DataError

from .importing import imported


def test_fields_of_completions_are_read_under_their_names_and_have_defaults(tmp_path):
    given = {"policy_version": 3, "finish_reason": "length", "source": "gpt", "is_expert": True}
    tokens = {"tokens": [8, 9], "mask": [1, 0], "logprobs": [-1, -2], "token_versions": [3, 4]}
    first = {"text": "t", "reward": 0.5, "components": {"a": 2, "b": None}} | given | tokens
    second = {"text": "u", "reward": 1} | {name: [] for name in tokens}
    row = {"prompt": "p", "prompt_tokens": [1], "question_id": 7, "completions": [first, second]}
    (group,) = imported(tmp_path, [row])
    for name, value in {
        "question_id": "7",
        "rewards": [0.5, 1],
        "lengths": [2, 0],
        "tokens": [8, 9],
        "mask": [1, 0],
        "behavior_logprobs": [-1, -2],
        "token_versions": [3, 4],
        "policy_version": [3, -1],
        "finish_reasons": ["length", "imported"],
        "sources": ["gpt", "imported"],
        "is_expert": [1, 0],
    }.items():
        np.testing.assert_array_equal(getattr(group, name), value)
    np.testing.assert_array_equal(group.components["a"], [2, math.nan])
    np.testing.assert_array_equal(group.components["b"], [math.nan] * 2)


WRONG = [  # fields of a row, fields of its second completion, and the field that is named
    ({"rewards": [1]}, {}, "rewards"),
    ({"components": {}}, {"components": {"a": 1}}, "components"),
    ({}, {"components": {"correct": 0.5}}, "components.correct"),
    ({}, {"text": None}, "completions[1].text"),
    ({}, {"mask": [1]}, "completions[0].mask"),
    ({"tokens": [5], "lengths": [1, 0]}, {}, "prompt_tokens"),
]


@pytest.mark.parametrize(("row", "completion", "field"), WRONG)
def test_a_wrong_row_is_named_and_nothing_is_imported(tmp_path, row, completion, field):
    good = [{"text": "4", "reward": 1}, {"text": "5", "reward": 0}]
    bad = {"prompt": "q", "completions": [good[0], good[1] | completion]} | row
    named = rf"a.jsonl, line 2: (Group 'a:2': )?field {re.escape(field)}[:\[]"
    with pytest.raises(DataError, match=named):
        imported(tmp_path, [{"prompt": "p", "completions": good}, bad])
    (manifest,) = tmp_path.rglob("manifest.jsonl")
    assert not manifest.read_text()


def test_a_completion_without_a_reward_has_no_verdict(tmp_path):
    rewards = [1.0, None, 0.0]
    parts = [{"text": str(k), "reward": r, "components": {"a": r}} for k, r in enumerate(rewards)]
    for layout in (
        [{"prompt": "p", "completions": parts}],
        [{"prompt": "p", **part} for part in parts],
        [{"prompt": "p", "responses": list("012"), "rewards": rewards}],
    ):
        (group,) = imported(tmp_path, layout, "parquet")
        assert group.extra["verify_failures"] == ["", "none", ""]
        for row in (group.rewards, *group.components.values()):
            np.testing.assert_array_equal(row, [1, math.nan, 0])


def test_groups_have_identifiers_of_their_own(tmp_path):
    row = {"prompt": "p", "completions": [{"text": "t", "reward": 1}]}
    with pytest.raises(DataError, match="line 3: field group_id: .*'a'"):
        imported(tmp_path, [row | {"group_id": name} for name in "aba"])
