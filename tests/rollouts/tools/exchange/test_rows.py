import json
import math
import re

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from grre_jax import rollouts
from grre_jax.domains import ConfigError
from grre_jax.errors import DataError
from grre_jax.rollouts.tools.exchange import rows


def group_of(row, *completions, **names):
    row = {
        "prompt": "p",
        "completions": [{"text": "t", "reward": 1, **c} for c in completions],
    } | row
    return rows.to_group(rows.normalised(rows.renamed(row, names)), "x:1", "")


def imported(folder, *lines, **options):
    (folder / "a.jsonl").write_text("\n".join(map(json.dumps, lines)))
    rollouts.import_rows("jsonl", folder / "a.jsonl", folder / "r", **options)
    return list(rollouts.read(folder / "r"))


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


@pytest.mark.parametrize("layout", ["row", "completion", "flat"])
def test_every_field_of_a_record_is_read_under_its_own_name(layout):
    def read(row, completion):
        completion = {"text": "t", "reward": 1, "tokens": [1, 2]} | completion
        row = {"prompt": "p", "prompt_tokens": [1]} | row
        if layout == "completion":
            return rows.of_completions({}, [rows.normalised(row | completion)], "x:1", "")
        return group_of(row, completion)

    for name, value in FIELDS_OF_A_ROW.items():
        group = read({name: value}, {})
        if layout == "flat":
            group = rows.to_group(rows.normalised(rows.of_group(group)), "y:1", "")
        found = getattr(group, name)
        found = found.tolist() if isinstance(found, np.ndarray) else found
        assert found == (str(value) if name in ("question_id", "answer") else value)
        assert group.extra == ({"a": 1} if name == "extra" else {})
    for name, (field, value) in FIELDS_OF_A_COMPLETION.items():
        assert (
            list(getattr(read({}, {name: value if len(value) > 1 else value[0]}), field)) == value
        )
    assert read({}, {"components": {"a": 2}}).components["a"].tolist() == [2]


TOKENS = {"tokens": [5, 9], "logprobs": [-0.5, -0.25]}
WRONG = [  # fields of a row, fields of one of its two completions, and the field that is named
    ({"prompt": None}, {}, "prompt"),
    ({"mask": [1]}, {}, "mask"),
    ({"reward": 1}, {}, "reward"),
    ({"rewards": [1]}, {}, "rewards"),
    ({"completion_mask": [[0, 1]]}, {}, "completion_mask"),
    ({"extra": {"a": 1}, "a": 2}, {}, "a"),
    ({"extra": 3}, {}, "extra"),
    ({"extra": {"completions": 1}}, {"judge": 2}, "completions"),
    ({"position": "first"}, {}, "position"),
    ({"position": -2}, {}, "position"),
    ({"position": True}, {}, "position"),
    ({"answer": math.nan}, {}, "answer"),
    ({"temperature": math.inf}, {}, "temperature"),
    ({"components": {}}, {"components": {"a": 1}}, "components"),
    ({"texts": "ab", "rewards": [1, 0], "completions": None}, {}, "texts"),
    ({"texts": ["a"], "rewards": [1, 0], "completions": None}, {}, "rewards"),
    ({"completions": []}, {}, "completions"),
    ({"completions": [1]}, {}, "completions[0]"),
    ({}, {"lengths": 3}, "completions[1].lengths"),
    ({}, {"temperature": 0.5}, "completions[1].temperature"),
    ({}, {"loss_mask": 0.5}, "completions[1].loss_mask"),
    ({}, {"policy_version": 1.5}, "policy_version"),
    ({}, {"finish_reason": "eos"}, "finish_reasons"),
    ({}, {"reward": "1"}, "rewards"),
    ({}, {"text": None}, "completions[1].text"),
    ({}, {"mask": [1]}, "completions[0].mask"),
    ({}, {"components": [1]}, "completions[1].components"),
    ({}, {"components": {"a": math.inf}}, "components"),
    ({}, {"components": {"correct": 2}}, "components"),
    ({"prompt_tokens": [1], "completions": [TOKENS]}, {}, "completions[0].reward"),
    ({"completions": [TOKENS | {"reward": 1}]}, {}, "prompt_tokens"),
    *(
        ({"prompt_tokens": [1], "completions": [{"text": "", "reward": 1} | TOKENS | more]}, {}, f)
        for more, f in (
            ({"mask": [2, 1]}, "mask"),
            ({"tokens": [True, True]}, "tokens"),
            ({"logprobs": ["-1", "-1"]}, "behavior_logprobs"),
            ({"logprobs": [-1]}, "completions[0].behavior_logprobs"),
            ({"components": {"correct": 0.5}}, "components.correct"),
        )
    ),
]


@pytest.mark.parametrize(("row", "completion", "field"), WRONG, ids=lambda part: str(part)[:40])
def test_a_wrong_row_is_named_and_nothing_is_imported(tmp_path, row, completion, field):
    good = {"prompt": "p", "completions": [{"text": "4", "reward": 1}, {"text": "5", "reward": 0}]}
    bad = {"prompt": "q", "completions": [{"text": "4", "reward": 1}]} | row
    if completion:
        bad["completions"].append({"text": "5", "reward": 0} | completion)
    named = rf"a.jsonl, line 2: (Group 'a:2': )?field {re.escape(field)}[:\[]"
    with pytest.raises(DataError, match=named):
        imported(tmp_path, good, bad)
    assert not (tmp_path / "r").exists()


def test_a_name_that_the_mapping_sets_to_null_is_something_else():
    group = group_of({"engine": 3, "mask": "x"}, {}, engine=None, mask=None)
    assert group.engine == "" and group.extra == {"engine": 3, "mask": "x"}
    assert group_of({"place": 4}, {}, position="place").position == 4
    group = group_of({"prompt": 5, "question": "q"}, {}, prompt="question")
    assert group.prompt == "q" and group.extra == {"prompt": 5}


def test_integers_may_be_written_as_floats():
    completion = {"tokens": [4.0, 5], "mask": [1.0, False], "policy_version": 3.0}
    group = group_of({"prompt_tokens": [2.0], "position": 7.0}, completion)
    assert (group.tokens.tolist(), group.mask.tolist()) == ([4, 5], [1, 0])
    assert (group.position, group.policy_version.tolist()) == (7, [3])


LISTS = {"prompt": "p", "responses": ["a", "b"], "rewards": [1, 0], "answer": "4"}


@pytest.mark.parametrize(
    ("row", "mapping"),
    [
        (LISTS, None),
        ({"prompt": "p", "completions": ["a", "b"], "rewards": [1, 0], "answer": "4"}, None),
        (
            {"prompt": "p", "list": ["a", "b"], "scores": [1, 0], "answer": "4"},
            {"text": "list", "reward": "scores"},
        ),
        ({**LISTS, "finish_reason": ["stop", "length"]}, None),
    ],
)
def test_a_row_of_parallel_lists_is_a_group(tmp_path, row, mapping):
    group, _ = imported(tmp_path, row, row | {"prompt": "q"}, mapping=mapping)
    assert (group.texts, group.rewards.tolist(), group.answer) == (["a", "b"], [1.0, 0.0], "4")
    assert group.finish_reasons == row.get("finish_reason", ["imported"] * 2)


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
@pytest.mark.parametrize("null", [None, math.nan])
@pytest.mark.parametrize("layout", ["objects", "rows", "lists"])
def test_a_completion_without_a_reward_has_no_verdict(tmp_path, ending, null, layout):
    rewards = [1.0, null, 0.0]
    path = tmp_path / f"a.{ending}"
    parts = [
        {"text": str(k), "reward": reward, "components": {"form": reward}, "judge": k}
        for k, reward in enumerate(rewards)
    ]
    written = {
        "objects": [{"prompt": "p", "completions": parts}],
        "rows": [{"prompt": "p", **part} for part in parts],
        "lists": [{"prompt": "p", "responses": list("012"), "rewards": rewards}],
    }
    if ending == "parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(written[layout]), path)
    else:
        path.write_text("\n".join(map(json.dumps, written[layout])))
    rollouts.import_rows(ending, path, tmp_path / "r")
    (group,) = rollouts.read(tmp_path / "r")
    assert np.isnan(group.rewards).tolist() == [False, True, False]
    assert group.extra["verify_failures"] == ["", "none", ""]
    assert [bool(reason) for reason in group.extra["verify_reasons"]] == [False, True, False]
    for row in group.components.values():
        assert np.isnan(row).tolist() == [False, True, False]
    assert group.texts == ["0", "1", "2"] and group.rewards[[0, 2]].tolist() == [1.0, 0.0]
    assert set(group.components) == ({"form"} if layout != "lists" else set())
    again = tmp_path / f"again.{ending}"
    rollouts.export(tmp_path / "r", again)
    rollouts.import_rows(ending, again, tmp_path / "s")
    assert list(rollouts.read(tmp_path / "s")) == [group]


def test_a_component_may_be_null_beside_a_reward():
    parts = [{"components": {"form": form, "correct": 1}} for form in (None, 0.5)]
    group = group_of({}, *parts)
    np.testing.assert_array_equal(group.components["form"], [math.nan, 0.5])
    with pytest.raises(ConfigError, match="components:"):
        group_of({}, *parts, {"components": {"form": 1}})


def test_groups_have_identifiers_of_their_own(tmp_path):
    def row(group_id):
        return {"group_id": group_id, "prompt": "p", "completions": [{"text": "t", "reward": 1}]}

    with pytest.raises(DataError, match="line 3: field group_id: .*line 1.*'a'"):
        imported(tmp_path, row("a"), row("b"), row("a"))
    assert [group.group_id for group in imported(tmp_path, row("a"), row("b"))] == ["a", "b"]
