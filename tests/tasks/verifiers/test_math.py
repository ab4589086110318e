"""Mathematics by math-verify; its cases are in cases.tsv."""

import threading

import pytest

from grre_jax.tasks import Question, build
from grre_jax.tasks.rewards import with_rewards
from grre_jax.tasks.verifiers import math


def test_a_thread_beside_the_main_one_judges_too():
    """Alarms, math-verify's own time limits, would raise there."""
    pytest.importorskip("math_verify")
    task = with_rewards(build("gsm8k"), ["grre_jax.tasks.verifiers.math:verify_math"])
    verdicts = []
    question = Question("q", "Halve 1.", "\\frac12")
    thread = threading.Thread(target=lambda: verdicts.append(task.verify(question, "\\boxed{0.5}")))
    thread.start()
    thread.join()
    assert verdicts[0].reward == 1


@pytest.mark.parametrize("text", ["\\boxed{", "$1", "\\[", "the answer is $", "{"])
def test_where_the_answer_is_takes_time_in_proportion(text):
    math.final_expression(text * 1_000_000)
