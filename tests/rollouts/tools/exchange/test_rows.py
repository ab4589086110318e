import json
import math
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from grre_jax import rollouts
from grre_jax.errors import DataError
from grre_jax.rollouts.schema import FIELDS
from grre_jax.rollouts.tools.exchange import completion_rows, rows, sources

from ....groups import played_group


def group_of(row, **names):
    return rows.to_group(sources.Line(Path("x"), "line 1", row, names=names), "x", "")


def without_data_set(row):
    return {name: value for name, value in row.items() if name != "data_set"}


def test_a_row_is_json_and_becomes_the_group_again(make_group):
    group = make_group(3)
    row = rows.of_group(group, {"writer": "w"})
    assert (
        rows.is_own(row)
        and "record" not in row
        and json.loads(json.dumps(row, allow_nan=False)) == row
    )
    assert group_of(without_data_set(row)) == group


def test_a_row_of_trajectories_has_their_record():
    row = rows.of_group(played_group(1), {"writer": "w"})
    assert group_of(without_data_set(row)) == played_group(1)


def test_numbers_that_json_has_not_are_written_as_their_bits():
    for value in (np.nan, np.inf, -np.inf, np.frombuffer(b"\x01\x00\xc0\x7f", np.float32)[0]):
        (said,) = rows._floats(np.asarray([value], np.float32))
        assert (
            isinstance(said, str)
            and rows.number_of_bits(said).tobytes() == np.float32(value).tobytes()
        )
    assert rows._floats(np.asarray([0.1], np.float32)) == [float(np.float32(0.1))]


FIELDS_OF_A_ROW = {
    "group_id": ("g", "g"),
    "position": (4, 4),
    "attempt": (2, 2),
    "task": ("sums", "sums"),
    "question_id": (7, "7"),
    "answer": (1.5, "1.5"),
    "temperature": (0.5, 0.5),
    "top_k": (3, 3),
    "top_p": (0.9, 0.9),
    "min_p": (0.1, 0.1),
    "seed": (11, 11),
    "logprob_dtype": ("bfloat16", "bfloat16"),
    "engine": ("vllm", "vllm"),
    "extra": ({"a": 1}, {"a": 1}),
    "prompt_tokens": ([5, 6], [5, 6]),
}
FIELDS_OF_A_COMPLETION = {
    "mask": ("mask", [1, 0], [1, 0]),
    "logprobs": ("behavior_logprobs", [-1, -2], [-1, -2]),
    "behavior_logprobs": ("behavior_logprobs", [-1, -2], [-1, -2]),
    "sampling_logprobs": ("sampling_logprobs", [-1, -2], [-1, -2]),
    "policy_logprobs": ("policy_logprobs", [-1, -2], [-1, -2]),
    "ref_logprobs": ("ref_logprobs", [-1, -2], [-1, -2]),
    "prox_logprobs": ("prox_logprobs", [-1, -2], [-1, -2]),
    "token_versions": ("token_versions", [3, 4], [3, 4]),
    "policy_version": ("policy_version", 3, [3]),
    "finish_reason": ("finish_reasons", "length", ["length"]),
    "source": ("sources", "gpt", ["gpt"]),
    "is_expert": ("is_expert", True, [1]),
    "reward": ("rewards", 0.5, [0.5]),
    "tokens": ("tokens", [8, 9], [8, 9]),
    "components": ("components", {"a": 2}, {"a": [2.0]}),
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
            return group_of(row | {"completions": [completion]})
        names = dict.fromkeys(rows.COLUMNS) | {name: name for name in rows.COLUMNS}
        ((line, parts),) = completion_rows.gathered(
            Path("x"), iter([("line 1", row | completion)]), names
        )
        return rows.build(line, parts, "x", "")

    for name, (value, expected) in FIELDS_OF_A_ROW.items():
        group = read({name: value}, {})
        assert as_lists(getattr(group, name)) == expected
        assert group.extra == ({"a": 1} if name == "extra" else {})
    for name, (field, value, expected) in FIELDS_OF_A_COMPLETION.items():
        group = read({}, {name: value})
        assert as_lists(getattr(group, field)) == expected and group.extra == {}
    read_here = (
        set(FIELDS_OF_A_ROW) | set(FIELDS_OF_A_COMPLETION) | {"prompt", "completions", "text"}
    )
    needs_tokenizer = {"turn_rewards"}
    columns = {*rows.GROUP_COLUMNS, *rows.COMPLETION_COLUMNS, "behavior_logprobs"}
    assert read_here == columns - needs_tokenizer
    held = {name for name, _, _ in FIELDS} - {"lengths", "texts", "text_lengths", "component_names"}
    held = {name for name in held if not name.startswith(("turn_", "environment"))}
    assert held <= read_here | {field for field, _, _ in FIELDS_OF_A_COMPLETION.values()}


@pytest.mark.parametrize(
    ("row", "completion", "message"),
    [
        ({"mask": [1]}, {}, "field mask is a field of each completion"),
        ({}, {"temperature": 0.5}, r"field completions\[0\].temperature is a field of each row"),
        ({"rewards": [1]}, {}, "field rewards is a field of records, not of rows"),
        ({}, {"lengths": 3}, r"field completions\[0\].lengths is a field of records"),
        ({"completion_mask": [[0, 1]]}, {}, "field completion_mask looks like the mask"),
        ({}, {"loss_mask": [0, 1]}, r"field completions\[0\].loss_mask looks like the mask"),
        ({"data_set": {}}, {}, "field data_set is a field of exported rows"),
        (
            {},
            {"logprobs": [-1], "behavior_logprobs": [-1], "tokens": [1]},
            "are two names of one field",
        ),
        ({"extra": {"a": 1}, "a": 2}, {}, "field a would be in the group's `extra` twice"),
        (
            {"extra": {"completions": 1}},
            {"judge": 2},
            "field completions would be in the group's `extra` twice",
        ),
        ({"position": "first"}, {}, "field position is a string; give a whole number"),
        ({"position": -2}, {}, "field position is wrong .-2.; give a whole number of at least -1"),
        ({"attempt": -1}, {}, "field attempt is wrong"),
        (
            {},
            {"policy_version": 1.5},
            r"field completions\[0\].policy_version is a number .1.5.; give a whole number",
        ),
        ({"prompt_tokens": [1]}, {"tokens": [1], "mask": [2]}, "field mask is wrong .2."),
        (
            {"prompt_tokens": [1]},
            {"tokens": [True]},
            r"field completions\[0\].tokens has true or false at index 0",
        ),
        (
            {"prompt_tokens": [1]},
            {"tokens": [1], "logprobs": ["-1"]},
            "has a string at index 0; give numbers only",
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
        group_of({"prompt": "p", **row, "completions": [{"text": "t", "reward": 1, **completion}]})


def test_a_name_that_the_mapping_sets_to_null_is_something_else():
    row = {"prompt": "p", "engine": 3, "completions": [{"text": "t", "reward": 1, "mask": "x"}]}
    row["completions"][0]["loss_mask"] = [1]
    group = group_of(row, engine=None, mask=None)
    assert group.engine == "" and group.extra == {
        "engine": 3,
        "completions": [{"mask": "x", "loss_mask": [1]}],
    }
    assert (
        group_of(
            {"prompt": "p", "place": 4, "completions": [{"text": "t", "reward": 1}]},
            position="place",
        ).position
        == 4
    )


def test_whole_numbers_may_be_written_as_floats():
    completion = {
        "text": "t",
        "reward": 1,
        "tokens": [4.0, 5],
        "mask": [1.0, False],
        "policy_version": 3.0,
    }
    group = group_of(
        {"prompt": "p", "prompt_tokens": [2.0], "position": 7.0, "completions": [completion]}
    )
    assert (group.tokens.tolist(), group.mask.tolist(), group.prompt_tokens.tolist()) == (
        [4, 5],
        [1, 0],
        [2],
    )
    assert (group.position, group.policy_version.tolist()) == (7, [3])


def test_components_must_agree():
    completions = [
        {"text": "t", "reward": 1, "components": {"a": 1}},
        {"text": "t", "reward": 1, "components": {"b": 1}},
    ]
    with pytest.raises(DataError, match="field components has other names"):
        group_of({"prompt": "p", "completions": completions})


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
    (tmp_path / "a.jsonl").write_text(json.dumps(row) + "\n" + json.dumps(row | {"prompt": "q"}))
    rollouts.import_rows("jsonl", tmp_path / "a.jsonl", tmp_path / "r", mapping=mapping)
    group, _ = rollouts.read(tmp_path / "r")
    assert (group.texts, group.rewards.tolist(), group.answer) == (["a", "b"], [1.0, 0.0], "4")
    assert group.finish_reasons == row.get("finish_reason", ["imported"] * 2)


def test_parallel_lists_have_one_length(tmp_path):
    (tmp_path / "a.jsonl").write_text(json.dumps(LISTS | {"rewards": [1, 0, 1]}))
    with pytest.raises(DataError, match="line 1: field rewards: expected 2 .* got 3"):
        rollouts.import_rows("jsonl", tmp_path / "a.jsonl", tmp_path / "r")


def write_rows(path, rows):
    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def check_no_verdict(group, missing):
    """Checks that these completions, and no others, have no reward."""
    absent = [k in missing for k in range(group.num_completions)]
    assert np.isnan(group.rewards).tolist() == absent
    assert group.extra["verify_failures"] == ["none" if here else "" for here in absent]
    assert [bool(reason) for reason in group.extra["verify_reasons"]] == absent
    for row in group.components.values():
        assert np.isnan(row).tolist() == absent


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
    write_rows(path, written[layout])
    rollouts.import_rows(ending, path, tmp_path / "r")
    (group,) = rollouts.read(tmp_path / "r")
    check_no_verdict(group, {1})
    assert group.texts == ["0", "1", "2"] and group.rewards[[0, 2]].tolist() == [1.0, 0.0]
    assert set(group.components) == ({"form"} if layout != "lists" else set())
    again = tmp_path / f"again.{ending}"
    rollouts.export(tmp_path / "r", again)
    rollouts.import_rows(ending, again, tmp_path / "s")
    assert list(rollouts.read(tmp_path / "s")) == [group]


def test_a_component_may_be_null_beside_a_reward(tmp_path):
    parts = [
        {"text": "0", "reward": 1.0, "components": {"form": None, "correct": 1}},
        {"text": "1", "reward": 0.5, "components": {"form": 0.5, "correct": 0}},
    ]
    path = tmp_path / "a.jsonl"
    write_rows(path, [{"prompt": "p", "completions": parts}])
    rollouts.import_rows("jsonl", path, tmp_path / "r")
    (group,) = rollouts.read(tmp_path / "r")
    np.testing.assert_array_equal(group.components["form"], [math.nan, 0.5])
    rollouts.export(tmp_path / "r", tmp_path / "again.jsonl")
    rollouts.import_rows("jsonl", tmp_path / "again.jsonl", tmp_path / "s")
    assert list(rollouts.read(tmp_path / "s")) == [group]


def test_a_group_may_have_no_reward_at_all(tmp_path):
    write_rows(tmp_path / "a.jsonl", [{**LISTS, "rewards": [None, None]}])
    rollouts.import_rows("jsonl", tmp_path / "a.jsonl", tmp_path / "r")
    check_no_verdict(rollouts.read(tmp_path / "r")[0], {0, 1})


def test_a_reward_that_is_absent_is_not_null(tmp_path):
    write_rows(tmp_path / "a.jsonl", [{"prompt": "p", "completions": [{"text": "t"}]}])
    with pytest.raises(DataError, match=r"line 1: field completions\[0\].reward is missing"):
        rollouts.import_rows("jsonl", tmp_path / "a.jsonl", tmp_path / "r")
