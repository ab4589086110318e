"""No built-in task trains on a question that it evaluates on."""

import json

import pytest

from grre_jax import tasks

from . import published_samples

POSITIONS = 200

MADE = {
    "arithmetic": [{"operands": 2}],
    "calculator": [{}, {"operands": 2, "digits": 1}],
    "chat_arithmetic": [{}],
    "reasoning_gym": [{"size": 200}, {"dataset": "spell_backward", "size": 100}],
}


def own_questions(folder):
    """A file of questions of one's own, one of them twice."""
    rows = [{"prompt": f"{n} + 1?", "answer": n + 1} for n in (*range(30), 3)]
    (folder / "own.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder / "own.jsonl"


READ = {
    "questions": own_questions,
    "gsm8k": published_samples.gsm8k,
    "guru_math": published_samples.guru,
    "math": published_samples.math_folders,
    "toolace": published_samples.toolace,
}
CASES = [(name, options) for name, some in MADE.items() for options in some]
CASES += [(name, None) for name in READ]


def names_of(questions):
    """Ids, and prompts without their spacing: a model reads one question in both."""
    questions = list(questions)
    prompts = {" ".join(question.prompt.split()) for question in questions}
    return {question.question_id for question in questions} | prompts - {""}


def test_every_built_in_task_is_here():
    # test_gymnasium, test_openenv, test_verifiers
    worlds = {"gymnasium", "openenv", "textarena", "verifiers"}
    assert {name for name, _ in CASES} == set(tasks.names()) - worlds


@pytest.mark.parametrize(("name", "options"), CASES)
def test_evaluation_questions_are_never_trained_on(name, options, tmp_path):
    if name == "reasoning_gym":
        pytest.importorskip("reasoning_gym")
    if options is None:
        options = {"path": READ[name](tmp_path)}
        options |= {"held_out": 2} if name in ("guru_math", "toolace") else {}
    trained = set()
    held_out = tasks.build(name, **options).evaluation(500)
    for seed in (0, 7):
        task = tasks.build(name, seed=seed, **options)
        assert held_out and task.evaluation(500) == held_out
        trained |= names_of(task.question(position) for position in range(POSITIONS))
    assert not names_of(held_out) & trained
