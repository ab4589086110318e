"""The steps of a run in few rows: stretches of steps with one sampling version, or with a
version that moves along, and repetitions of them.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterator

import numpy as np
from jaxtyping import Int

from grre_jax.training.data.schedule import Schedule

HEAD, TAIL = 8, 2  # rows shown at the beginning and the end of a long run without a simple pattern
MOST_BINS = 12


@dataclasses.dataclass(frozen=True)
class Stretch:
    """Consecutive steps whose data one version sampled, or each its own at one distance.

    Attributes:
        first, last: steps.
        version: that sampled the fresh batch of `first`.
        moving: the version grows by one with each step; else it is one for all.
        batches: first and last fresh batch.
        places: first and last fresh place.
        ages: least and largest age of the fresh groups, in updates.
        replayed: least and largest number of replayed groups a step.
        repeats: how many stretches like this one follow each other, this one the first of them.
        period: steps, and versions, from one of them to the next.
    """

    first: int
    last: int
    version: int
    moving: bool
    batches: tuple[int, int]
    places: tuple[int, int]
    ages: tuple[int, int]
    replayed: tuple[int, int]
    repeats: int = 1
    period: int = 0

    @property
    def shape(self) -> tuple[int, bool, tuple[int, int], tuple[int, int]]:
        """The properties that repeated stretches share."""
        return self.last - self.first, self.moving, self.ages, self.replayed


def stretches(schedule: Schedule, steps: int) -> list[Stretch]:
    """Groups the steps 0 to `steps` - 1 into stretches, in order."""
    versions = [schedule.regime.version(step) for step in range(steps)]
    held, moved = (_ends(np.array(versions) - distance) for distance in (0, np.arange(steps)))
    found, first = [], 0
    while first < steps:
        last, moving = max(int(held[first]), int(moved[first])), bool(moved[first] > held[first])
        # An age limit may leave any step with fewer.
        looked_at = range(first, last + 1) if schedule.max_staleness >= 0 else {first, last}
        replayed = _span([len(schedule(step).replayed) for step in looked_at])
        ages = _span([step - versions[step] for step in (first, last)])
        batches = schedule.regime.batch(first), schedule.regime.batch(last)
        places = schedule.positions(batches[0])[0], schedule.positions(batches[1])[-1]
        spans = batches, places, ages, replayed
        found.append(Stretch(first, last, versions[first], moving, *spans))
        first = last + 1
    return found


def repeated(rows: list[Stretch]) -> list[Stretch]:
    """Merges runs of three and more rows that repeat each other into one."""
    merged: list[Stretch] = []
    while rows:
        row = rows[0]
        # Of one length and equally old, one after the other: their versions are as far apart as
        # their steps.
        alike = next((i for i, other in enumerate(rows) if other.shape != row.shape), len(rows))
        period = row.last + 1 - row.first
        merged += (
            [dataclasses.replace(row, repeats=alike, period=period)] if alike >= 3 else rows[:alike]
        )
        rows = rows[alike:]
    return merged


def ages(schedule: Schedule, steps: int) -> dict[str, collections.Counter[int]]:
    """Counts the groups of a run by their age, in updates, when they are trained on.

    Returns:
        {"fresh": counts by age, "replayed": counts by age}.
    """
    fresh: collections.Counter[int] = collections.Counter()
    replayed: collections.Counter[int] = collections.Counter()
    for step in range(steps):
        plan = schedule(step)
        fresh[step - plan.version] += len(plan.fresh)
        replayed.update(step - version for version in plan.replayed_versions)
    return {"fresh": fresh, "replayed": replayed}


def bins(
    counts: dict[str, collections.Counter[int]],
) -> Iterator[tuple[int, int, dict[str, int]]]:
    """Splits all ages into at most MOST_BINS intervals of equal width: (least age, largest age,
    groups of each kind) of those that are not empty.
    """
    every = sorted(set().union(*counts.values()))
    if not every:
        return
    width = -(-(every[-1] + 1) // MOST_BINS)
    for low in range(0, every[-1] + 1, width):
        held = {
            kind: sum(n for age, n in of.items() if low <= age < low + width)
            for kind, of in counts.items()
        }
        if any(held.values()):
            yield low, min(low + width - 1, every[-1]), held


def _ends(values: Int[np.ndarray, " steps"]) -> Int[np.ndarray, " steps"]:
    """Finds, for each index of an array, the last index up to which its value stays the same."""
    last = np.append(np.flatnonzero(np.diff(values)), len(values) - 1)
    return last[np.searchsorted(last, np.arange(len(values)))]


def _span(values: list[int]) -> tuple[int, int]:
    return min(values), max(values)
