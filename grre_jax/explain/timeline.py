"""The data of a run's steps, by the policy version that sampled it and by age."""

from __future__ import annotations

import collections
import dataclasses
import itertools

from grre_jax.training.data.schedule import Schedule

MOST_BINS = 12


@dataclasses.dataclass(frozen=True)
class Stretch:
    """Consecutive steps whose fresh data one version sampled.

    Attributes:
        version: that sampled.
        steps: first and last.
        batches: first and last fresh batch.
        places: first and last fresh place.
        ages: least and largest age of the fresh groups, in updates.
        replayed: least and largest number of replayed groups a step.
    """

    version: int
    steps: tuple[int, int]
    batches: tuple[int, int]
    places: tuple[int, int]
    ages: tuple[int, int]
    replayed: tuple[int, int]


def stretches(schedule: Schedule, steps: int) -> list[Stretch]:
    """Groups the steps 0 to `steps` - 1 into stretches, in order."""
    rows = []
    for version, group in itertools.groupby(range(steps), schedule.regime.version):
        plans = [schedule(step) for step in group]
        first = plans[0]
        last = plans[-1]
        replayed = [len(plan.replayed) for plan in plans]
        row = Stretch(
            version=version,
            steps=(first.step, last.step),
            batches=(first.batch, last.batch),
            places=(first.fresh[0], last.fresh[-1]),
            ages=(first.step - version, last.step - version),
            replayed=(min(replayed), max(replayed)),
        )
        rows.append(row)
    return rows


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


def bins(counts: dict[str, dict[int, int]]) -> list[tuple[int, int, int, int]]:
    """Returns (least age, largest age, fresh groups, replayed groups) of at most MOST_BINS
    intervals of equal width, without empty ones.
    """
    oldest = max([*counts["fresh"], *counts["replayed"]], default=0)
    width = -(-(oldest + 1) // MOST_BINS)
    sums: dict[int, list[int]] = {}
    for column, kind in enumerate(("fresh", "replayed")):
        for age, groups in counts[kind].items():
            sums.setdefault(age // width, [0, 0])[column] += groups
    return [
        (i * width, min(i * width + width - 1, oldest), *groups)
        for i, groups in sorted(sums.items())
    ]
