"""The positions that each step trains on, as a pure function of (regime, groups per step, seed,
step): nothing is stored, so nothing can be lost on resume.

Each position of the prompt stream is sampled once, by the version that the regime names for its
batch. Batch 0 has the first `prompts_per_step` positions, every later batch the next ones, fewer by
the number that its steps replay.
"""

from __future__ import annotations

import dataclasses
from bisect import bisect_right

import numpy as np
from jaxtyping import Int

from grre_jax import random_streams
from grre_jax.domains import ConfigError
from grre_jax.random_streams import Purpose
from grre_jax.training.data.regime import Regime


@dataclasses.dataclass(frozen=True)
class Plan:
    """The positions that one step trains on of the run's own samples.

    Attributes:
        step: the training step.
        batch: number of its fresh batch.
        version: the policy version that sampled the fresh batch.
        fresh: positions of the fresh batch.
        replayed: positions of earlier batches, ascending.
        samples: (position, policy version) of every group, the fresh ones first.
    """

    step: int
    batch: int
    version: int
    fresh: range
    replayed: tuple[int, ...]
    samples: tuple[tuple[int, int], ...]

    @property
    def ages(self) -> Int[np.ndarray, " groups"]:
        """[groups] Age of each group's policy in updates, in the order of `samples`."""
        return self.step - np.array([version for _, version in self.samples], int)


@dataclasses.dataclass(frozen=True)
class Schedule:
    """The plan of every step: `schedule(step)`.

    Args:
        regime: the versions that sample, and what is reused and replayed.
        prompts_per_step: groups of the run's own samples that a step trains on.
        seed: the run's; replay is drawn under it.
        max_staleness: largest age in updates of replayed groups when they are trained on; a step
            has fewer groups if too few are young enough; -1 for any age.

    Raises:
        ConfigError: the regime cannot be kept with `prompts_per_step`.

    Examples:
        A fourth of the groups of each step are of earlier batches:

        >>> from grre_jax import config as c
        >>> regime = c.Regime(sync_interval=2, replay_ratio=0.25)
        >>> plan = c.Schedule(regime, prompts_per_step=4)(step=3)
        >>> plan.version, list(plan.fresh), len(plan.replayed)
        (2, [10, 11, 12], 1)
    """

    regime: Regime
    prompts_per_step: int
    seed: int = 0
    max_staleness: int = -1

    def __post_init__(self):
        regime, groups, replayed = self.regime, self.prompts_per_step, self.replayed_per_step
        if replayed >= groups:
            domain = f"less, for a fresh group among {groups} a step"
            raise ConfigError("regime.replay_ratio", domain, regime.replay_ratio)
        if regime.replay_window and regime.replay_window * self.fresh_per_batch < replayed:
            domain = f"batches of at least the {replayed} groups that a step replays"
            raise ConfigError("regime.replay_window", domain, regime.replay_window)

    @property
    def replayed_per_step(self) -> int:
        """Number of replayed groups per step, once there are groups to replay."""
        return round(self.regime.replay_ratio * self.prompts_per_step)

    @property
    def fresh_per_batch(self) -> int:
        """Number of positions of every batch but the first."""
        return self.prompts_per_step - self.replayed_per_step

    def positions(self, batch: int) -> range:
        """Returns the positions of a batch."""
        if batch == 0:
            return range(self.prompts_per_step)
        start = self.prompts_per_step + (batch - 1) * self.fresh_per_batch
        return range(start, start + self.fresh_per_batch)

    def batch_of(self, position: int) -> int:
        """Returns the batch that a position belongs to."""
        return max(0, 1 + (position - self.prompts_per_step) // self.fresh_per_batch)

    def sampled(self, version: int, steps: int, since: int = 0) -> list[int]:
        """Returns the positions that policy version `version` samples for the steps from `since`
        to before `steps`.
        """
        batches, reuse = self.regime.batches(version, steps), self.regime.reuse
        needed = (first // reuse for first in batches if min(first + reuse, steps) > since)
        return [position for batch in needed for position in self.positions(batch)]

    def __call__(self, step: int) -> Plan:
        """Returns the plan of a step, from 0."""
        batch = self.regime.batch(step)
        fresh = self.positions(batch)
        replayed = self._replayed(step, batch)
        samples = tuple((p, self._version(self.batch_of(p))) for p in (*fresh, *replayed))
        return Plan(step, batch, self._version(batch), fresh, replayed, samples)

    def _replayed(self, step: int, batch: int) -> tuple[int, ...]:
        count, window = self.replayed_per_step, self.regime.replay_window
        if not count or not batch:
            return ()
        oldest = max(batch - window, 0) if window else 0
        if self.max_staleness >= 0:
            # Versions of batches never decrease, so the young enough ones are the last.
            too_old = step - self.max_staleness - 1
            young = bisect_right(range(batch), too_old, key=self._version)
            oldest = max(oldest, young)
        pool = range(self.positions(oldest).start, self.positions(batch).start)
        key = random_streams.purpose_key(self.seed, Purpose.REPLAY)
        drawn = _without_replacement(key, step, len(pool), count)
        return tuple(sorted(pool[i] for i in drawn))

    def _version(self, batch: int) -> int:
        return self.regime.version(batch * self.regime.reuse)


def _without_replacement(key: random_streams.Key, step: int, size: int, count: int) -> set[int]:
    """Draws `count` of the numbers below `size` (all, if there are fewer), every subset equally
    likely (Floyd's algorithm: Bentley, Floyd, "A sample of brilliance", 1987).
    """
    count = min(count, size)
    high, low = random_streams.fold_in(
        random_streams.fold_in(key, random_streams.address(step)), np.arange(count, dtype=np.uint32)
    )
    bits = (high.astype(np.uint64) << np.uint64(32)) | low
    chosen: set[int] = set()
    for draw, last in zip(bits.tolist(), range(size - count, size), strict=True):
        number = draw % (last + 1)
        chosen.add(last if number in chosen else number)
    return chosen
