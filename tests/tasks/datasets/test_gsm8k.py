"""GSM8K from files and from Hugging Face: one stream and one held-out split."""

import sys
from unittest import mock

import pytest

from grre_jax import tasks
from grre_jax.errors import DataError
from grre_jax.tasks.datasets.stored_questions import digest, read_records

from . import published_samples


@pytest.fixture
def folder(tmp_path):
    return published_samples.gsm8k(tmp_path / "lines")


def test_questions(folder):
    task = tasks.build("gsm8k", path=folder, seed=1)
    question = task.question(0)
    number = int(question.prompt.split()[2])
    assert question.prompt == f"Tom has {number} pens and buys 4. How many?"
    assert question.demonstration == f"He has {number}+4={number + 4}.\n#### {number + 4}"
    assert question.question_id == f"gsm8k/train/{digest(question.prompt)}"
    assert task.verify(question, question.demonstration) == tasks.Verdict(1.0, {"correct": 1.0})
    other = tasks.build("gsm8k", path=folder, seed=1, template="{question}\nEnd.").question(0)
    assert other.prompt == question.prompt + "\nEnd."
    assert other.question_id == question.question_id


def test_without_a_path_it_comes_from_hugging_face(folder, monkeypatch):
    def load_dataset(name, split, data_files):
        assert (name, data_files) == ("openai/gsm8k", {split: f"main/{split}-*.parquet"})
        return read_records(folder / f"{split}.jsonl")

    hub = mock.Mock(load_dataset=load_dataset)
    monkeypatch.setitem(sys.modules, "datasets", hub)
    here = tasks.build("gsm8k", path=folder)
    assert tasks.build("gsm8k").all_questions() == here.all_questions()
    hub.load_dataset = mock.Mock(side_effect=ConnectionError("no route to host"))
    with pytest.raises(DataError, match="^path: .*openai/gsm8k .*no route to host"):
        tasks.build("gsm8k").question(0)


def test_the_real_splits(gsm8k_folder):
    task = tasks.build("gsm8k", path=gsm8k_folder)
    drawn, held_out = list(map(task.question, range(7473))), task.evaluation(5000)
    for side, size in ((drawn, 7473), (held_out, 1319)):
        assert len({question.question_id for question in side}) == size
        assert all(task.verify(question, question.demonstration).correct for question in side)
    assert not {question.prompt for question in drawn} & {question.prompt for question in held_out}
