"""Records from files in the published formats."""

import pytest

from grre_jax.errors import DataError
from grre_jax.tasks.datasets.stored_questions import files_of, read_records


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.parquet", b"PAR1 but not"),
        ("lines.json", b"{}\n{}\n"),
        ("list.json", b"[1]"),
        ("a.jsonl", b"{\n"),
    ],
)
def test_damage_is_named(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=name):
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
