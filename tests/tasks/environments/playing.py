"""Trajectories with given turns, and servers that are waited for."""

import time
import urllib.request

from grre_jax.tasks.environments.runner import Trace
from grre_jax.tasks.judging import Failure


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


def wait_for_server(url, process):
    """Waits until a process serves OpenEnv at an address."""
    last = time.monotonic() + 60
    while True:
        try:
            urllib.request.urlopen(f"{url}/health", timeout=1).close()
            return
        except OSError:
            assert time.monotonic() < last and process.poll() is None
            time.sleep(0.1)
