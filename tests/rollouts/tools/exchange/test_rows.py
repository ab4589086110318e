import math
import re

import numpy as np
import pytest

from grre_jax.errors import DataError
from grre_jax.rollouts.tools.exchange import importers, rows

from .importing import imported


def group_of(row, *completions, **names):
    parts = [{"text": "t", "reward": 1, **part} for part in completions]
    row = {"prompt": "p", "completions": parts} | row
    return rows.to_group(rows.renamed(row, importers._column_names(names)), "x:1", "")


FIELDS_OF_A_ROW = {
    **{"group_id": "g", "position": 4, "attempt": 2, "task": "sums", "seed": 11, "engine": "vllm"},
    **{"temperature": 0.5, "top_k": 3, "top_p": 0.9, "min_p": 0.1, "logprob_dtype": "bfloat16"},
    **{"question_id": 7, "answer": 1.5, "extra": {"a": 1}, "prompt_tokens": [5, 6]},
}
FIELDS_OF_A_COMPLETION = {
    "mask": ("mask", [1, 0]),
    "logprobs": ("behavior_logprobs", [-1, -2]),
    "ref_logprobs": ("ref_logprobs", [-1, -2]),
    "token_versions": ("token_versions", [3, 4]),
    "policy_version": ("policy_version", [3]),
    "finish_reason": ("finish_reasons", ["length"]),
    "source": ("sources", ["gpt"]),
    "is_expert": ("is_expert", [True]),
    "reward": ("rewards", [0.5]),
    "tokens": ("tokens", [8, 9]),
}


def test_every_field_of_a_record_is_read_under_its_own_name():
    completion = {"text": "t", "tokens": [1, 2], "components": {"a": 2, "b": None}}
    for name, (_, value) in FIELDS_OF_A_COMPLETION.items():
        completion[name] = value if len(value) > 1 else value[0]
    row = {"prompt": "p"} | FIELDS_OF_A_ROW
    group = group_of(row, completion)
    written = FIELDS_OF_A_ROW | {"question_id": "7", "answer": "1.5"}
    for name, value in (*written.items(), *FIELDS_OF_A_COMPLETION.values()):
        np.testing.assert_array_equal(getattr(group, name), value)
    assert group.components["a"].tolist() == [2] and np.isnan(group.components["b"]).all()


TOKENS = {"tokens": [5, 9], "logprobs": [-0.5, -0.25], "reward": 1}
WRONG = [  # fields of a row, fields of one of its two completions, and the field that is named
    ({"rewards": [1]}, {}, "rewards"),
    ({"components": {}}, {"components": {"a": 1}}, "components"),
    (
        {"completions": [{"text": "t", "reward": 1, "components": {"correct": 0.5}}]},
        {},
        "components.correct",
    ),
    ({"completions": [TOKENS]}, {}, "prompt_tokens"),
    ({}, {"text": None}, "completions[1].text"),
    ({}, {"mask": [1]}, "completions[0].mask"),
]


@pytest.mark.parametrize(("row", "completion", "field"), WRONG, ids=lambda part: str(part)[:40])
def test_a_wrong_row_is_named_and_nothing_is_imported(tmp_path, row, completion, field):
    good = {"prompt": "p", "completions": [{"text": "4", "reward": 1}, {"text": "5", "reward": 0}]}
    bad = {"prompt": "q", "completions": [{"text": "4", "reward": 1}]} | row
    if completion:
        bad["completions"].append({"text": "5", "reward": 0} | completion)
    named = rf"a.jsonl, line 2: (Group 'a:2': )?field {re.escape(field)}[:\[]"
    with pytest.raises(DataError, match=named):
        imported(tmp_path, [good, bad])
    assert not [*tmp_path.rglob("r")]


def test_a_name_that_the_mapping_sets_to_null_is_something_else():
    row = {"engine": 3, "mask": "x", "prompt": 5, "question": "q"}
    group = group_of(row, {}, engine=None, mask=None, prompt="question")
    assert (group.engine, group.prompt) == ("", "q")
    assert group.extra == {"engine": 3, "mask": "x", "prompt": 5}


def test_a_completion_without_a_reward_has_no_verdict(tmp_path):
    rewards = [1.0, None, 0.0]
    parts = [{"text": str(k), "reward": r, "components": {"a": r}} for k, r in enumerate(rewards)]
    del parts[1]["components"]
    layouts = (
        [{"prompt": "p", "completions": parts}],
        [{"prompt": "p", **part} for part in parts],
        [{"prompt": "p", "responses": list("012"), "rewards": rewards}],
    )
    tables = [imported(tmp_path, written, "parquet") for written in layouts]
    for (group,) in [*tables, imported(tmp_path, layouts[0])]:
        assert group.extra["verify_failures"] == ["", "none", ""]
        assert list(map(bool, group.extra["verify_reasons"])) == [False, True, False]
        for row in (group.rewards, *group.components.values()):
            np.testing.assert_array_equal(row, [1, math.nan, 0])


def test_groups_have_identifiers_of_their_own(tmp_path):
    row = {"prompt": "p", "completions": [{"text": "t", "reward": 1}]}
    first, second = (row | {"group_id": name} for name in "ab")
    with pytest.raises(DataError, match="line 3: field group_id: .*'a'"):
        imported(tmp_path, [first, second, first])
    assert [group.group_id for group in imported(tmp_path, [first, second])] == ["a", "b"]
