"""Environments that behave, hang, crash and lie, in this process and in others."""

import os

import pytest

from grre_jax import tasks
from grre_jax.tasks import Question
from grre_jax.tasks.config import TaskConfig
from grre_jax.tasks.environments.environment import (
    InProcessEnvironments,
    Opening,
    Reply,
    Trace,
    fingerprint,
)
from grre_jax.tasks.pool import EnvironmentPool, make_judge

from ...conftest import CALCULATOR
from .playing import play

TASK = r"""
import asyncio, os, time
from grre_jax.tasks import Question

class Troubled:
    name = "troubled"
    def __init__(self, forgets): self.forgets = forgets
    def question(self, position): return Question(f"q{position}", "?", "1")
    def evaluation(self, count): return [self.question(0)]
    def environment(self): return World(self.forgets)

class World:
    def __init__(self, forgets): self.told, self.forgets = [], forgets
    def reset(self, question, seed):
        self.seed = seed
        return [{"role": "user", "content": f"{question.prompt} {seed}"}]
    async def step(self, action):
        await asyncio.sleep(0)
        do = getattr(self, action, None)
        if do: return do()
        self.told.append(action)
        here = os.getpid() if self.forgets else self.seed
        return " ".join(self.told) + f" {here}", len(self.told) / 4, False, {"n": len(self.told)}
    def hang(self): time.sleep(1000)
    def exit(self): os._exit(3)
    def raises(self): raise ValueError("no")
    def nan(self): return "", float("nan"), False, {}
    def none(self): return None
    def scored(self): return "", 1, True, None, {"right": 1, "style": None}
    def parts(self): return "", 1, True, None, {"right": "yes"}
    def late(self): raise TimeoutError("no answer")

def build(forgets=False): return Troubled(forgets)
"""
QUESTION = Question("q1", "?", "1")


@pytest.fixture
def made(tmp_path):
    path = tmp_path / "world.py"
    path.write_text(TASK)
    runners = []

    def make(processes, timeout=30.0, **options):
        config = TaskConfig(
            f"{path}:build", options, verify_processes=processes, verify_timeout=timeout
        )
        runners.append(make_judge(config.build(0), config, 0))
        return runners[-1]

    yield make
    for runner in runners:
        runner.close()


@pytest.mark.parametrize("processes", [0, 2])
def test_trajectories_have_their_own_environments(made, processes):
    runner = made(processes)
    assert isinstance(runner, EnvironmentPool) == bool(processes)
    messages = [{"role": "user", "content": "? 7"}]
    opening, replies = play(runner, QUESTION, ["scored"])
    assert opening == Opening(messages, None)
    assert replies == [Reply("", 1.0, True, False, {"right": 1.0, "style": None})]
    traces = [Trace((number, 0, 0), QUESTION, number) for number in range(3)]
    for trace in traces:
        first = runner.step(trace, [], "a").result()
        assert first == Reply(f"a {trace.seed}", 0.25, False, False)
    for trace in traces:
        second = runner.step(trace, [("a", f"a {trace.seed}")], "b").result()
        assert second == Reply(f"a b {trace.seed}", 0.5, False, False)
    other = Trace((8, 0, 0), QUESTION, 8, fingerprint(messages))
    assert runner.step(other, [], "a").result().kind == "invalid"


@pytest.mark.parametrize(
    ("action", "kind", "reason"),
    [
        ("raises", "error", "ValueError: no"),
        ("late", "timeout", "TimeoutError: no answer"),
        ("parts", "invalid", "component 'right': "),
        ("nan", "invalid", "reward: "),
        ("none", "invalid", "step: "),
    ],
)
def test_bad_answers_are_failures_with_their_reason(made, action, kind, reason):
    _, (_, failure) = play(made(0), QUESTION, ["a", action, "b"])
    assert failure.kind == kind and failure.reason.startswith(reason)


def test_an_environment_that_ends_its_process_costs_its_own_trajectory(made):
    runner = made(1, timeout=6.0)
    good = Trace((1, 0, 0), QUESTION, 1)
    assert runner.step(good, [], "a").result().observation == "a 1"
    for number, (action, kind) in enumerate((("exit", "crash"), ("hang", "timeout")), start=2):
        _, (failure,) = play(runner, QUESTION, [action], seed=number)
        assert failure.kind == kind
    assert runner.step(good, [("a", "a 1")], "b").result().observation == "a b 1"


def test_an_environment_that_does_something_else_again_is_lost(made):
    runner = made(1, forgets=True)
    good = Trace((1, 0, 0), QUESTION, 1)
    seen = runner.step(good, [], "a").result().observation
    assert seen != f"a {os.getpid()}"
    play(runner, QUESTION, ["exit"])
    lost = runner.step(good, [("a", seen)], "b").result()
    assert lost.kind == "invalid" and lost.reason.startswith("step: ")


def test_the_calculator_works_the_numbers_of_every_question():
    task = tasks.build(CALCULATOR, operands=6, digits=4, tools=True)
    text = "*".join(["9999"] * 6)
    question = Question(f"calculator/{text}", text, str(9999**6))
    turns = task.demonstration(question, 0)
    opening, replies = play(InProcessEnvironments(task), question, turns)
    assert [tool["function"]["name"] for tool in opening.tools] == ["calculate"]
    assert [reply.called for reply in replies] == [True] * 5 + [False]
    assert replies[-2].observation == question.answer and replies[-1].reward == 1
