"""MATH from the authors' folders, from Parquet and from Hugging Face: one stream, one held-out
split.
"""

import json

import pytest

from grre_jax import tasks

from . import published_samples

pytest.importorskip("math_verify")


def test_both_published_forms_are_one_data_set(tmp_path):
    folders = tasks.build("math", path=published_samples.math_folders(tmp_path / "a"))
    parquet = tasks.build("math", path=str(published_samples.math_parquet(tmp_path / "b")))
    assert folders.all_questions() == parquet.all_questions()
    assert len(folders.evaluation(9)) == 3 and len(folders.evaluation(2)) == 2
    question = folders.question(0)
    assert question.prompt.endswith("\\boxed{}.") and question.prompt.startswith("What is $\\frac{")
    assert question.answer.startswith("\\frac{")
    assert folders.verify(question, question.demonstration).reward == 1


def test_votes():
    task = tasks.build("math", path="anywhere")
    for text in ("\\boxed{0.5}", "The answer is $\\frac12$.", "#### 1/2"):
        assert task.final_answer(text) == "1/2"
    assert task.final_answer("I do not know.\nSorry about that.") is None
    assert task.final_answer("\\boxed{x + 1}") == task.final_answer("\\boxed{x+1}") == "x+1"


@pytest.mark.parametrize("name", ["math", "guru_math"])
def test_a_copy_of_the_question_is_refused(name):
    question = tasks.Question("case", "Simplify $\\sqrt{50}$.", "5\\sqrt{2}")
    task = tasks.build(name, path="anywhere")
    lenient = tasks.build(name, path="anywhere", refuse_copies=False)
    copied = task.verify(question, "\\boxed{\\sqrt{50}}")
    assert copied == tasks.Verdict(0.0, {"correct": 0.0, "answered": 1.0})
    silent = task.verify(question, "I do not know.\nSorry about that.")
    assert silent == tasks.Verdict(0.0, {"correct": 0.0, "answered": 0.0})
    assert lenient.verify(question, "\\boxed{\\sqrt{50}}").reward == 1
    assert task.verify(question, "\\boxed{5\\sqrt2}").reward == 1


def test_wrong_records_and_options(tmp_path, caplog):
    path = published_samples.math_folders(tmp_path)
    (path / "train" / "algebra" / "0.json").write_text(
        json.dumps({"problem": "p", "solution": "no box"})
    )
    task = tasks.build("math", path=path)
    assert len({task.question(place).prompt for place in range(5)}) == 5 and task.unusable == 1
    assert "0.json, record 1: the solution has no answer in \\boxed" in caplog.text
