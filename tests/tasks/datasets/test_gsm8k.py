"""GSM8K from files and from Hugging Face: one stream, one held-out split, and sentences
for what is missing.
"""

import json

import pytest

from grre_jax import tasks
from grre_jax.errors import DataError, UsageError
from grre_jax.tasks.datasets import stored_records
from grre_jax.tasks.datasets.stored_questions import digest


def problem(number: int) -> dict[str, str]:
    solution = (
        f"She has 1000+{number}=<<1000+{number}={1000 + number}>>{1000 + number:,} eggs.\n####"
        f" {1000 + number:,}"
    )
    return {
        "question": f"Janet\u2019s {number} ducks lay 1,000 eggs.  How many?",
        "answer": solution,
    }


def write(path, records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


@pytest.fixture
def folder(tmp_path):
    write(tmp_path / "train.jsonl", map(problem, range(12)))
    write(tmp_path / "test.jsonl", map(problem, range(100, 105)))
    return tmp_path


def test_questions(folder):
    task = tasks.build("gsm8k", path=folder, seed=1)
    question = task.question(0)
    number = int(question.prompt.split()[1])
    assert question.prompt == problem(number)["question"]
    assert question.answer == f"{1000 + number:,}"
    assert (
        question.demonstration
        == f"She has 1000+{number}={1000 + number:,} eggs.\n#### {1000 + number:,}"
    )
    assert question.question_id == f"gsm8k/train/{digest(question.prompt)}"
    assert task.verify(question, question.demonstration) == tasks.Verdict(1.0, {"correct": 1.0})
    assert task.final_answer(question.demonstration) == str(1000 + number)


def test_options(folder):
    plain = tasks.build("gsm8k", path=folder)
    task = tasks.build("gsm8k", path=folder, template="{question}\nEnd.", annotations=True)
    question = task.question(3)
    assert question.prompt == plain.question(3).prompt + "\nEnd."
    assert question.question_id == plain.question(3).question_id and "<<" in question.demonstration
    files = tasks.build("gsm8k", path=folder / "train.jsonl", test_path=folder / "test.jsonl")
    assert files.all_questions() == plain.all_questions()
    with pytest.raises(DataError, match="no question to evaluate on"):
        tasks.build("gsm8k", path=folder / "train.jsonl").evaluation(1)


def test_wrong_records_and_requests(folder):
    task = tasks.build("gsm8k", path=folder)
    with pytest.raises(DataError, match="^here: .*'#### number'"):
        task._questions_of("train", {"question": "q", "answer": "18"}, "here")
    with pytest.raises(UsageError, match="^count: "):
        task.evaluation(0)
    for numbers in ((), range(100, 103)):  # none, and those of the test file
        write(folder / "train.jsonl", map(problem, numbers))
        with pytest.raises(DataError, match="gsm8k"):
            tasks.build("gsm8k", path=folder).question(0)


def test_the_hub_gives_the_same_questions(folder, monkeypatch):
    def from_hub(name, split, ways, data_files):
        assert (name, data_files) == ("openai/gsm8k", f"main/{split}-*.parquet")
        return stored_records.read_records(folder / f"{split}.jsonl")

    monkeypatch.setattr(stored_records, "from_hub", from_hub)
    published = tasks.build("gsm8k")
    from_files = tasks.build("gsm8k", path=folder)
    assert published.all_questions() == from_files.all_questions()


# -- the real files
# ------------------------------------------------------------


def test_the_real_splits(gsm8k_folder):
    task = tasks.build("gsm8k", path=gsm8k_folder)
    drawn = [task.question(place) for place in range(7473)]
    held_out = task.evaluation(5000)
    assert len({question.question_id for question in drawn}) == 7473
    assert len({question.question_id for question in held_out}) == 1319
    assert all(
        task.verify(question, question.demonstration).reward == 1 for question in drawn + held_out
    )
    assert not {question.prompt for question in drawn} & {question.prompt for question in held_out}
