"""Guru-Math's Parquet: prompts and answers as they are, and questions held out of the one file."""

import pytest

from grre_jax import tasks

from . import published_samples

pytest.importorskip("math_verify")


def test_questions(tmp_path):
    path = published_samples.guru(tmp_path)
    task = tasks.build("guru_math", path=path, held_out=3, seed=1)
    held_out, drawn = task.evaluation(100), [task.question(place) for place in range(5)]
    assert len(held_out) == 3 and len({question.prompt for question in [*held_out, *drawn]}) == 8
    question = drawn[0]
    number = int(question.prompt.removeprefix("Find $").partition("^")[0])
    assert question.answer == str(number * number) and question.prompt.endswith("within \\boxed{}.")
    assert len(tasks.build("guru_math", path=path.parent.parent, held_out=3).evaluation(100)) == 3


@pytest.mark.parametrize(
    ("truth", "answer"),
    [
        ("7", "7"),
        ('["7"]', "7"),
        (["7"], "7"),
        (7, "7"),
        ("[1, 2)", "[1, 2)"),
        ('["1", "2"]', '["1", "2"]'),
    ],
)
def test_forms_of_the_truth(tmp_path, truth, answer):
    parts = [{"type": "text", "text": text} for text in ("q", "?")]
    prompt = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": parts}]
    record = {"prompt": prompt, "reward_model": {"ground_truth": truth}}
    ((_, question),) = tasks.build("guru_math", path=tmp_path)._questions_of("train", record, "")
    assert (question.prompt, question.answer) == ("Be brief.\n\nq?", answer)
