import json
import math

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from grre_jax import rollouts
from grre_jax.errors import DataError, UsageError


def trl_rows(step):
    """As TRL's GRPO trainer logs completions: a row each, a column per reward function."""
    return [
        {
            "step": str(step),
            "prompt": prompt,
            "completion": f"{prompt}:{k}",
            "accuracy_reward": float(k == 0),
            "short_reward": -0.5 * k,
            "length": 7 - k,
            "advantage": 1.0 - k,
        }
        for prompt in ("pq" if step == 10 else "qp")
        for k in range(2)
    ]


def test_completions_that_trl_logged(tmp_path):
    (tmp_path / "completions").mkdir()
    for step in (10, 20):
        table = pyarrow.Table.from_pylist(trl_rows(step))
        pyarrow.parquet.write_table(
            table, tmp_path / "completions" / f"completions_{step:05d}.parquet"
        )
    rollouts.import_rows("trl", tmp_path / "completions", tmp_path / "r", task="sums")
    groups = list(rollouts.read(tmp_path / "r"))
    assert [(group.prompt, group.extra["step"]) for group in groups] == [
        ("p", "10"),
        ("q", "10"),
        ("q", "20"),
        ("p", "20"),
    ]
    assert groups[0].texts == ["p:0", "p:1"] and groups[0].rewards.tolist() == [1.0, -0.5]
    assert {name: row.tolist() for name, row in groups[0].components.items()} == {
        "accuracy_reward": [1.0, 0.0],
        "short_reward": [0.0, -0.5],
    }
    assert groups[0].extra["completions"] == [
        {"advantage": 1.0, "length": 7},
        {"advantage": 0.0, "length": 6},
    ]


def import_trl(folder, rows, mapping=None):
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), folder / "a.parquet")
    rollouts.import_rows("trl", folder / "a.parquet", folder / "r", mapping=mapping)
    return list(rollouts.read(folder / "r"))


def test_one_of_trls_columns_may_be_the_reward(tmp_path):
    groups = import_trl(tmp_path, trl_rows(10), {"reward": "length"})
    assert groups[0].rewards.tolist() == [7.0, 6.0]
    assert set(groups[0].components) == {"accuracy_reward", "short_reward", "length"}


def test_the_mapping_names_trls_reward_columns_and_their_weights(tmp_path):
    weights = {"accuracy_reward": 2, "length": 0.5}
    first, _ = import_trl(tmp_path, trl_rows(10), {"components": weights})
    assert first.rewards.tolist() == [2 + 3.5, 3.0]
    assert {name: row.tolist() for name, row in first.components.items()} == {
        "accuracy_reward": [1.0, 0.0],
        "length": [7.0, 6.0],
    }


def test_a_reward_function_of_trls_may_be_called_reward(tmp_path):
    rows = [row | {"reward": 0.5 - row["length"]} for row in trl_rows(10)]
    weights = {"reward": 1, "length": 2}
    first, _ = import_trl(tmp_path, rows, {"components": weights})
    assert first.rewards.tolist() == [7.5, 6.5] and set(first.components) == {"reward", "length"}


@pytest.mark.parametrize("components", ["length", ["length"], {"length": "1"}, {"length": True}])
def test_weights_that_are_not_numbers_are_refused(tmp_path, components):
    with pytest.raises(UsageError, match="'components'"):
        import_trl(tmp_path, trl_rows(10), {"components": components})


def test_without_a_reward_column_trls_columns_of_numbers_are_listed(tmp_path):
    rows = [
        {
            "step": 1,
            "prompt": "p",
            "completion": "c",
            "accuracy": 1.0,
            "length": 3,
            "advantage": 0.0,
        }
    ]
    with pytest.raises(DataError, match=r"row 1: .*numbers accuracy, length\b.*components"):
        import_trl(tmp_path, rows)
    with pytest.raises(DataError, match="row 1: field lenght"):
        import_trl(tmp_path, rows, {"components": {"lenght": 1}})


@pytest.mark.parametrize(
    ("mapping", "orders"),
    [
        (None, r"\[1, 0, 3, 2\] by reward .* \[0, 1, 2, 3\] by advantage"),
        ({"components": {"a_reward": 1, "b_reward": 0.5}}, r"\[1, 3, 0, 2\] .* \[0, 1, 2, 3\]"),
        ({"components": {"a_reward": 0.5, "b_reward": 1}}, None),
        ({"components": {"b_reward": 1}}, None),  # ties aside
    ],
)
def test_trls_advantages_order_a_group_as_its_rewards_do(tmp_path, mapping, orders):
    rows = [
        {"step": 1, "prompt": "p", "completion": "c", "a_reward": a, "b_reward": b, "advantage": z}
        for a, b, z in ((2.0, 0.0, -1.5), (0.0, 1.1, -0.5), (2.0, 1.1, 0.5), (0.0, 2.2, 1.5))
    ]
    if orders is None:
        import_trl(tmp_path, rows, mapping)
        return
    with pytest.raises(DataError, match=rf"row 1: field advantage .*{orders}"):
        import_trl(tmp_path, rows, mapping)


@pytest.mark.parametrize("null", [None, math.nan])
def test_a_reward_function_of_trls_that_does_not_apply_is_left_out(tmp_path, null):
    rewards = [(1.0, null), (null, 0.5), (null, null), (0.0, 0.25)]
    rows = [
        {"step": 1, "prompt": "p", "completion": "c", "a_reward": a, "b_reward": b, "advantage": z}
        for (a, b), z in zip(rewards, (1.5, 0.0, 9.0, -1.5), strict=True)
    ]
    (group,) = import_trl(tmp_path, rows, {"components": {"a_reward": 1, "b_reward": 2}})
    nan = math.nan
    np.testing.assert_array_equal(group.rewards, [1.0, 1.0, nan, 0.5])
    np.testing.assert_array_equal(group.components["a_reward"], [1.0, nan, nan, 0.0])
    np.testing.assert_array_equal(group.components["b_reward"], [nan, 0.5, nan, 0.25])
    assert group.extra["verify_failures"] == ["", "", "none", ""]
    (tmp_path / "again").mkdir()
    with pytest.raises(DataError, match="field advantage"):
        import_trl(tmp_path / "again", rows, {"components": {"a_reward": 1, "b_reward": 6}})


def test_a_column_that_the_mapping_calls_the_reward_may_be_null(tmp_path):
    rows = [row | {"score": row["advantage"] or None} for row in trl_rows(10)]
    first, _ = import_trl(tmp_path, rows, {"reward": "score"})
    np.testing.assert_array_equal(first.rewards, [1.0, math.nan])


def import_letters(folder, letters, mapping=None, **columns):
    """Imports a row for each letter, which is its prompt; returns prompt and texts of the groups."""
    rows = [
        {"prompt": letter, "text": str(k), "reward": k % 2}
        | {name: values[k] for name, values in columns.items()}
        for k, letter in enumerate(letters)
    ]
    (folder / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    rollouts.import_rows("jsonl", folder / "a.jsonl", folder / "r", mapping=mapping)
    return [f"{group.prompt}{''.join(group.texts)}" for group in rollouts.read(folder / "r")]


@pytest.mark.parametrize(
    ("letters", "groups"),
    [
        ("ABAB", ["A02", "B13"]),
        ("ABBA", ["A03", "B12"]),
        ("ABCABA", ["A035", "B14", "C2"]),  # counts that differ
        ("AABBAA", ["A01", "B23", "A45"]),  # no row is alone: a prompt asked twice
        ("AABBAABB", ["A01", "B23", "A45", "B67"]),
        ("AAAABB", ["A01", "A23", "B45"]),
        ("ABACBCAA", ["A02", "B14", "C35", "A67"]),  # twice as many as the others have
        ("AABBB", ["A01", "B234"]),
        ("AAB", ["A01", "B2"]),
    ],
)
def test_the_rows_of_a_prompt_need_not_adjoin(tmp_path, letters, groups):
    assert import_letters(tmp_path, letters) == groups


def test_a_prompt_whose_number_of_groups_is_unknown_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"a.jsonl, line 2: .* expected 2, .* got 3"):
        import_letters(tmp_path, "BABACCA")


def test_rows_that_do_not_adjoin_are_grouped_by_step_and_the_column_group(tmp_path):
    mapping = {"group": "uid"}
    ids, steps = [7, 8, 7, 8, 7, 7], [1, 1, 1, 1, 2, 2]
    found = import_letters(tmp_path, "AAAAAA", mapping, uid=ids, step=steps)
    assert found == ["A02", "A13", "A45"]


def test_a_group_id_is_one_group_whatever_its_number_of_rows(tmp_path):
    assert import_letters(tmp_path, "ABAABBBA", group_id=list("xyxxyzzx")) == [
        "A0237",
        "B14",
        "B56",
    ]


def test_a_file_of_groups_of_one_warns(tmp_path, caplog):
    assert len(import_letters(tmp_path, "ABC")) == 3
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    caplog.clear()
    (tmp_path / "more").mkdir()
    import_letters(tmp_path / "more", "ABA")
    (tmp_path / "imitated").mkdir()
    import_letters(tmp_path / "imitated", "AB", is_expert=[True, True])
    assert not caplog.records


@pytest.mark.parametrize(
    ("mapping", "field"), [({"group": "quesiton"}, "quesiton"), ({"prompt": "q"}, "q")]
)
def test_a_column_to_gather_by_that_is_not_there_is_named(tmp_path, mapping, field):
    rows = [{"prompt": "p", "completion": str(k), "reward": 1.0, "question": 1} for k in range(3)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(
        DataError,
        match=(
            f"line 1: field {field} is missing .it has prompt, completion, reward, question.; add"
            " it, or map"
        ),
    ):
        rollouts.import_rows("jsonl", tmp_path / "a.jsonl", tmp_path / "r", mapping=mapping)


def test_rows_are_gathered_by_the_column_that_the_mapping_calls_group(tmp_path):
    rows = [
        {
            "prompt": "p",
            "completion": [{"role": "assistant", "content": text}],
            "reward": 1,
            "run": run,
            "tokens": [k],
            "prompt_tokens": [9],
        }
        for k, (text, run) in enumerate([("a", 1), ("b", 1), ("c", 2)])
    ]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    rollouts.import_rows("jsonl", tmp_path / "a.jsonl", tmp_path / "r", mapping={"group": "run"})
    first, second = rollouts.read(tmp_path / "r")
    assert (first.texts, second.texts, first.tokens.tolist(), first.prompt_tokens.tolist()) == (
        ["a", "b"],
        ["c"],
        [0, 1],
        [9],
    )
    assert first.extra == {"run": 1} and first.group_id == "a:1" and second.group_id == "a:3"


def test_a_row_that_is_no_object_or_says_no_reward_is_named(tmp_path):
    (tmp_path / "a.jsonl").write_text(
        '{"prompt": "p", "text": "t", "reward": 1}\n{"prompt": "q", "text": "t"}\n'
    )
    with pytest.raises(DataError, match="a.jsonl, line 2: field reward is missing"):
        rollouts.import_rows("jsonl", tmp_path / "a.jsonl", tmp_path / "r")
    (tmp_path / "b.jsonl").write_text('{"prompt": "p", "text": "t", "reward": 1}\n[3]\n')
    with pytest.raises(DataError, match="b.jsonl, line 2: the line is a list; give a JSON object"):
        rollouts.import_rows("jsonl", tmp_path / "b.jsonl", tmp_path / "r")


def test_fields_of_a_row_separate_groups_or_are_refused_where_they_differ(tmp_path):
    def imported(name, *rows, kind="jsonl"):
        if kind == "trl":
            pyarrow.parquet.write_table(pyarrow.Table.from_pylist(list(rows)), tmp_path / name)
        else:
            (tmp_path / name).write_text("\n".join(map(json.dumps, rows)))
        rollouts.import_rows(kind, tmp_path / name, tmp_path / f"{name}.r")
        return list(rollouts.read(tmp_path / f"{name}.r"))

    row = {"prompt": "p", "text": "t", "reward": 1}
    groups = imported("a", *(row | {"group_id": name, "seed": 4} for name in "xxy"))
    assert [
        (group.group_id, group.num_completions, group.seed, group.extra) for group in groups
    ] == [("x", 2, 4, {}), ("y", 1, 4, {})]
    with pytest.raises(
        DataError,
        match=(
            "b, line 1: field temperature differs between the rows of one group; give"
            " them one value"
        ),
    ):
        imported("b", *(row | {"temperature": heat} for heat in (1, 1, 0.5)))
    with pytest.raises(DataError, match="c, line 1: field attempt differs between the rows"):
        imported("c", *(row | {"attempt": k} for k in range(2)))
    (group,) = imported(
        "d",
        *(
            row | {"a_reward": k, "temperature": 0.5, "policy_version": k, "reward": None}
            for k in (0, 1)
        ),
        kind="trl",
    )
    assert list(group.components) == ["a_reward"] and group.rewards.tolist() == [0, 1]
    assert group.temperature == 0.5 and group.policy_version.tolist() == [0, 1]
