import json
import math
import tempfile

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


def import_trl(folder, *files, mapping=None):
    for number, rows in enumerate(files):
        table = pyarrow.Table.from_pylist(rows)
        pyarrow.parquet.write_table(table, folder / f"completions_{number}.parquet")
    into = tempfile.mkdtemp(dir=folder)
    rollouts.import_rows("trl", folder, into, mapping=mapping)
    return list(rollouts.read(into))


def components_of(group):
    return {name: row.tolist() for name, row in group.components.items()}


def test_completions_that_trl_logged(tmp_path):
    groups = import_trl(tmp_path, trl_rows(10), trl_rows(20))
    said = [f"{group.prompt}{group.extra['step']}" for group in groups]
    assert said == ["p10", "q10", "q20", "p20"]
    assert groups[0].texts == ["p:0", "p:1"] and groups[0].rewards.tolist() == [1.0, -0.5]
    components = {"accuracy_reward": [1.0, 0.0], "short_reward": [0.0, -0.5]}
    assert components_of(groups[0]) == components
    others = [{"advantage": 1.0, "length": 7}, {"advantage": 0.0, "length": 6}]
    assert groups[0].extra["completions"] == others


@pytest.mark.parametrize(
    ("mapping", "rewards", "names"),
    [
        ({"reward": "length"}, [7, 6], {"accuracy_reward", "short_reward", "reward"}),
        ({"reward": "score"}, [1, math.nan], {"accuracy_reward", "short_reward", "reward"}),
        ({"components": {"reward": 1, "length": 2}}, [7.5, 6.5], {"reward", "length"}),
    ],
)
def test_columns_that_the_mapping_calls_rewards(tmp_path, mapping, rewards, names):
    more = [{"score": 1.0, "reward": -6.5}, {"score": None, "reward": -5.5}] * 2
    rows = [row | said for row, said in zip(trl_rows(10), more, strict=True)]
    first, _ = import_trl(tmp_path, rows, mapping=mapping)
    np.testing.assert_array_equal(first.rewards, rewards)
    assert set(first.components) == names


@pytest.mark.parametrize("components", ["length", ["length"], {"length": "1"}, {"length": True}])
def test_weights_that_are_not_numbers_are_refused(tmp_path, components):
    with pytest.raises(UsageError, match="components"):
        import_trl(tmp_path, trl_rows(10), mapping={"components": components})


def test_without_a_reward_column_trls_columns_of_numbers_are_listed(tmp_path):
    rows = [{"step": 1, "prompt": "p", "completion": "c", "accuracy": 1.0, "length": 3}]
    with pytest.raises(DataError, match=r"row 1: field components: .*'accuracy', 'length'"):
        import_trl(tmp_path, rows)
    with pytest.raises(DataError, match="row 1: field lenght"):
        import_trl(tmp_path, rows, mapping={"components": {"lenght": 1}})


@pytest.mark.parametrize(
    ("mapping", "fits"),
    [
        (None, False),
        ({"components": {"a_reward": 1, "b_reward": 0.5}}, False),
        ({"components": {"a_reward": 0.5, "b_reward": 1}}, True),
        ({"components": {"b_reward": 1}}, True),  # ties aside
    ],
)
def test_trls_advantages_order_a_group_as_its_rewards_do(tmp_path, mapping, fits):
    rows = [
        {"step": 1, "prompt": "p", "completion": "c", "a_reward": a, "b_reward": b, "advantage": z}
        for a, b, z in ((2.0, 0.0, -1.5), (0.0, 1.1, -0.5), (2.0, 1.1, 0.5), (0.0, 2.2, 1.5))
    ]
    if fits:
        import_trl(tmp_path, rows, mapping=mapping)
        return
    with pytest.raises(DataError, match="row 1: field advantage:"):
        import_trl(tmp_path, rows, mapping=mapping)


@pytest.mark.parametrize("null", [None, math.nan])
def test_a_reward_function_of_trls_that_does_not_apply_is_left_out(tmp_path, null):
    rewards = [(1.0, null), (null, 0.5), (null, null), (0.0, 0.25)]
    rows = [
        {"step": 1, "prompt": "p", "completion": "c", "a_reward": a, "b_reward": b, "advantage": z}
        for (a, b), z in zip(rewards, (1.5, 0.0, 9.0, -1.5), strict=True)
    ]
    weights = {"a_reward": 1, "b_reward": 2}
    (group,) = import_trl(tmp_path, rows, mapping={"components": weights})
    nan = math.nan
    np.testing.assert_array_equal(group.rewards, [1.0, 1.0, nan, 0.5])
    np.testing.assert_array_equal(group.components["a_reward"], [1.0, nan, nan, 0.0])
    np.testing.assert_array_equal(group.components["b_reward"], [nan, 0.5, nan, 0.25])
    assert group.extra["verify_failures"] == ["", "", "none", ""]
    with pytest.raises(DataError, match="field advantage"):
        import_trl(tmp_path, rows, mapping={"components": weights | {"b_reward": 6}})


def import_jsonl(folder, *rows, **options):
    (folder / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    into = tempfile.mkdtemp(dir=folder)
    rollouts.import_rows("jsonl", folder / "a.jsonl", into, **options)
    return list(rollouts.read(into))


def import_letters(folder, letters, mapping=None, **columns):
    """Imports a row for each letter, which is its prompt; returns prompt and texts of the groups."""
    rows = [
        {"prompt": letter, "text": str(k), "reward": k % 2}
        | {name: values[k] for name, values in columns.items()}
        for k, letter in enumerate(letters)
    ]
    groups = import_jsonl(folder, *rows, mapping=mapping)
    return [f"{group.prompt}{''.join(group.texts)}" for group in groups]


@pytest.mark.parametrize(
    ("letters", "groups"),
    [
        ("AABBB", ["A01", "B234"]),
        ("AAB", ["A01", "B2"]),
        ("ABAB", None),
        ("AABBAA", None),  # a prompt that was sampled twice
    ],
)
def test_adjoining_rows_of_a_prompt_are_a_group(tmp_path, letters, groups):
    if groups is None:
        with pytest.raises(DataError, match=r"a.jsonl, line \d: field prompt: .*group"):
            import_letters(tmp_path, letters)
        scattered = import_letters(tmp_path, letters, {"group": "prompt"})
        assert [found[0] for found in scattered] == ["A", "B"]
    else:
        assert import_letters(tmp_path, letters) == groups


def test_columns_may_say_which_rows_are_a_group(tmp_path):
    columns = {"uid": [7, 8, 7, 8, 7, 7], "step": [1, 1, 1, 1, 2, 2]}
    found = import_letters(tmp_path, "AAAAAA", {"group": "uid"}, **columns)
    assert found == ["A02", "A13", "A45"]
    found = import_letters(tmp_path, "ABAABBBA", group_id=list("xyxxyzzx"))
    assert found == ["A0237", "B14", "B56"]
    for mapping, field in (({"group": "quesiton"}, "quesiton"), ({"prompt": "q"}, "prompt")):
        with pytest.raises(DataError, match=f"line 1: field {field}"):
            import_letters(tmp_path, "AB", mapping)


def test_a_file_of_groups_of_one_warns(tmp_path, caplog):
    assert len(import_letters(tmp_path, "ABC")) == 3
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    caplog.clear()
    import_letters(tmp_path, "AAB")
    import_letters(tmp_path, "AB", is_expert=[True, True])
    assert not caplog.records


def test_fields_of_a_row_separate_groups_or_are_refused_where_they_differ(tmp_path):
    row = {"prompt": "p", "text": "t", "reward": 1}
    groups = import_jsonl(tmp_path, *(row | {"group_id": name, "seed": 4} for name in "xxy"))
    said = [(group.group_id, group.num_completions, group.seed) for group in groups]
    assert said == [("x", 2, 4), ("y", 1, 4)] and groups[0].extra == {}
    for name in ("temperature", "attempt"):
        with pytest.raises(DataError, match=rf"a.jsonl, line 1: field completions\[0\].{name}"):
            import_jsonl(tmp_path, *(row | {name: k} for k in (1, 1, 2)))
