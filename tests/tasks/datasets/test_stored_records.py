"""Records from files in the published formats, and from Hugging Face with its library replaced."""

import json
import sys
import types

import pyarrow
import pytest
from pyarrow import parquet

from grre_jax import tasks
from grre_jax.errors import DataError, UsageError
from grre_jax.tasks.datasets.stored_records import files_of, from_hub, read_records

RECORDS = [{"a": 1, "b": ["x"]}, {"a": 2, "b": []}]


def test_every_format_gives_the_records(tmp_path):
    parquet.write_table(pyarrow.Table.from_pylist(RECORDS), tmp_path / "data.parquet")
    (tmp_path / "data.json").write_text(json.dumps(RECORDS))
    (tmp_path / "data.jsonl").write_text("\n".join(map(json.dumps, RECORDS)))
    for file in tmp_path.iterdir():
        assert list(read_records(file)) == RECORDS


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.parquet", b"PAR1 but not"),
        ("empty.parquet", b""),
        ("lines.json", b"{}\n{}\n"),
        ("list.json", b"[1]"),
        ("a.jsonl", b"{\n"),
        ("none.json", None),
        ("data.csv", b""),
    ],
)
def test_damage_is_named(tmp_path, name, content):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(UsageError if name == "data.csv" else DataError, match=name):
        list(read_records(tmp_path / name))


def test_the_files_of_a_split(tmp_path):
    train = {"train.jsonl", "data/train-00000-of-00001.parquet", "train/algebra/1.json"}
    test = {"test.json", "test/2.json"}
    hidden = {"train/algebra/._1.json", "train/.cache/2.json"}
    for name in {*train, *test, *hidden, "train-notes.json", "README.md", "other.jsonl"}:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    for split, names in (("train", train), ("test", test)):
        found = files_of(tmp_path, split)
        assert {str(file.relative_to(tmp_path)) for file in found} == names
    # A folder that is named as the split.
    assert files_of(tmp_path / "train", "train") == [tmp_path / "train" / "algebra" / "1.json"]
    assert files_of(tmp_path / "train", "test") == []


def save_to_disk(folder, *shards):
    """As datasets.save_to_disk lays a data set out, with a cache that is not part of it."""
    folder.mkdir(parents=True)
    names = [f"data-{number:05d}-of-{len(shards):05d}.arrow" for number in range(len(shards))]
    for name, rows in zip([*names, "cache-1f.arrow"], [*shards, shards[0]], strict=True):
        table = pyarrow.Table.from_pylist(rows)
        with (
            pyarrow.OSFile(str(folder / name), "wb") as file,
            pyarrow.ipc.new_stream(file, table.schema) as stream,
        ):
            stream.write_table(table)
    state = {"_data_files": [{"filename": name} for name in names]}
    (folder / "state.json").write_text(json.dumps(state))
    (folder / "dataset_info.json").write_text("{}")


def gsm8k_rows(name, count):
    return [{"question": f"{name} {n}?", "answer": f"So #### {n}"} for n in range(count)]


def test_data_sets_on_disk(tmp_path):
    rows = gsm8k_rows("train", 6)
    save_to_disk(tmp_path / "train", rows[:3], rows[3:])
    save_to_disk(tmp_path / "test", gsm8k_rows("test", 2), gsm8k_rows("more", 2))
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    options = {"path": tmp_path / "train", "test_path": tmp_path / "test"}
    whole, apart = tasks.build("gsm8k", path=tmp_path), tasks.build("gsm8k", **options)
    assert whole.all_questions() == apart.all_questions()
    assert {whole.question(n).prompt for n in range(6)} == {row["question"] for row in rows}
    assert len(whole.evaluation(9)) == 4
    shard = tmp_path / "train" / "data-00001-of-00002.arrow"
    for damage in (lambda: shard.write_bytes(b"x" * 50), shard.unlink):
        damage()
        with pytest.raises(DataError, match=shard.name):
            tasks.build("gsm8k", path=tmp_path).question(0)


def test_the_hub(monkeypatch):
    import requests

    asked = []
    library = types.SimpleNamespace(
        load_dataset=lambda *args, **options: asked.append((args, options)) or RECORDS,
        config=types.SimpleNamespace(HF_HUB_OFFLINE=True),
    )
    monkeypatch.setitem(sys.modules, "datasets", library)
    assert from_hub("x/y", "train", "pass path=", "f.parquet") == RECORDS
    assert asked == [(("x/y",), {"split": "train", "data_files": {"train": "f.parquet"}})]
    library.config.HF_HUB_OFFLINE = False
    gone = requests.exceptions.ConnectionError("no route to host")
    monkeypatch.setattr(requests, "head", lambda *args, **options: (_ for _ in ()).throw(gone))
    with pytest.raises(DataError, match=r"x/y .*no route to host\): pass path="):
        from_hub("x/y", "train", "pass path=")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(DataError, match=r"extra hub.* pass path="):
        from_hub("x/y", "train", "pass path=")
