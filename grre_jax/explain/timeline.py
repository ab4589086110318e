"""The data of a run's steps, by the policy version that sampled it and by age."""

from __future__ import annotations

import collections
import itertools
from typing import Any

from grre_jax.training.data.schedule import Schedule


def stretches(schedule: Schedule, steps: int) -> list[dict[str, Any]]:
    """Groups the steps 0 to `steps` - 1 by the version that sampled their fresh data, in order.

    Returns:
        Of each version: "version"; the first and last of its "steps" and of their fresh "batches";
        the least and largest of the "ages" of fresh groups, in updates, and of the number of
        "replayed" groups a step.
    """
    rows = []
    for version, group in itertools.groupby(range(steps), schedule.regime.version):
        plans = [schedule(step) for step in group]
        first = plans[0]
        last = plans[-1]
        replayed = [len(plan.replayed) for plan in plans]
        row = {
            "version": version,
            "steps": (first.step, last.step),
            "batches": (first.batch, last.batch),
            "ages": (first.step - version, last.step - version),
            "replayed": (min(replayed), max(replayed)),
        }
        rows.append(row)
    return rows


def ages(schedule: Schedule, steps: int) -> dict[int, int]:
    """Counts the groups of a run by their age, in updates, when they are trained on."""
    counts: collections.Counter[int] = collections.Counter()
    for step in range(steps):
        counts.update(schedule(step).ages.tolist())
    return dict(sorted(counts.items()))
