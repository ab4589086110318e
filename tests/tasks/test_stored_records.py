"""Records from files in the published formats, and from Hugging Face with its library replaced."""

import json
import sys
import types

import pyarrow
import pytest
from pyarrow import parquet

from grre_jax.errors import DataError, UsageError
from grre_jax.tasks.stored_records import files_of, from_hub, read_records

RECORDS = [{"a": 1, "b": ["x"]}, {"a": 2, "b": []}]


@pytest.mark.parametrize("ending", ["jsonl", "json", "parquet"])
def test_every_format_gives_the_records(tmp_path, ending):
    file = tmp_path / f"data.{ending}"
    if ending == "parquet":
        parquet.write_table(pyarrow.Table.from_pylist(RECORDS), file)
    else:
        file.write_text(json.dumps(RECORDS) if ending == "json" else "".join(json.dumps(record) + "\n" for record in RECORDS))
    assert list(read_records(file)) == RECORDS


def test_damage_is_named(tmp_path):
    for name, content, message in (
        ("a.parquet", b"PAR1 but not", "a.parquet cannot be read as Parquet"),
        ("a.json", b"[1", "a.json cannot be read as JSON"),
        ("b.json", b"[1]", "record 1: a JSON object is needed, not a int"),
        ("a.jsonl", b"{\n", "line 1: this is no JSON"),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(DataError, match=message):
            list(read_records(tmp_path / name))
    with pytest.raises(DataError, match="none.json cannot be read"):
        list(read_records(tmp_path / "none.json"))
    with pytest.raises(UsageError, match="data.csv ends in none of .parquet"):
        list(read_records(tmp_path / "data.csv"))


def test_the_files_of_a_split(tmp_path):
    names = [
        "train.jsonl",
        "test.json",
        "data/train-00000-of-00001.parquet",
        "train/algebra/1.json",
        "test/2.json",
        "train-notes.json",
        "README.md",
        "other.jsonl",
    ]
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    found = {split: {str(file.relative_to(tmp_path)) for file in files_of(tmp_path, split)} for split in ("train", "test")}
    assert found == {"train": {names[0], names[2], names[3]}, "test": {names[1], names[4]}}


@pytest.fixture
def hub(monkeypatch):
    """`hub(load, offline)` puts a library in the place of datasets; the network is gone."""
    import requests

    def refuse(*args, **kwargs):
        raise requests.exceptions.ConnectionError("no route to host")

    monkeypatch.setattr(requests, "head", refuse)

    def replace(load, offline):
        library = types.SimpleNamespace(load_dataset=load, config=types.SimpleNamespace(HF_HUB_OFFLINE=offline))
        monkeypatch.setitem(sys.modules, "datasets", library)

    return replace


def test_the_hub(hub, monkeypatch):
    asked = []
    hub(lambda *args, **options: asked.append((args, options)) or RECORDS, offline=True)
    assert from_hub("x/y", "train", "pass path=", "f.parquet") == RECORDS
    assert asked == [(("x/y",), {"split": "train", "data_files": "f.parquet"})]
    hub(lambda *args, **options: RECORDS, offline=False)
    with pytest.raises(DataError, match=r"x/y is neither kept .* \(no route to host\): pass path="):
        from_hub("x/y", "train", "pass path=")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(DataError, match="package datasets, which cannot be imported .* pass path="):
        from_hub("x/y", "train", "pass path=")
