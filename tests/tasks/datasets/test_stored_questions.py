"""What is trained on and what is held out, whatever the files."""

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from grre_jax import tasks
from grre_jax.config import load_file
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
    task = Letters(path=write(tmp_path / "all.jsonl", texts), held_out=3)
    out, training = held_out(task), trained(task)
    assert len(out) == 4 and out | training == set(texts)
    assert not {text[0] for text in out} & {text[0] for text in training}
    again = Letters(path=write(tmp_path / "all.jsonl", texts[::-1]), held_out=3, seed=3)
    assert again.evaluation(99) == task.evaluation(99)


def test_a_test_split_is_never_trained_on(tmp_path):
    write(tmp_path / "train.jsonl", ["a1", "b1", "c1"])
    write(tmp_path / "test.jsonl", ["a2"])
    task = Letters(path=tmp_path)
    assert trained(task) == {"b1", "c1"}
    assert held_out(task) == {"a2"}
    elsewhere = Letters(
        path=tmp_path / "train.jsonl", test_path=write(tmp_path / "own.jsonl", ["b9"])
    )
    assert trained(elsewhere) == {"a1", "c1"}
    assert held_out(elsewhere) == {"b9"}


def test_a_folder_to_evaluate_on_may_hold_files_of_any_name(tmp_path):
    write(tmp_path / "train.jsonl", ["a1", "b1", "c1"])
    for name, texts in (("test/own", ["b9"]), ("online/math_500", ["c9"]), ("empty/notes.md", [])):
        file = tmp_path / f"{name}.jsonl"
        file.parent.mkdir()
        write(file if texts else file.with_suffix(""), texts)
    for folder, asked in (("test", {"b9"}), ("online", {"c9"})):
        task = Letters(path=tmp_path / "train.jsonl", test_path=tmp_path / folder)
        assert held_out(task) == asked
    with pytest.raises(DataError, match="empty holds no test files"):
        Letters(path=tmp_path, test_path=tmp_path / "empty").question(0)


def test_a_folder_with_one_file_is_that_file(tmp_path):
    write(tmp_path / "data.jsonl", ["a", "b", "c"])
    (tmp_path / "README.md").write_text("")
    assert len(trained(Letters(path=tmp_path, held_out=1))) == 2
    write(tmp_path / "more.jsonl", ["d"])
    with pytest.raises(DataError, match="holds no train files"):
        Letters(path=tmp_path).question(0)


def test_why_nothing_is_left_is_said(tmp_path):
    class Nothing(Letters):
        def _questions_of(self, split, record, where):
            self._leave_out(where, "it is short")
            return []

    message = r"jsonl: 2 records or turns are left out \(.*record 1: it is short\)"
    with pytest.raises(DataError, match=message):
        Nothing(path=write(tmp_path / "all.jsonl", ["a", "b"])).question(0)
    with pytest.raises(DataError, match="held_out=5"):
        Letters(path=tmp_path / "all.jsonl", held_out=5).question(0)


def test_long_prompts_are_left_out(tmp_path):
    path = write(tmp_path / "all.jsonl", ["a", "b" * 9, "c", "d" * 10, "e"])
    task = Letters(path=path, most_prompt_characters=9, held_out=1)
    assert len(trained(task) | held_out(task)) == 4


def test_what_is_missing_is_said(tmp_path):
    with pytest.raises(DataError, match="holds no train files .*task.options.path"):
        Letters(path=tmp_path).question(0)
    for option, given in (
        ("path", {"path": tmp_path / "nope"}),
        ("test_path", {"path": tmp_path, "test_path": tmp_path / "gone.csv"}),
    ):
        with pytest.raises(DataError, match=f"task.options.{option} "):
            Letters(**given).question(0)


@pytest.mark.parametrize(
    "path",
    sorted((Path(__file__).parents[3] / "configs" / "paper").glob("*_[0-9]*b.py")),
    ids=lambda path: path.stem,
)
def test_a_shipped_configuration_asks_no_more_than_is_held_out(path):
    config = load_file(path)
    pytest.importorskip("math_verify") if config.task.name in ("math", "guru_math") else None
    task = tasks.build(config.task.name, **config.task.options)
    if isinstance(task, StoredQuestions) and not task.hub_test:
        assert config.evaluation.questions <= task.held_out
