"""Where a run's randomness comes from: one seed, folded with what the draw is for. No two purposes share a draw."""

from __future__ import annotations

import enum

import jax
from jaxtyping import Array


class Purpose(enum.IntEnum):
    """What a random draw is for. Values are part of what makes a run repeatable: never renumber them."""

    INIT = 0
    EXPLORE = 1
    EVALUATE = 2
    SHAPE = 3  # data shaping: which responses RED-Drop drops
    WARM_START = 4
    LORA = 5  # initial low-rank terms
    SAMPLE = 6  # a person's own prompts
    REPLAY = 7  # which groups of earlier batches a step trains on again
    MIX = 8  # the order in which stored groups are trained on beside the run's own


def run_key(seed: int, purpose: Purpose) -> Array:
    """The random key of a run for one purpose.

    Args:
        seed: from 0 to 2**63 - 1; every bit of it counts.
        purpose: what is drawn.
    """
    low, high = seed & 0xFFFFFFFF, seed >> 32  # jax takes the low half of a seed alone
    key = jax.random.key(low, impl="threefry2x32")  # whatever jax's own default is: draws of its other kinds depend on what else is drawn
    return jax.random.fold_in(jax.random.fold_in(key, high) if high else key, int(purpose))
