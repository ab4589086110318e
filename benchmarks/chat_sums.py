"""Sums in words for `time_to_accuracy.py`, judged by the peers' own reward function: the last
number of a completion is the answer.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from peer_rl import last_number_is

from grre_jax.tasks import Question, Verdict
from grre_jax.tasks.task import load_function

EXAMPLES = Path(__file__).parents[1] / "examples"
ChatArithmetic = load_function(f"{EXAMPLES / 'chat_arithmetic.py'}:ChatArithmetic")


class Sums(ChatArithmetic):
    """The task; see the module's text."""

    def verify(self, question: Question, completion: str) -> Verdict:
        """Reward 1 if the last number is the answer, else 0."""
        right = last_number_is(completion, question.answer)
        return Verdict(float(right), correct=right)


def task(seed: int = 0, **options: Any) -> Sums:
    """The task; arguments as of `ChatArithmetic`."""
    return Sums(seed=seed, **options)
