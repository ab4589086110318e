"""Environments of the package verifiers: of one turn, of several, with tools, and its own."""

import pytest

from grre_jax import tasks
from grre_jax.errors import UsageError
from grre_jax.tasks.environments import is_environment
from grre_jax.tasks.environments.runner import InProcessEnvironments
from grre_jax.tasks.pool import TaskSpec, make_judge

from .playing import play

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
'''


@pytest.fixture(scope="module")
def spec(tmp_path_factory):
    path = tmp_path_factory.mktemp("verifiers") / "sums.py"
    path.write_text(SUMS)
    return lambda name, **options: TaskSpec("verifiers", 0, {"env": f"{path}:{name}", **options})


def test_one_turn_is_judged_by_the_rubric(spec):
    task = spec("single").build()
    assert not is_environment(task)
    question = task.question(0)
    assert [message["role"] for message in question.messages] == ["system", "user"]
    number = int(question.answer) // 2
    assert question.messages[1]["content"] == f"{number}+{number}?"
    asked = [(question, [question.answer, "12345", "1"])]
    for processes in (0, 1):
        judge = make_judge(task, spec("single"), processes=processes)
        for _ in range(2):
            (verdicts,) = judge(asked)
            assert verdicts.rewards.tolist() == [1.5, 0.0, 0.5] and not any(verdicts.failures)
            rows = {name: row.tolist() for name, row in verdicts.components.items()}
            assert (rows["right"], rows["short"]) == ([1, 0, 0], [1, 0, 1])
            assert rows["loop_count"] == [1] * 3
        judge.close()


def test_the_data_sets_are_the_questions(spec):
    task = spec("single").build()
    trained = {task.question(position).question_id for position in range(60)}
    held_out = task.evaluation(100)
    assert len(trained) == 20 and {int(q.answer) for q in held_out} == {40, 42, 44, 46, 48}
    assert not trained & {question.question_id for question in held_out}
    # Without a data set to evaluate on a tenth is held out.
    alone = spec("multi").build()
    held_out = {question.question_id for question in alone.evaluation(100)}
    trained = {alone.question(position).question_id for position in range(60)}
    assert (len(trained), len(held_out)) == (18, 2) and not trained & held_out


def test_several_turns_are_played_by_the_package_s_loop(spec):
    task = spec("multi").build()
    assert is_environment(task)
    runner = InProcessEnvironments(task)
    question = task.question(0)
    opening, replies = play(runner, question, ["x", "y", question.answer])
    assert opening.messages == [{"role": "user", "content": question.prompt}]
    assert opening.tools is None and question.messages is None
    said = [(reply.observation, reply.reward) for reply in replies]
    assert said == [("not x\nagain", 0), ("not y\nagain", 0), ("", 1)]
    assert replies[-1].components == {"right": 1.0, "num_turns": 3.0}
    _, replies = play(runner, question, "abcdef", seed=1)
    assert len(replies) == 4 and replies[-1].done and replies[-1].reward == 0.0


def test_tools_are_declared_called_and_answered(spec):
    task = spec("tools").build()
    call = '<tool_call>{"name": "NAME", "arguments": {"number": 7}}</tool_call>'
    question = task.question(0)
    turns = [call.replace("NAME", name) for name in ("double", "halve")] + [question.answer]
    opening, replies = play(InProcessEnvironments(task), question, turns)
    function = opening.tools[0]["function"]
    assert function["name"] == "double"
    assert function["parameters"]["properties"]["number"]["type"] == "integer"
    assert replies[0].observation == "14" and replies[0].called and not replies[0].done
    assert "halve" in replies[1].observation
    assert replies[2].done and replies[2].reward == 1.0
    assert replies[2].components["double_calls"] == 1.0


@pytest.mark.parametrize(
    ("name", "turns", "kind", "word"),
    [
        ("multi", ["fail"], "error", "InfraError"),
        ("forgetful", ["x"], "invalid", "conversation"),
    ],
)
def test_what_cannot_be_a_trajectory_is_a_failure(spec, name, turns, kind, word):
    task = spec(name).build()
    _, replies = play(InProcessEnvironments(task), task.question(0), turns)
    assert replies[-1].kind == kind and word in replies[-1].reason


def test_environments_that_cannot_be_used_are_refused(spec):
    for refused in (
        *map(spec, ("of_groups", "nothing")),
        TaskSpec("verifiers", 0, {"env": "none"}),
    ):
        with pytest.raises(UsageError, match="env"):
            refused.build()


def test_an_installed_environment_is_found_by_its_name(tmp_path, monkeypatch):
    (tmp_path / "small_world.py").write_text(
        SUMS
        + "\n\ndef load_environment(first=15):\n"
        + "    rubric = vf.Rubric(funcs=[right])\n"
        + "    return vf.SingleTurnEnv("
        + "dataset=rows(0, 20), eval_dataset=rows(first, 25), rubric=rubric)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    task = tasks.build("verifiers", env="someone/small-world", arguments={"first": 16})
    assert task.version.startswith("small-world ?, verifiers ")
    # What is in both data sets is not trained on.
    trained = {int(task.question(position).answer) for position in range(60)}
    assert trained == set(range(0, 32, 2)) and len(task.evaluation(30)) == 9
