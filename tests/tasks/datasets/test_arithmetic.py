"""The embedded task: its arithmetic, its stream and its split."""

import dataclasses

import jax
import numpy as np
import pytest

from grre_jax import tasks
from research.in_graph.precedence import Precedence

SHORT = tasks.build("arithmetic", seed=4)
FULL = tasks.build("arithmetic", seed=4, answers="full")
ORDERED = Precedence(operands=5, answers="full")


@pytest.mark.parametrize("task", [SHORT, FULL], ids=["short", "full"])
def test_held_out_answers_are_right_and_well_formed(task):
    for question in task.evaluation(300):
        prompt = question.prompt
        value, steps = int(prompt[0]), []
        for place in (1, 3, 5):
            equation = f"{value}{prompt[place : place + 2]}"
            value = eval(equation) % 10
            steps.append(f"{equation}={value}" if task is FULL else str(value))
        assert question.question_id == f"arithmetic/{prompt[:-1]}"
        assert question.answer == str(value)
        assert question.demonstration == ",".join(steps) + "$"


@pytest.mark.parametrize("task", [SHORT, FULL, ORDERED], ids=["short", "full", "ordered"])
def test_a_batch_holds_what_the_positions_hold(task):
    positions = np.array([5, 0, 123456, 5, 2**32 - 1])

    def both(p):
        return task.questions_batch(p), task.demonstrations_batch(p)

    prompts, answers = both(positions)
    for position, prompt, answer in zip(positions, prompts, answers, strict=True):
        question = task.question(int(position))
        assert prompt.tolist() == task.tokenizer.encode_prompt(question)
        assert answer.tolist() == task.tokenizer.encode_completion(question.demonstration)
    traced = jax.jit(both)(positions.astype(np.uint32))
    jax.tree.map(np.testing.assert_array_equal, traced, (prompts, answers))


def test_training_and_held_out_questions_are_the_whole_space_and_apart():
    task = tasks.build("arithmetic", operands=2)
    held = {tuple(row) for row in task.evaluation_batch(300)}
    drawn = {tuple(row) for row in task.questions_batch(np.arange(6000))}
    assert len(held) == 15 and not held & drawn and len(held | drawn) == 300


def test_a_flawed_step_follows_the_wrong_rule_in_subtractions_and_multiplications_alone():
    positions = np.arange(20_000)
    right, wrong, some = (
        tasks.build("arithmetic", answers="full", corruption=0, flaw=flaw)
        .demonstrations_batch(positions)
        .reshape(-1, 3, 6)
        for flaw in (0, 1, 0.6)
    )
    plus = wrong[..., 1] == SHORT.tokenizer.ids["+"]
    assert (wrong[..., 4] == (wrong[..., 0] + wrong[..., 2] + ~plus) % 10).all()
    right, wrong, first = (answers[:, 0, 4] for answers in (right, wrong, some))
    assert abs((first == wrong)[right != wrong].mean() - 0.6) < 0.01
    assert (some[:, 1:, 0] == some[:, :-1, 4]).all()  # wrong steps are worked on from


def test_multiplications_come_first_with_precedence_and_a_flawed_step_works_the_last():
    for question in ORDERED.evaluation(300):
        assert question.answer == str(eval(question.prompt[:-1]) % 10)
        assert ORDERED.verify(question, question.demonstration).reward == 1
    flawed = dataclasses.replace(ORDERED, flaw=1)
    for question in map(flawed.question, range(200)):
        values, operations = list(question.prompt[:-1:2]), list(question.prompt[1:-1:2])
        for step in question.demonstration.removesuffix("$").split(","):
            equation = f"{values.pop(-2)}{operations.pop()}{values.pop()}"
            values.append(str(eval(equation) % 10))
            assert step == f"{equation}={values[-1]}"


def test_the_final_answer_is_the_digit_that_is_judged():
    question = tasks.Question("arithmetic/3+5*2-1", "3+5*2-1>", "5")
    for completion in ("8,6,5$", "5$", "8,6,5$3$", "8,6,5", "8,6,4$", "$5$", "", "\u0665$"):
        reward = SHORT.verify(question, completion).reward
        assert (SHORT.final_answer(completion) == "5") == reward
