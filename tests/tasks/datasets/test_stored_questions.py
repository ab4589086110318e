"""What is trained on and what is held out, whatever the files."""

import json
from dataclasses import dataclass

import pytest

from grre_jax.errors import DataError
from grre_jax.tasks.datasets.stored_questions import StoredQuestions


@dataclass(eq=False)
class Letters(StoredQuestions):
    name = "letters"
    hub = ("someone/letters", None)

    held_out: int = 2

    def _questions_of(self, split, record, where):
        return [self._entry(split, record["text"], "a", family=record["text"][0])]


def write(path, texts):
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path


def trained(task):
    return {task.question(place).prompt for place in range(20)}


def held_out(task):
    return {question.prompt for question in task.evaluation(99)}


def test_families_stay_on_one_side(tmp_path):
    texts = [letter + number for letter in "abcdefgh" for number in "12"]
    path = write(tmp_path / "all.jsonl", texts)
    task = Letters(path=path, held_out=3)
    out, training = held_out(task), trained(task)
    assert len(out) == 4 and out | training == set(texts)
    assert not {text[0] for text in out} & {text[0] for text in training}
    again = Letters(path=write(path, texts[::-1]), held_out=3, seed=3)
    assert again.evaluation(99) == task.evaluation(99)


def test_a_test_split_is_never_trained_on(tmp_path):
    write(tmp_path / "train.jsonl", ["a1", "b1", "c1"])
    write(tmp_path / "test.jsonl", ["a2"])
    task = Letters(path=tmp_path)
    assert trained(task) == {"b1", "c1"} and held_out(task) == {"a2"}


def test_long_prompts_are_left_out(tmp_path):
    path = write(tmp_path / "all.jsonl", ["a", "b" * 9, "d" * 10])
    task = Letters(path=path, most_prompt_characters=9, held_out=1)
    assert trained(task) | held_out(task) == {"a", "b" * 9}


def test_nothing_to_train_on_is_named(tmp_path):
    path = write(tmp_path / "data.jsonl", ["a", "b", "c"])
    with pytest.raises(DataError, match="held_out=3"):
        Letters(path=path, held_out=3).question(0)
    with pytest.raises(DataError, match="task.options.path: "):
        Letters(path=tmp_path).question(0)
