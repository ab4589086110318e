import math
import tempfile

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from grre_jax import rollouts
from grre_jax.errors import DataError, UsageError

from .importing import imported

NAN = math.nan


def import_trl(folder, *files, **mapping):
    """Imports completions as TRL's GRPO trainer logs them: a row each, a column per function."""
    for number, columns in enumerate(files):
        pyarrow.parquet.write_table(
            pyarrow.table(columns), folder / f"completions_{number}.parquet"
        )
    into = tempfile.mkdtemp(dir=folder)
    rollouts.import_rows("trl", folder, into, mapping=mapping)
    return list(rollouts.read(into))


def test_completions_that_trl_logged(tmp_path):
    columns = {"completion": list("wxyz"), "length": [7, 6] * 2}
    columns |= {"a_reward": [1.0, 0.0] * 2, "b_reward": [0.0, -0.5] * 2}
    first = columns | {"step": ["10"] * 4, "prompt": list("ppqq")}
    second = columns | {"step": ["20"] * 4, "prompt": list("qqpp")}
    groups = import_trl(tmp_path, first, second)
    said = [f"{group.prompt}{group.extra['step']}" for group in groups]
    assert said == ["p10", "q10", "q20", "p20"]
    assert groups[0].texts == ["w", "x"] and groups[0].rewards.tolist() == [1.0, -0.5]
    assert groups[0].components["b_reward"].tolist() == [0.0, -0.5]
    assert groups[0].extra["completions"] == [{"length": 7}, {"length": 6}]


@pytest.mark.parametrize(
    ("columns", "mapping", "expected"),
    [
        ({"a_reward": [1.0, 0.0], "score": [1.0, None]}, {"reward": "score"}, [1, NAN]),
        ({"a_reward": [0.0, None], "b_reward": [0.25, NAN]}, {}, [0.25, NAN]),
        ({"n": [7, 6], "seed": [1, 2]}, {}, "reward"),
    ],
)
def test_rewards_of_trl_are_columns_or_their_sum(tmp_path, columns, mapping, expected):
    table = {"step": [1, 1], "prompt": ["p", "p"], "completion": ["c", "c"]} | columns
    if isinstance(expected, str):
        with pytest.raises((DataError, UsageError), match=expected):
            import_trl(tmp_path, table, **mapping)
    else:
        (group,) = import_trl(tmp_path, table, **mapping)
        np.testing.assert_array_equal(group.rewards, expected)
        assert group.extra["verify_failures"] == ["", "none"]


@pytest.mark.parametrize(
    ("letters", "by", "columns", "expected"),
    [
        ("AAAAAA", "uid", {"uid": [7, 8, 7, 8, 7, 7], "step": [1] * 4 + [2] * 2}, "A02 A13 A45"),
        ("ABAABBBA", None, {"group_id": "xyxxyzzx"}, "A0237 B14 B56"),
    ],
)
def test_rows_of_a_group_agree_in_a_column_and_the_step(tmp_path, letters, by, columns, expected):
    rows = [
        {"prompt": letter, "text": str(k), "reward": k % 2}
        | {name: values[k] for name, values in columns.items()}
        for k, letter in enumerate(letters)
    ]
    groups = imported(tmp_path, rows, mapping=by and {"group": by})
    found = [f"{group.prompt}{''.join(group.texts)}" for group in groups]
    assert found == expected.split()
