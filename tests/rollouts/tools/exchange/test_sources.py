from contextlib import nullcontext

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
        ("parquet", "empty.parquet", "empty.parquet"),
        ("parquet", "null.parquet", "null.parquet, row 3: field .*text"),
        ("parquet", "twice.parquet", "two columns"),
        ("trl", "folder", "folder"),
        ("datasets", "folder", "folder"),
        ("datasets", "no/such", "no/such"),
        ("datasets", "splits", "splits"),
        ("datasets", "bad", "data-0.arrow"),
        ("datasets", "gone", "data-0.arrow"),
        ("datasets", "twice", "two columns"),
    ],
)
def test_files_that_cannot_be_read_are_named(tmp_path, kind, name, named):
    table = pyarrow.Table.from_pylist(ROWS)
    twice = pyarrow.table([pyarrow.array([1.0])] * 2, names=["reward", "reward"])
    null = pyarrow.Table.from_pylist([*ROWS[1:], ROWS[0] | {"problem": "3", "response": None}])
    for ending, written in (("empty", table[:0]), ("null", null), ("twice", twice)):
        pyarrow.parquet.write_table(written, tmp_path / f"{ending}.parquet")
    (tmp_path / "folder").mkdir()
    save_to_disk(tmp_path / "twice", twice)
    save_to_disk(tmp_path / "bad", table).write_bytes(b"x" * 50)
    save_to_disk(tmp_path / "gone", table).unlink()
    for split in ("test", "train"):
        save_to_disk(tmp_path / "splits" / split, table)
    with pytest.raises(DataError, match=named):
        rollouts.import_rows(kind, tmp_path / name, tmp_path / "r", mapping=MAPPING)


def test_types_that_json_has_not_are_kept_or_refused(tmp_path):
    """Where a group has no such field they are kept, maps as objects and dates as texts."""
    columns = {
        "map": pyarrow.array([[("a", 1.0)]], pyarrow.map_(pyarrow.string(), pyarrow.float64())),
        "date": pyarrow.array([0], pyarrow.timestamp("s")),
        "bytes": pyarrow.array([b"\xff"]),
    }
    row = pyarrow.table({"prompt": ["q"], "text": ["a"], "reward": [1.0]})
    for name, kept in (("map", {"a": 1.0}), ("date", "1970-01-01 00:00:00"), ("bytes", None)):
        path = tmp_path / f"{name}.parquet"
        pyarrow.parquet.write_table(row.append_column(name, columns[name]), path)
        with nullcontext() if kept else pytest.raises(DataError, match="field extra"):
            rollouts.import_rows("parquet", path, tmp_path / name)
            assert rollouts.read(tmp_path / name)[0].extra == {name: kept}
