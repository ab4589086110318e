"""MATH and Guru-Math: the published forms, what is left out, and how answers are judged."""

import json

import pytest

from grre_jax import tasks

from . import published_samples


@pytest.fixture(autouse=True)
def math_verify():
    """Imported by the process that runs these tests alone: it takes a second."""
    pytest.importorskip("math_verify", reason="needs math-verify")


def test_questions(tmp_path):
    task = tasks.build("math", path=published_samples.math_folders(tmp_path))
    assert len(task.evaluation(9)) == 3
    question = task.question(0)
    assert question.prompt.endswith("\\boxed{}.") and question.answer.startswith("\\frac{")
    assert task.verify(question, question.demonstration).reward == 1


def test_a_copy_of_the_question_is_refused_and_answers_that_mean_the_same_vote_alike():
    question = tasks.Question("case", "Simplify $\\sqrt{50}$.", "5\\sqrt{2}")
    task = tasks.build("guru_math", path="anywhere")
    for text, right, answered in (
        ("\\boxed{\\sqrt{50}}", 0.0, 1.0),
        ("I do not know.\nSorry about that.", 0.0, 0.0),
        ("\\boxed{5\\sqrt2}", 1.0, 1.0),
    ):
        verdict = task.verify(question, text)
        assert verdict == tasks.Verdict(right, {"correct": right, "answered": answered})
    for text in ("\\boxed{0.5}", "The answer is $\\frac12$.", "#### 1/2"):
        assert task.final_answer(text) == "1/2"


def test_records_without_an_answer_are_left_out_and_counted(tmp_path, caplog):
    path = published_samples.math_folders(tmp_path)
    record = {"problem": "p", "solution": "no box"}
    (path / "train" / "algebra" / "0.json").write_text(json.dumps(record))
    task = tasks.build("math", path=path)
    assert len(task.all_questions()) == 8 and task.unusable == 1
    assert "0.json, record 1" in caplog.text


def test_forms_of_the_truth(tmp_path):
    parts = [{"type": "text", "text": text} for text in ("q", "?")]
    prompt = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": parts}]
    task = tasks.build("guru_math", path=tmp_path)
    for truth, answer in (('["7"]', "7"), (["7"], "7"), (7, "7"), ('["1", "2"]', '["1", "2"]')):
        record = {"prompt": prompt, "reward_model": {"ground_truth": truth}}
        ((_, question),) = task._questions_of("train", record, "")
        assert (question.prompt, question.answer) == ("Be brief.\n\nq?", answer)
