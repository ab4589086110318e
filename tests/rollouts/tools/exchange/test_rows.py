import json
import math
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from grre_jax import rollouts
from grre_jax.errors import DataError
from grre_jax.rollouts.schema import FIELDS, LOGPROB_FIELDS
from grre_jax.rollouts.tools.exchange import completion_rows, rows, sources


def group_of(row, *completions, **names):
    row = {
        "prompt": "p",
        "completions": [{"text": "t", "reward": 1, **c} for c in completions],
    } | row
    return rows.to_group(sources.Line(Path("x"), "line 1", row, names=names), "x", "")


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
    **{name: (name, [-1, -2]) for name in LOGPROB_FIELDS},
    "token_versions": ("token_versions", [3, 4]),
    "policy_version": ("policy_version", 3),
    "finish_reason": ("finish_reasons", "length"),
    "source": ("sources", "gpt"),
    "is_expert": ("is_expert", True),
    "reward": ("rewards", 0.5),
    "tokens": ("tokens", [8, 9]),
    "components": ("components", {"a": 2}),
}


def as_lists(value):
    if isinstance(value, dict):
        return {name: as_lists(inner) for name, inner in value.items()}
    return value.tolist() if isinstance(value, np.ndarray) else value


@pytest.mark.parametrize("one_a_row", [False, True])
def test_every_field_of_a_record_is_read_under_its_own_name(one_a_row):
    def read(row, completion):
        completion = {"text": "t", "reward": 1, "tokens": [1, 2]} | completion
        row = {"prompt": "p", "prompt_tokens": [1]} | row
        if not one_a_row:
            return group_of(row, completion)
        names = {name: name for name in rows.COLUMNS}
        found = iter([("line 1", row | completion)])
        ((line, parts),) = completion_rows.gathered(Path("x"), found, names)
        return rows.build(line, parts, "x", "")

    for name, value in FIELDS_OF_A_ROW.items():
        group = read({name: value}, {})
        expected = str(value) if name in ("question_id", "answer") else value
        assert as_lists(getattr(group, name)) == expected
        assert group.extra == ({"a": 1} if name == "extra" else {})
    for name, (field, value) in FIELDS_OF_A_COMPLETION.items():
        group = read({}, {name: value})
        found = as_lists(getattr(group, field))
        assert found == (value if isinstance(value, list) else [value]) or found == {"a": [2.0]}
        assert group.extra == {}
    read_here = {*FIELDS_OF_A_ROW, *FIELDS_OF_A_COMPLETION, "prompt", "completions", "text"}
    columns = {*rows.GROUP_COLUMNS, *rows.COMPLETION_COLUMNS, "behavior_logprobs"}
    assert read_here == columns - {"turn_rewards"}  # which needs a tokenizer
    held = {name for name, _, _ in FIELDS} - {"lengths", "texts", "text_lengths", "component_names"}
    held = {name for name in held if not name.startswith(("turn_", "environment"))}
    assert held <= read_here | {field for field, _ in FIELDS_OF_A_COMPLETION.values()}


@pytest.mark.parametrize(
    ("row", "completion", "message"),
    [
        ({"mask": [1]}, {}, "field mask is not read here"),
        ({}, {"temperature": 0.5}, r"field completions\[0\].temperature is not read"),
        ({"rewards": [1]}, {}, "field rewards is not read"),
        ({}, {"lengths": 3}, r"field completions\[0\].lengths is not read"),
        ({"completion_mask": [[0, 1]]}, {}, "field completion_mask is not read"),
        ({}, {"loss_mask": [0, 1]}, r"field completions\[0\].loss_mask is not read"),
        ({"data_set": {}}, {}, "field data_set is not read"),
        ({"extra": {"a": 1}, "a": 2}, {}, "field a would be in the group's `extra` twice"),
        (
            {"extra": {"completions": 1}},
            {"judge": 2},
            "field completions would be in the group's `extra` twice",
        ),
        ({"position": "first"}, {}, "field position is 'first'; give a whole number"),
        ({"position": -2}, {}, "field position: .*-2"),
        ({"attempt": -1}, {}, "field attempt: .*-1"),
        (
            {},
            {"policy_version": 1.5},
            r"field completions\[0\].policy_version is 1.5; give a whole number",
        ),
        ({"prompt_tokens": [1]}, {"tokens": [1], "mask": [2]}, "field mask is wrong .2."),
        (
            {"prompt_tokens": [1]},
            {"tokens": [True]},
            r"field completions\[0\].tokens has True at index 0",
        ),
        (
            {"prompt_tokens": [1]},
            {"tokens": [1], "logprobs": ["-1"]},
            "has '-1' at index 0; give numbers only",
        ),
        ({"answer": math.nan}, {}, "field answer is nan"),
        ({"temperature": math.inf}, {}, "field temperature is inf; give a finite number"),
        (
            {},
            {"components": {"a": math.inf}},
            r"field completions\[0\].components.a is inf; give a finite number",
        ),
    ],
)
def test_a_field_that_is_not_understood_is_refused(row, completion, message):
    with pytest.raises(DataError, match=message):
        group_of(row, completion)


def test_a_name_that_the_mapping_sets_to_null_is_something_else():
    completion = {"mask": "x", "loss_mask": [1]}
    group = group_of({"engine": 3}, completion, engine=None, mask=None)
    assert group.engine == "" and group.extra == {"engine": 3, "completions": [completion]}
    assert group_of({"place": 4}, {}, position="place").position == 4


def test_whole_numbers_may_be_written_as_floats():
    completion = {"tokens": [4.0, 5], "mask": [1.0, False], "policy_version": 3.0}
    group = group_of({"prompt_tokens": [2.0], "position": 7.0}, completion)
    assert (group.tokens.tolist(), group.mask.tolist()) == ([4, 5], [1, 0])
    assert (group.position, group.policy_version.tolist()) == (7, [3])


LISTS = {"prompt": "p", "responses": ["a", "b"], "rewards": [1, 0], "answer": "4"}


@pytest.mark.parametrize(
    ("row", "mapping"),
    [
        (LISTS, None),
        ({**LISTS, "completions": LISTS["responses"], "responses": "x"}, None),
        (
            {"prompt": "p", "texts": ["a", "b"], "scores": [1, 0], "answer": "4"},
            {"text": "texts", "reward": "scores"},
        ),
        ({**LISTS, "finish_reason": ["stop", "length"]}, None),
    ],
)
def test_a_row_of_parallel_lists_is_a_group(tmp_path, row, mapping):
    group, _ = imported(tmp_path, row, row | {"prompt": "q"}, mapping=mapping)
    assert (group.texts, group.rewards.tolist(), group.answer) == (["a", "b"], [1.0, 0.0], "4")
    assert group.finish_reasons == row.get("finish_reason", ["imported"] * 2)


def test_parallel_lists_have_one_length(tmp_path):
    with pytest.raises(DataError, match="line 1: field rewards"):
        imported(tmp_path, LISTS | {"rewards": [1, 0, 1]})


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
@pytest.mark.parametrize("null", [None, math.nan])
@pytest.mark.parametrize("layout", ["objects", "rows", "lists"])
def test_a_completion_without_a_reward_has_no_verdict(tmp_path, ending, null, layout):
    rewards, path = [1.0, null, 0.0], tmp_path / f"a.{ending}"
    parts = [
        {"text": str(k), "reward": reward, "components": {"form": reward}, "judge": "me"}
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


def test_a_component_may_be_null_beside_a_reward(tmp_path):
    parts = [{"components": {"form": form, "correct": 1}} for form in (None, 0.5)]
    group = group_of({}, *parts)
    np.testing.assert_array_equal(group.components["form"], [math.nan, 0.5])
    with pytest.raises(DataError, match="field components"):
        group_of({}, *parts, {"components": {"form": 1}})


@pytest.mark.parametrize("correct", [0.5, 2, -1, 1e9])
def test_a_correctness_is_a_truth(tmp_path, correct):
    good = {"prompt": "p", "completions": [{"text": "t", "reward": 3, "components": {}}]}
    good["completions"][0]["components"] = {"correct": True}
    bad = json.loads(json.dumps(good))
    bad["completions"][0]["components"] = {"correct": correct}
    with pytest.raises(DataError, match=r"line 2: field completions\[0\]\.components\.correct"):
        imported(tmp_path, good, bad)
    assert not (tmp_path / "r" / "manifest.jsonl").exists()
    (group,) = imported(tmp_path, good)
    assert group.correct.tolist() == [True]


def test_groups_have_identifiers_of_their_own(tmp_path):
    def row(group_id):
        return {"group_id": group_id, "prompt": "p", "completions": [{"text": "t", "reward": 1}]}

    with pytest.raises(DataError, match=r"line 3: field group_id is 'a'.*line 1"):
        imported(tmp_path, row("a"), row("b"), row("a"))
    assert [group.group_id for group in imported(tmp_path, row("a"), row("b"))] == ["a", "b"]
