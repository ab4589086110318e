"""No built-in task trains on a question that it evaluates on."""

import json

import pytest

from grre_jax import tasks

from ...conftest import CALCULATOR, CHAT_ARITHMETIC
from . import published_samples


def own_questions(folder):
    """A file of questions of one's own, one of them twice."""
    rows = [json.dumps({"prompt": f"{n} + 1?"}) for n in (*range(30), 3)]
    (folder / "own.jsonl").write_text("\n".join(rows))
    return folder / "own.jsonl"


FILES = {
    "questions": own_questions,
    "gsm8k": published_samples.gsm8k,
    "guru_math": published_samples.guru,
    "math": published_samples.math_folders,
    "toolace": published_samples.toolace,
}


def names_of(questions):
    """Ids, and prompts without their spacing: a model reads one question in both."""
    questions = list(questions)
    prompts = {" ".join(question.prompt.split()) for question in questions}
    return {question.question_id for question in questions} | prompts - {""}


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("arithmetic", {"operands": 2}),
        (CALCULATOR, {}),
        (CALCULATOR, {"operands": 2, "digits": 1}),
        (CHAT_ARITHMETIC, {}),
        ("reasoning_gym", {"size": 200}),
        ("questions", {}),
        ("gsm8k", {}),
        ("guru_math", {"held_out": 2}),
        ("math", {}),
        ("toolace", {"held_out": 2}),
    ],
)
def test_evaluation_questions_are_never_trained_on(name, options, tmp_path):
    if name == "reasoning_gym":
        pytest.importorskip("reasoning_gym")
    if name in FILES:
        options = options | {"path": FILES[name](tmp_path)}
    trained = set()
    held_out = tasks.build(name, **options).evaluation(500)
    for seed in (0, 7):
        task = tasks.build(name, seed=seed, **options)
        assert held_out and task.evaluation(500) == held_out
        trained |= names_of(task.question(position) for position in range(200))
    assert not names_of(held_out) & trained
