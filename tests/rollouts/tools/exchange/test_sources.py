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
    table = pyarrow.Table.from_pylist(ROWS)
    path = tmp_path / "d" / "train"
    save_to_disk(path, table[:1], table[1:])
    if kind == "parquet":
        path = tmp_path / "a.parquet"
        pyarrow.parquet.write_table(table, path)
    how = {"mapping": MAPPING, "contains": ("math/train",)}
    rollouts.import_rows(kind, path, tmp_path / "r", **how)
    first, second = reader = rollouts.read(tmp_path / "r")
    assert (first.prompt, first.answer, first.question_id) == ("1+1", "2", "7")
    assert (first.texts, first.rewards.tolist()) == (["2", "3"], [1.0, 0.0])
    assert (second.question_id, second.texts, second.rewards.tolist()) == ("8", ["4"], [0.5])
    assert reader.contains == {"math/train"}


@pytest.mark.parametrize(
    ("kind", "name", "named"),
    [
        ("parquet", "none.parquet", "none.parquet"),
        ("parquet", "null.parquet", "null.parquet, row 3: field .*text"),
        ("trl", "folder", "folder"),
        ("datasets", "splits", "splits"),
        ("datasets", "bad", "data-0.arrow"),
        ("datasets", "twice", "two columns"),
    ],
)
def test_files_that_cannot_be_read_are_named(tmp_path, kind, name, named):
    table = pyarrow.Table.from_pylist(ROWS)
    twice = pyarrow.table([pyarrow.array([1.0])] * 2, names=["reward", "reward"])
    null = pyarrow.Table.from_pylist([*ROWS[1:], ROWS[0] | {"problem": "3", "response": None}])
    pyarrow.parquet.write_table(null, tmp_path / "null.parquet")
    (tmp_path / "folder").mkdir()
    save_to_disk(tmp_path / "twice", twice)
    save_to_disk(tmp_path / "bad", table).write_bytes(b"x" * 50)
    for split in ("test", "train"):
        save_to_disk(tmp_path / "splits" / split, table)
    with pytest.raises(DataError, match=named):
        rollouts.import_rows(kind, tmp_path / name, tmp_path / "r", mapping=MAPPING)


def test_types_that_json_has_not_are_texts(tmp_path):
    columns = {
        "date": pyarrow.array([0], pyarrow.timestamp("s")),
        "nested": pyarrow.array([{"a": None, "b": [1]}]),
    }
    row = pyarrow.table({"prompt": ["q"], "text": ["a"], "reward": [1.0]} | columns)
    pyarrow.parquet.write_table(row, tmp_path / "a.parquet")
    rollouts.import_rows("parquet", tmp_path / "a.parquet", tmp_path / "r")
    (group,) = rollouts.read(tmp_path / "r")
    assert group.extra == {"date": "1970-01-01 00:00:00", "nested": {"b": [1]}}
