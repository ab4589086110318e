"""Sums in words: the split, the stream, the verdicts."""

import re

import pytest

from grre_jax import tasks

from ...conftest import CHAT_ARITHMETIC

OPTIONS = ({}, {"operands": 3, "digits": 2, "below": 16})


def expression(question):
    return re.fullmatch(r"What is (.*)\? Answer with just the number\.", question.prompt).group(1)


def families(questions):
    return {tuple(sorted(expression(question).split(" + "))) for question in questions}


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_questions_are_right_and_split_once_for_all_seeds(options):
    task = tasks.build(CHAT_ARITHMETIC, seed=3, **options)
    values = options.get("below", 10 ** options.get("digits", 1))
    size = values ** options.get("operands", 2)
    held_out = task.evaluation(10**6)
    drawn = [task.question(position) for position in range(task.training_size)]
    names = {question.question_id for question in held_out + drawn}
    assert len(names) == len(held_out) + len(drawn) == size
    # 3 + 5 and 5 + 3 are one question to a model that knows either.
    assert families(held_out).isdisjoint(families(drawn))
    # A family of three operands in all their orders is the most it goes beyond.
    assert len(held_out) <= size / 5 + 6
    for question in held_out[:500] + drawn[:500]:
        text = expression(question)
        assert all(int(number) < values for number in re.findall("[0-9]+", text))
        assert int(question.answer) == eval(text)
        assert task.verify(question, question.demonstration).reward == 1
    assert tasks.build(CHAT_ARITHMETIC, seed=9, **options).evaluation(10**6) == held_out
