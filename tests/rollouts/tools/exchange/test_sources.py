import datetime

import pyarrow
import pyarrow.parquet
import pytest

from grre_jax import rollouts
from grre_jax.errors import DataError

from ....tasks.datasets.published_samples import save_to_disk

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
        save_to_disk(path, table[:1], table[1:])
    rollouts.import_rows(kind, path, tmp_path / "r", mapping=MAPPING)
    first, second = rollouts.read(tmp_path / "r")
    assert (first.prompt, first.answer, first.question_id) == ("1+1", "2", "7")
    assert (first.texts, first.rewards.tolist()) == (["2", "3"], [1.0, 0.0])
    assert (second.question_id, second.texts, second.rewards.tolist()) == ("8", ["4"], [0.5])
    assert second.extra == {"info": {"day": "2025-01-02"}}


@pytest.mark.parametrize(
    ("name", "named"), [("splits", "splits"), ("bad", "data-0.arrow"), ("twice", "two columns")]
)
def test_folders_that_cannot_be_read_are_named(tmp_path, name, named):
    table = pyarrow.Table.from_pylist(ROWS)
    save_to_disk(tmp_path / "splits" / "train", table)
    save_to_disk(tmp_path / "bad", table).write_bytes(b"x" * 50)
    twice = pyarrow.table([pyarrow.array([1.0])] * 2, names=["reward", "reward"])
    save_to_disk(tmp_path / "twice", twice)
    with pytest.raises(DataError, match=named):
        rollouts.import_rows("datasets", tmp_path / name, tmp_path / "r", mapping=MAPPING)
