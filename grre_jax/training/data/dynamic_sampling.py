"""Dynamic sampling (DAPO, arXiv 2503.14476): a position whose group has no signal gets another
question, and what is to be sampled follows from the folder alone.

The prompt stream is divided into rounds of `POSITIONS_PER_ROUND` positions. Position p of the run
is in round 0; if the rewards of its group are all equal, the group of the same position in round 1
replaces it, then that of round 2, and so on. A refill is sampled by the version that sampled the
position, at an address of its own: nothing is drawn twice, and a killed run resumes from its
folder.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from grre_jax.errors import DataError
from grre_jax.rollouts import CorruptRecord, CorruptShard

# Tasks address 2**32 positions and the sampler's addresses are int32: 16 rounds of 134 million
# positions.
POSITIONS_PER_ROUND = 2**27
MAX_ROUNDS = 2**31 // POSITIONS_PER_ROUND - 1


def refill_position(position: int, round_: int) -> int:
    """Returns the position of a position's refill of a round; round 0 is the position itself."""
    return round_ * POSITIONS_PER_ROUND + position


def missing(
    source: Any, samples: Iterable[tuple[int, int]], rounds: int, *, skip_damaged: bool = False
) -> dict[int, list[int]]:
    """Finds what is still to be sampled before the positions can be trained on: at most one
    refill per position, so sample them and call this again.

    Args:
        source: the run's `sources.Source`, refreshed.
        samples: (position, policy version that samples it).
        rounds: largest number of refills of a position; 0 for no dynamic sampling.
        skip_damaged: a group that cannot be read ends its position, for an explorer, which cannot
            put it back: the learner does, if a step needs it.

    Returns:
        {policy version: positions, in the order of `samples`}; empty if nothing is missing.

    Raises:
        CorruptRecord, CorruptShard: a group cannot be read and `skip_damaged` is False.
    """
    wanted: dict[int, list[int]] = {}
    for position, version in samples:
        for round_ in range(rounds + 1):
            refill = refill_position(position, round_)
            index = source.reader.find(refill, version)
            if index is None:
                wanted.setdefault(version, []).append(refill)
            # Of the last round it is enough that it is sealed: it is not read.
            if index is None or round_ == rounds:
                break
            try:
                if source.has_reward_variance(index):
                    break
            except (CorruptRecord, CorruptShard):
                if not skip_damaged:
                    raise
                break
    return wanted


def chosen(source: Any, position: int, version: int, rounds: int) -> int | None:
    """Returns the number of the group that a position is trained with: the first with signal, or
    without dynamic sampling the only one; None if no round has signal and the position is left out.

    Args:
        source: the run's `sources.Source`.
        position: in the prompt stream.
        version: the policy version that samples it.
        rounds: largest number of refills; 0 for no dynamic sampling.

    Raises:
        DataError: a group up to that one has not been sampled.
    """
    for round_ in range(rounds + 1):
        refill = refill_position(position, round_)
        index = source.reader.find(refill, version)
        if index is None:
            raise DataError(
                f"rollout folder {source.reader.folder} holds no group of policy version {version}"
                f" at position {refill}, which this run trains on"
            )
        if not rounds or source.has_reward_variance(index):
            return index
    return None
