"""Groups of random tokens."""

import numpy as np
import pytest


@pytest.fixture(scope="session")
def make_group():
    """`make_group(number, prompt=.., lengths=..)`: a group of random tokens of a vocabulary of 16."""
    from grre_jax.rollouts import Group

    def make(number, prompt=3, lengths=(2, 4, 1), **fields):
        draw = np.random.default_rng(number)
        total = sum(lengths)
        values = dict(
            group_id=f"g{number}",
            prompt="?",
            texts=[""] * len(lengths),
            rewards=draw.integers(0, 2, len(lengths)),
            prompt_tokens=draw.integers(0, 16, prompt),
            lengths=lengths,
            tokens=draw.integers(0, 16, total),
            behavior_logprobs=-draw.exponential(size=total),
        )
        return Group(**values | fields)

    return make
