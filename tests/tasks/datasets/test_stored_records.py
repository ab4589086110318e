"""Records from files in the published formats, and from Hugging Face with its library replaced."""

import sys
import types

import pyarrow
import pytest

from grre_jax import tasks
from grre_jax.errors import DataError, UsageError
from grre_jax.tasks.datasets.stored_records import files_of, from_hub, read_records

from . import published_samples

RECORDS = [{"a": 1, "b": ["x"]}, {"a": 2, "b": []}]


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
    names = {
        "train": {"train.jsonl", "data/train-00000-of-00001.parquet", "train/algebra/1.json"},
        "test": {"test.json", "test/2.json"},
        "": {"train/algebra/._1.json", "train/.cache/2.json", "train-notes.json", "other.jsonl"},
    }
    for name in set().union(*names.values()):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    for split in ("train", "test"):
        found = {str(file.relative_to(tmp_path)) for file in files_of(tmp_path, split)}
        assert found == names[split]
    # A folder that is named as the split.
    assert files_of(tmp_path / "train", "train") == [tmp_path / "train" / "algebra" / "1.json"]
    assert files_of(tmp_path / "train", "test") == []


def test_data_sets_on_disk(tmp_path):
    for split, count in (("train", 6), ("test", 4)):
        rows = [{"question": f"{split} {n}?", "answer": f"So #### {n}"} for n in range(count)]
        table = pyarrow.Table.from_pylist(rows)
        published_samples.save_to_disk(tmp_path / split, table[:1], table[1:])
    options = {"path": tmp_path / "train", "test_path": tmp_path / "test"}
    whole, apart = tasks.build("gsm8k", path=tmp_path), tasks.build("gsm8k", **options)
    assert whole.all_questions() == apart.all_questions()
    assert {whole.question(n).prompt for n in range(6)} == {f"train {n}?" for n in range(6)}
    assert len(whole.evaluation(9)) == 4
    shard = tmp_path / "train" / "data-1.arrow"
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
    assert from_hub("x/y", "train", "", "f.parquet") == RECORDS
    assert asked == [(("x/y",), {"split": "train", "data_files": {"train": "f.parquet"}})]
    library.config.HF_HUB_OFFLINE = False

    def head(*args, **options):
        raise requests.exceptions.ConnectionError("no route to host")

    monkeypatch.setattr(requests, "head", head)
    with pytest.raises(DataError, match="x/y .*no route to host.*pass path="):
        from_hub("x/y", "train", "pass path=")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(DataError, match="hub.*pass path="):
        from_hub("x/y", "train", "pass path=")
