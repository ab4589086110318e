"""GSM8K from files and from Hugging Face: one stream and one held-out split."""

import pyarrow
import pytest
from pyarrow import parquet

from grre_jax import tasks
from grre_jax.tasks.datasets import stored_records
from grre_jax.tasks.datasets.stored_questions import digest

from . import published_samples


@pytest.fixture
def folder(tmp_path):
    return published_samples.gsm8k(tmp_path / "lines")


def test_questions(folder):
    task = tasks.build("gsm8k", path=folder, seed=1)
    question = task.question(0)
    number = int(question.prompt.split()[2])
    assert question.prompt == f"Tom has {number} pens and buys 4. How many?"
    assert question.answer == str(number + 4)
    assert question.demonstration == f"He has {number}+4={number + 4}.\n#### {number + 4}"
    assert question.question_id == f"gsm8k/train/{digest(question.prompt)}"
    assert task.verify(question, question.demonstration) == tasks.Verdict(1.0, {"correct": 1.0})
    assert task.final_answer(question.demonstration) == question.answer
    other = tasks.build("gsm8k", path=folder, seed=1, template="{question}\nEnd.").question(0)
    assert other.prompt == question.prompt + "\nEnd."
    assert other.question_id == question.question_id


def test_every_published_form_is_one_data_set(folder, tmp_path, monkeypatch):
    """On Hugging Face "socratic" has the same questions with other solutions."""

    def from_hub(name, split, data_files):
        assert (name, data_files) == ("openai/gsm8k", f"main/{split}-*.parquet")
        return stored_records.read_records(folder / f"{split}.jsonl")

    for form, prefix in (("main", ""), ("socratic", "How many? ** ")):
        (tmp_path / "hub" / form).mkdir(parents=True)
        for split in ("train", "test"):
            rows = list(stored_records.read_records(folder / f"{split}.jsonl"))
            rows = [row | {"answer": prefix + row["answer"]} for row in rows]
            file = tmp_path / "hub" / form / f"{split}-00000-of-00001.parquet"
            parquet.write_table(pyarrow.Table.from_pylist(rows), file)
    monkeypatch.setattr(stored_records, "from_hub", from_hub)
    questions = tasks.build("gsm8k", path=folder).all_questions()
    for path in (tmp_path / "hub", None):
        assert tasks.build("gsm8k", path=path).all_questions() == questions


def test_the_real_splits(gsm8k_folder):
    task = tasks.build("gsm8k", path=gsm8k_folder)
    drawn, held_out = list(map(task.question, range(7473))), task.evaluation(5000)
    for side, size in ((drawn, 7473), (held_out, 1319)):
        assert len({question.question_id for question in side}) == size
        assert all(task.verify(question, question.demonstration).correct for question in side)
    assert not {question.prompt for question in drawn} & {question.prompt for question in held_out}
