"""Rewards in the graph are those of the task."""

from functools import partial

import jax
import numpy as np
from hypothesis import given, settings, strategies as st

from grre_jax import tasks
from research.in_graph.batch import verdicts
from research.in_graph.precedence import Precedence

TASKS = [
    tasks.build("arithmetic", seed=4, answers="full"),
    Precedence(operands=5, answers="full"),
]
COLUMNS = 32


@partial(jax.jit, static_argnums=0)
def judged(task, prompts, tokens, lengths):
    return verdicts(task, prompts, tokens, lengths)


@st.composite
def completions(draw):
    """A demonstration, tokens near one, or any tokens at all, with any padding behind them."""
    position = draw(st.integers(0, 2**32 - 1))
    task = draw(st.sampled_from(TASKS))
    tokens = list(task.demonstrations_batch([position])[0])
    for _ in range(draw(st.integers(0, 2))):
        place = draw(st.integers(0, len(tokens)))
        tokens[place : place + 1] = draw(st.lists(st.integers(-1, 20), max_size=2))
    length = draw(st.integers(0, len(tokens)))
    padding = draw(st.sampled_from([16, 0, 5, -1]))
    return task, position, tokens + [padding] * (COLUMNS - len(tokens)), length


@settings(max_examples=200)
@given(completions())
def test_the_reward_in_the_graph_is_the_verdict(case):
    task, position, tokens, length = case
    prompts = task.questions_batch([position])
    rewards = judged(task, prompts, np.array([tokens], np.int32), np.array([length]))
    verdict = task.verify(task.question(position), task.tokenizer.decode(tokens[:length]))
    assert rewards.dtype == np.float32 and rewards.tolist() == [verdict.reward]
