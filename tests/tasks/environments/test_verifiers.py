"""Environments of the package verifiers: of one turn, of several, with tools, and its own."""

import asyncio
import dataclasses

import pytest

from grre_jax import tasks
from grre_jax.errors import UsageError
from grre_jax.tasks.config import TaskConfig
from grre_jax.tasks.environments.environment import InProcessEnvironments
from grre_jax.tasks.pool import make_judge
from grre_jax.tasks.task import is_environment

from .playing import play, program

pytest.importorskip("verifiers", reason="extra verifiers")

SUMS = '''
import asyncio

import verifiers as vf
from datasets import Dataset


def rows(first, last):
    asked = [{"question": f"{n}+{n}?", "answer": str(2 * n), "info": {"n": n}} for n in range(first, last)]
    return Dataset.from_list(asked)


async def right(completion, answer):
    return float(answer in [message["content"].strip() for message in completion])


def short(completion):
    return float(len(completion[-1]["content"]) < 4)


loops = set()


async def loop_count(completion):
    """The event loops so far: a judge's client belongs to one."""
    loops.add(asyncio.get_running_loop())
    return float(len(loops))


def single(count=20):
    rubric = vf.Rubric(funcs=[right, short, loop_count], weights=[1.0, 0.5, 0.0])
    return vf.SingleTurnEnv(
        dataset=rows(0, count), eval_dataset=rows(count, count + 5), system_prompt="Sum.", rubric=rubric
    )


class Guess(vf.MultiTurnEnv):
    async def env_response(self, messages, state, **_):
        guess = messages[-1]["content"].strip()
        if guess == "fail":
            raise vf.InfraError("the world ended")
        if guess == state["answer"]:
            state["final_env_response"] = [vf.UserMessage(content="yes")]
            return state["final_env_response"]
        return [vf.UserMessage(content=f"not {guess}"), vf.UserMessage(content="again")]


class Forgetful(Guess):
    async def get_prompt_messages(self, state):
        messages = await super().get_prompt_messages(state)
        return messages[-1:] if state["trajectory"] else messages


def multi(count=20):
    return Guess(dataset=rows(0, count), max_turns=4, rubric=vf.Rubric(funcs=[right]))


def forgetful():
    return Forgetful(dataset=rows(0, 20), max_turns=4, rubric=vf.Rubric(funcs=[right]))


def double(number: int) -> int:
    """Doubles a number.

    Args:
        number: to be doubled.
    """
    return 2 * number


def tools():
    return vf.ToolEnv(tools=[double], dataset=rows(0, 20), max_turns=3, rubric=vf.Rubric(funcs=[right]))


async def best(completions, answers) -> list[float]:
    return [0.0] * len(completions)


def of_groups():
    return vf.SingleTurnEnv(dataset=rows(0, 20), rubric=vf.Rubric(funcs=[best]))


def load_environment(first=15):
    rubric = vf.Rubric(funcs=[right])
    return vf.SingleTurnEnv(dataset=rows(0, 20), eval_dataset=rows(first, 25), rubric=rubric)
'''


@pytest.fixture(scope="module")
def spec(tmp_path_factory):
    path = tmp_path_factory.mktemp("verifiers") / "sums.py"
    path.write_text(SUMS)
    return lambda name: TaskConfig("verifiers", {"env": f"{path}:{name}"})


def test_one_turn_is_judged_by_the_rubric(spec):
    task = spec("single").build(0)
    assert not is_environment(task)
    question = task.question(0)
    number = int(question.answer) // 2
    assert [message["content"] for message in question.messages] == ["Sum.", f"{number}+{number}?"]
    for processes in (0, 1):
        judge = make_judge(task, dataclasses.replace(spec("single"), verify_processes=processes), 0)
        for _ in range(2):
            (verdicts,) = judge([(question, [question.answer, "12345", "1"])])
            assert verdicts.rewards.tolist() == [1.5, 0.0, 0.5]
            rows = {name: row.tolist() for name, row in verdicts.components.items()}
            expected = {"right": [1, 0, 0], "short": [1, 0, 1], "loop_count": [1] * 3}
            assert rows.items() >= expected.items()
        judge.close()


def test_without_a_data_set_to_evaluate_on_a_tenth_is_held_out(spec):
    task = spec("multi").build(0)
    held_out = {question.question_id for question in task.evaluation(100)}
    trained = {task.question(position).question_id for position in range(60)}
    assert (len(trained), len(held_out)) == (18, 2) and not trained & held_out


def test_several_turns_are_played_by_the_package_s_loop(spec):
    task = spec("multi").build(0)
    assert is_environment(task)
    runner = InProcessEnvironments(task)
    question = task.question(0)
    opening, replies = play(runner, question, ["x", "y", question.answer])
    assert opening.messages == [{"role": "user", "content": question.prompt}]
    said = [(reply.observation, reply.reward) for reply in replies]
    assert said == [("not x\nagain", 0), ("not y\nagain", 0), ("", 1)]
    assert replies[-1].components == {"right": 1.0, "num_turns": 3.0}
    _, replies = play(runner, question, "abcdef", seed=1)
    assert len(replies) == 4 and replies[-1].reward == 0.0


def test_tools_are_declared_called_and_answered(spec):
    task = spec("tools").build(0)
    call = '<tool_call>{"name": "NAME", "arguments": {"number": 7}}</tool_call>'
    question = task.question(0)
    turns = [call.replace("NAME", name) for name in ("double", "halve")] + [question.answer]
    opening, replies = play(InProcessEnvironments(task), question, turns)
    parameters = opening.tools[0]["function"]["parameters"]
    assert parameters["properties"]["number"]["type"] == "integer"
    assert replies[0].observation == "14" and replies[0].called
    assert "halve" in replies[1].observation
    assert replies[2].done and replies[2].components["double_calls"] == 1.0


@pytest.mark.parametrize(
    ("name", "turns", "kind", "word"),
    [
        ("multi", ["fail"], "error", "InfraError"),
        ("forgetful", ["x"], "invalid", "conversation"),
    ],
)
def test_what_cannot_be_a_trajectory_is_a_failure(spec, name, turns, kind, word):
    task = spec(name).build(0)
    _, replies = play(InProcessEnvironments(task), task.question(0), turns)
    assert replies[-1].kind == kind and word in replies[-1].reason


def test_environments_that_cannot_be_used_are_refused(spec):
    for name in ("of_groups", "nothing"):
        with pytest.raises(UsageError, match="env"):
            spec(name).build(0)
    with pytest.raises(UsageError, match="env"):
        tasks.build("verifiers", env="none")


def test_an_installed_environment_is_found_by_its_name(tmp_path, monkeypatch):
    (tmp_path / "small_world.py").write_text(SUMS)
    monkeypatch.syspath_prepend(tmp_path)
    task = tasks.build("verifiers", env="someone/small-world", arguments={"first": 16})
    assert task.version.startswith("small-world ?, verifiers ")
    # What is in both data sets is not trained on.
    trained = {int(task.question(position).answer) for position in range(60)}
    assert trained == set(range(0, 32, 2)) and len(task.evaluation(30)) == 9


def test_the_environment_of_the_page_judges(tmp_path):
    (tmp_path / "sums.py").write_text(program("verifiers"))
    env = f"{tmp_path / 'sums.py'}:load_environment"
    task = tasks.build("verifiers", env=env, arguments={"count": 50})
    question = task.question(0)
    assert asyncio.run(task.verify(question, question.answer)).components["right"] == 1.0
