"""Reward functions in place of a verifier."""

import asyncio

import numpy as np
import pytest

from grre_jax import tasks
from grre_jax.errors import UsageError
from grre_jax.tasks import Question, rewards
from grre_jax.tasks.config import TaskConfig
from grre_jax.tasks.judging import InProcess
from grre_jax.tasks.pool import make_judge

from ..conftest import CALCULATOR

QUESTION = Question("q", "2+3", "5")
NAN = pytest.approx(np.nan, nan_ok=True)
FUNCTIONS = """
import asyncio
def score(question, completion): return float(question.answer in completion)
def short(question, completion): return None if "skip" in completion else 1 / len(completion)
async def later(question, completion):
    await asyncio.sleep(0)
    return {"correct": question.answer in completion, "style": 0.25, "unit": None}
def nothing(question, completion): return None
def unsure(question, completion): return {"reward": None, "length": 200.0}
def wrong(question, completion): return "yes"
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "my.py"
    path.write_text(FUNCTIONS)
    return path


def judged(task, texts):
    (found,) = InProcess(task)([(QUESTION, texts)])
    return found


def rewarded(*named):
    return rewards.with_rewards(tasks.build("arithmetic"), named)


def components(found):
    return {name: row.tolist() for name, row in found.components.items()}


def test_a_dictionary_holds_components_and_may_be_awaited(file):
    found = judged(rewarded(f"{file}:later"), ["5", "6"])
    assert found.rewards.tolist() == [0.25, 0.25]
    expected = {"correct": [1, 0], "style": [0.25] * 2, "unit": [NAN] * 2}
    assert components(found) == expected


def test_awaited_functions_judge_side_by_side_within_the_limit():
    running = []

    async def waits(question, completion):
        running.append(completion)
        while len(running) < 4:
            await asyncio.sleep(0)
        if completion == "bad":
            raise OSError("refused")
        if completion == "never":
            await asyncio.sleep(1000)
        return 1

    task = rewarded(rewards.register(waits))
    (found,) = InProcess(task, timeout=1.0)([(QUESTION, ["never", "bad", "a", "b"])])
    assert found.failures == ["timeout", "error", "", ""]


def test_several_are_summed_by_weight_over_those_that_apply(file):
    found = judged(rewarded(f"{file}:score", f"{file}:short=0.5"), ["5", "skip 5", "none"])
    assert found.rewards.tolist() == [1.5, 1, 0.125] and found.failures == [""] * 3
    assert components(found) == {"score": [1, 1, 0], "short": [1, NAN, 0.25]}


@pytest.mark.parametrize(
    ("name", "kind"), [("nothing", "none"), ("unsure", "none"), ("wrong", "invalid")]
)
def test_none_is_no_verdict_and_text_is_invalid(file, name, kind):
    assert judged(rewarded(f"{file}:{name}"), ["5"]).failures == [kind]


def test_the_processes_of_a_pool_find_the_functions_of_a_file(file):
    config = TaskConfig(
        "arithmetic", {"operands": 2}, reward=(f"{file}:score",), verify_processes=1
    )
    judge = make_judge(config.build(0), config, 0)
    (found,) = judge([(QUESTION, ["5", "6"])])
    judge.close()
    assert found.rewards.tolist() == [1, 0]


@pytest.mark.parametrize(
    "named", ["{file}:absent", "{file}:score=nan", "{file}:score {file}:score=2", "function:gone"]
)
def test_what_is_not_a_reward_function_is_refused(file, named):
    with pytest.raises(UsageError):
        rewarded(*named.format(file=file).split())
    with pytest.raises(UsageError):  # which gives its own rewards
        rewards.with_rewards(tasks.build(CALCULATOR), [f"{file}:score"])
