import json

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


def save_to_disk(folder, *parts):
    """As datasets.save_to_disk lays a data set out."""
    folder.mkdir(parents=True)
    names = [f"data-{i:05d}-of-{len(parts):05d}.arrow" for i in range(len(parts))]
    for name, rows in zip(names, parts, strict=True):
        table = pyarrow.Table.from_pylist(rows) if isinstance(rows, list) else rows
        with (
            pyarrow.OSFile(str(folder / name), "wb") as file,
            pyarrow.ipc.new_stream(file, table.schema) as stream,
        ):
            stream.write_table(table)
    (folder / "state.json").write_text(
        json.dumps({"_data_files": [{"filename": name} for name in names], "_fingerprint": "x"})
    )
    (folder / "dataset_info.json").write_text("{}")
    return folder


def check_rows(folder):
    first, second = rollouts.read(folder)
    assert (first.prompt, first.answer, first.question_id) == ("1+1", "2", "7")
    assert (first.texts, first.rewards.tolist()) == (["2", "3"], [1.0, 0.0])
    assert (second.question_id, second.texts, second.rewards.tolist()) == ("8", ["4"], [0.5])


def test_parquet_with_a_mapping(tmp_path):
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ROWS), tmp_path / "a.parquet")
    rollouts.import_rows(
        "parquet", tmp_path / "a.parquet", tmp_path / "r", mapping=MAPPING, contains=("math/train",)
    )
    check_rows(tmp_path / "r")
    assert rollouts.read(tmp_path / "r").contains == {"math/train"}


def test_a_hugging_face_data_set_on_disk(tmp_path):
    save_to_disk(tmp_path / "d" / "train", ROWS[:1], ROWS[1:])
    rollouts.import_rows("datasets", tmp_path / "d" / "train", tmp_path / "r", mapping=MAPPING)
    check_rows(tmp_path / "r")
    save_to_disk(tmp_path / "d" / "test", ROWS)
    with pytest.raises(DataError, match="splits test, train"):
        rollouts.import_rows("datasets", tmp_path / "d", tmp_path / "r")


@pytest.mark.parametrize(
    ("kind", "name", "message"),
    [
        ("parquet", "none.parquet", "none.parquet"),
        ("trl", "folder", "folder"),
        ("datasets", "folder", "a folder of datasets.save_to_disk"),
        ("datasets", "no/such", "no/such"),
        ("datasets", "bad", "data-00000-of-00001.arrow cannot be read as an Arrow stream"),
        ("datasets", "gone", "data-00000-of-00001.arrow is missing, which .*state.json lists"),
        ("parquet", "empty.parquet", "empty.parquet has no groups"),
    ],
)
def test_files_that_cannot_be_read_are_named(tmp_path, kind, name, message):
    pyarrow.parquet.write_table(
        pyarrow.table({"prompt": pyarrow.array([], pyarrow.string())}), tmp_path / "empty.parquet"
    )
    (tmp_path / "folder").mkdir()
    (save_to_disk(tmp_path / "bad", ROWS) / "data-00000-of-00001.arrow").write_bytes(b"x" * 50)
    (save_to_disk(tmp_path / "gone", ROWS) / "data-00000-of-00001.arrow").unlink()
    with pytest.raises(DataError, match=message):
        rollouts.import_rows(kind, tmp_path / name, tmp_path / "r")


def test_wrong_rows_name_the_row(tmp_path):
    pyarrow.parquet.write_table(
        pyarrow.Table.from_pylist([*ROWS, {**ROWS[0], "problem": "3+3", "response": None}]),
        tmp_path / "a.parquet",
    )
    with pytest.raises(DataError, match="a.parquet, row 4: field .*text"):
        rollouts.import_rows("parquet", tmp_path / "a.parquet", tmp_path / "r", mapping=MAPPING)


@pytest.mark.parametrize("kind", ["parquet", "datasets"])
def test_two_columns_of_one_name_are_refused(tmp_path, kind):
    names = ["prompt", "text", "reward", "reward"]
    table = pyarrow.table([pyarrow.array([value]) for value in ("q", "a", 1.0, 2.0)], names=names)
    save_to_disk(tmp_path / "a", table)
    pyarrow.parquet.write_table(table, tmp_path / "a" / "a.parquet")
    with pytest.raises(DataError, match="two columns have one name"):
        rollouts.import_rows(kind, tmp_path / "a", tmp_path / "r")
