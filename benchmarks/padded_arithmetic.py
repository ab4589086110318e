"""The embedded task with a padding token of its own.

Peers leave out of attention and loss whatever equals the padding token, which in the task's own
tokenizer is the end of a completion.
"""

from __future__ import annotations

from typing import Any

from grre_jax.tasks import CharTokenizer
from grre_jax.tasks.datasets.arithmetic import Arithmetic


def task(seed: int = 0, **options: Any) -> Arithmetic:
    """The task; arguments as of `Arithmetic`."""
    made = Arithmetic(seed=seed, **options)
    made.tokenizer = CharTokenizer(pad="_")
    return made
