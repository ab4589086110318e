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

from . import published_samples

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


# -- the data sets as they are downloaded
# ------------------------------------------------------------


def write_parquet(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pyarrow.Table.from_pylist(list(rows)), path)


def test_gsm8k_as_on_hugging_face(tmp_path):
    """openai/gsm8k: main/train-00000-of-00001.parquet, and the same questions with other
    solutions in socratic/.
    """
    lines, hub = published_samples.gsm8k(tmp_path / "lines"), tmp_path / "hub"
    for split in ("train", "test"):
        rows = list(read_records(lines / f"{split}.jsonl"))
        write_parquet(hub / "main" / f"{split}-00000-of-00001.parquet", rows)
        rows = [row | {"answer": "How many? ** " + row["answer"]} for row in rows]
        write_parquet(hub / "socratic" / f"{split}-00000-of-00001.parquet", rows)
    from_lines = tasks.build("gsm8k", path=lines)
    for path in (hub, hub / "main"):
        assert tasks.build("gsm8k", path=path).all_questions() == from_lines.all_questions()


def test_math_500(tmp_path):
    """HuggingFaceH4/MATH-500: test.jsonl, its levels numbers, its subjects under another name."""
    pytest.importorskip("math_verify")
    path = published_samples.math_parquet(tmp_path / "math")
    rows = []
    for number in range(20, 23):
        row = published_samples.math_record(number)
        subject, level = row.pop("type"), row.pop("level")
        rows.append(row | {"subject": subject, "level": int(level[-1])})
    (tmp_path / "500").mkdir()
    (tmp_path / "500" / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = tasks.build("math", path=path, test_path=tmp_path / "500", levels=[1, 2, 3])
    assert len({task.question(place).prompt for place in range(9)}) == 4
    assert {question.answer[6:8] for question in task.evaluation(9)} == {"22", "23", "24"}
    some = tasks.build("math", path=path, subjects=["Geometry"], template="Q: {question}")
    assert [question.prompt for question in some.evaluation(9)] == ["Q: What is $\\frac{11}{2}+1$?"]
    for name, value in (
        ("levels", [6]),
        ("levels", 5),
        ("subjects", "Algebra"),
        ("subjects", ["A"]),
    ):
        with pytest.raises(UsageError, match=f"^{name}"):
            tasks.build("math", **{name: value})


def test_gurus_other_domains_are_left_out_and_counted(tmp_path, caplog):
    """LLM360/guru-RL-92k: train/ has a file for each domain."""
    pytest.importorskip("math_verify")
    published_samples.guru(tmp_path)
    message = {"role": "user", "content": "Sort a list."}
    rows = [
        {"prompt": [message], "ability": "codegen", "reward_model": {"ground_truth": '["1", "2"]'}}
    ] * 2
    write_parquet(tmp_path / "train" / "codegen__leetcode2k_1.3k.parquet", rows)
    task = tasks.build("guru_math", path=tmp_path, held_out=1)
    assert {task.question(place).prompt.split()[0] for place in range(7)} == {"Find"}
    assert task.unusable == 2
    assert "its ability is 'codegen', not mathematics" in caplog.text
