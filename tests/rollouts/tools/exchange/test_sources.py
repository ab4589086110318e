import datetime

import pyarrow
import pyarrow.parquet
import pytest

from grre_jax import rollouts
from grre_jax.errors import DataError

ROWS = [
    {"problem": "1+1", "response": "2", "score": 1.0, "gold": "2", "id": 7},
    {"problem": "1+1", "response": "3", "score": 0.0, "gold": "2", "id": 7},
    {"problem": "2+2", "response": "4", "score": 0.5, "gold": "4", "id": 8},
]
MAPPING = {
    "prompt": "problem",
    "text": "response",
    "reward": "score",
    "answer": "gold",
    "question_id": "id",
}


@pytest.mark.parametrize("kind", ["parquet", "datasets"])
def test_tables_with_a_mapping(tmp_path, kind):
    info = {"day": datetime.date(2025, 1, 2), "note": None}
    table = pyarrow.Table.from_pylist([row | {"info": info} for row in ROWS])
    path = tmp_path / "train"
    if kind == "parquet":
        pyarrow.parquet.write_table(table, path.with_suffix(".parquet"))
        path = path.with_suffix(".parquet")
    else:
        datasets = pytest.importorskip("datasets", reason="extra hub")
        datasets.Dataset.from_list(table.to_pylist()).save_to_disk(path)
    rollouts.import_rows(kind, path, tmp_path / "r", mapping=MAPPING)
    first, second = rollouts.read(tmp_path / "r")
    assert (first.prompt, first.answer, first.question_id) == ("1+1", "2", "7")
    assert (first.texts, first.rewards.tolist()) == (["2", "3"], [1.0, 0.0])
    assert (second.question_id, second.texts, second.rewards.tolist()) == ("8", ["4"], [0.5])
    assert second.extra == {"info": {"day": "2025-01-02"}}


@pytest.mark.parametrize(
    ("kind", "name", "named"),
    [
        ("parquet", "empty", "a folder of .parquet"),
        ("parquet", "twice.parquet", "two columns"),
        ("datasets", "bad", "bad"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path, kind, name, named):
    for folder in ("empty", "bad"):
        (tmp_path / folder).mkdir()
    (tmp_path / "bad" / "state.json").write_text("{}")
    twice = pyarrow.table([pyarrow.array([1.0])] * 2, names=["reward", "reward"])
    pyarrow.parquet.write_table(twice, tmp_path / "twice.parquet")
    with pytest.raises(DataError, match=named):
        rollouts.import_rows(kind, tmp_path / name, tmp_path / "r", mapping=MAPPING)
