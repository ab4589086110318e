import math
import tempfile

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from grre_jax import rollouts
from grre_jax.errors import DataError, UsageError

from .importing import imported


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
    columns = {"completion": list("wxyz"), "length": [7, 6] * 2, "advantage": [1.0, 0.0] * 2}
    columns |= {"a_reward": [1.0, 0.0] * 2, "b_reward": [0.0, -0.5] * 2}
    first = columns | {"step": ["10"] * 4, "prompt": list("ppqq")}
    second = columns | {"step": ["20"] * 4, "prompt": list("qqpp")}
    groups = import_trl(tmp_path, first, second)
    said = [f"{group.prompt}{group.extra['step']}" for group in groups]
    assert said == ["p10", "q10", "q20", "p20"]
    assert groups[0].texts == ["w", "x"] and groups[0].rewards.tolist() == [1.0, -0.5]
    components = {name: row.tolist() for name, row in groups[0].components.items()}
    assert components == {"a_reward": [1.0, 0.0], "b_reward": [0.0, -0.5]}
    others = [{"advantage": 1.0, "length": 7}, {"advantage": 0.0, "length": 6}]
    assert groups[0].extra["completions"] == others


NAN = math.nan
ADVANTAGES = [-1.5, -0.5, 0.5, 1.5]
NULLS = {"a_reward": [0.0, None, None, 1.0], "b_reward": [0.25, 0.5, None, NAN]}
NULLS |= {"advantage": [-1.5, 0.0, 9.0, 1.5]}
TRL = [  # columns, the mapping, and the rewards or the field that is refused
    ({"a_reward": [1.0, 0.0], "score": [1.0, None]}, {"reward": "score"}, [1, NAN]),
    ({"n": [7, 6], "seed": [1, 2]}, {}, "reward"),
    (NULLS, {}, [0.25, 0.5, NAN, 1]),
    ({"a_reward": ["x", "y"]}, {}, "a_reward"),
]


@pytest.mark.parametrize(("columns", "mapping", "expected"), TRL)
def test_rewards_of_trl_are_columns_or_their_sum(tmp_path, columns, mapping, expected):
    count = len(next(iter(columns.values())))
    table = {"step": [1] * count, "prompt": ["p"] * count, "completion": ["c"] * count} | columns
    if isinstance(expected, str):
        with pytest.raises((DataError, UsageError), match=expected):
            import_trl(tmp_path, table, **mapping)
        return
    (group,) = import_trl(tmp_path, table, **mapping)
    np.testing.assert_allclose(group.rewards, expected, rtol=1e-6)
    failures = ["none" if math.isnan(reward) else "" for reward in expected]
    assert group.extra.get("verify_failures", [""] * count) == failures


@pytest.mark.parametrize(
    ("letters", "by", "columns", "expected"),
    [
        ("AAAAAA", "uid", {"uid": [7, 8, 7, 8, 7, 7], "step": [1] * 4 + [2] * 2}, "A02 A13 A45"),
        ("ABAABBBA", None, {"group_id": "xyxxyzzx"}, "A0237 B14 B56"),
    ],
)
def test_rows_of_a_group_adjoin_or_have_a_column_of_their_own(
    tmp_path, letters, by, columns, expected
):
    rows = [
        {"prompt": letter, "text": str(k), "reward": k % 2}
        | {name: values[k] for name, values in columns.items()}
        for k, letter in enumerate(letters)
    ]
    groups = imported(tmp_path, rows, mapping=by and {"group": by})
    found = [f"{group.prompt}{''.join(group.texts)}" for group in groups]
    assert found == expected.split()
