"""Sums in words: the split, the stream, the verdicts."""

import re

import pytest

from grre_jax import tasks

OPTIONS = [
    {},
    {"operands": 3, "digits": 2, "below": 16},
    {"operands": 4},
]


def expression(question: tasks.Question) -> str:
    return re.fullmatch(r"What is (.*)\? Answer with just the number\.", question.prompt).group(1)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_questions_are_right_and_split_once_for_all_seeds(options):
    task = tasks.build("chat_arithmetic", seed=3, **options)
    values = options.get("below", 10 ** options.get("digits", 1))
    size = values ** options.get("operands", 2)
    held_out = task.evaluation(10**6)
    drawn = [task.question(position) for position in range(task.training_size)]
    names = {question.question_id for question in held_out + drawn}
    assert len(names) == len(held_out) + len(drawn) == size
    # 3 + 5 and 5 + 3 are one question to a model that knows either.
    families = [
        {tuple(sorted(expression(question).split(" + "))) for question in side}
        for side in (held_out, drawn)
    ]
    assert families[0].isdisjoint(families[1])
    # A family of four operands in all their orders is the most it goes beyond.
    assert len(held_out) <= size / 5 + 24
    for question in held_out[:500] + drawn[:500]:
        text = expression(question)
        assert all(int(number) < values for number in re.findall("[0-9]+", text))
        assert int(question.answer) == eval(text)
        assert question.question_id == "chat_arithmetic/" + text.replace(" ", "")
        assert task.verify(question, question.demonstration).reward == 1
    assert tasks.build("chat_arithmetic", seed=9, **options).evaluation(10**6) == held_out


def test_a_few_held_out_questions_are_of_many_families():
    found = tasks.build("chat_arithmetic", operands=3).evaluation(50)
    assert len({frozenset(expression(question).split(" + ")) for question in found}) > 25


def test_answers_that_mean_the_same_are_one_text():
    task = tasks.build("chat_arithmetic")
    for text in ("8", "The answer is **8.0**.", "3 + 5 = 8", "16/2"):
        assert task.final_answer(text) == "8"
    assert task.final_answer("0.5") == "1/2" and task.final_answer("eight") is None
