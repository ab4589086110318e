"""Trajectories with given turns, and the programs of docs/environments.md."""

import re
from pathlib import Path

from grre_jax.tasks.environments.environment import Trace
from grre_jax.tasks.judging import Failure

PAGE = (Path(__file__).parents[3] / "docs" / "environments.md").read_text()


def program(heading):
    """Returns the first Python program below a heading of the page."""
    section = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return re.search(r"```python\n(.*?)```", section, re.DOTALL)[1]


def play(runner, question, turns, seed=7):
    """Returns the opening and the answers to turns, up to the last of the trajectory."""
    opening = runner.open(question, seed)
    trace = Trace((seed, 0, 0), question, seed)
    before = []
    replies = []
    for turn in turns:
        replies.append(runner.step(trace, before, turn).result())
        if isinstance(replies[-1], Failure) or replies[-1].done:
            break
        before.append((turn, replies[-1].observation))
    else:
        runner.end(trace)
    return opening, replies
