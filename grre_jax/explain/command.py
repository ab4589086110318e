"""`grre explain`: prints what a configuration will do."""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from grre_jax.console import make_console, make_table
from grre_jax.explain.objective_report import objective_report
from grre_jax.training.build import build_objective
from grre_jax.training.config.run import Config
from grre_jax.training.data.plan import Plan
from grre_jax.training.preflight import data_line

HEAD, TAIL = 8, 2  # rows shown of the first and of the last versions of a long run


def run(config: Config) -> None:
    """Prints the explanation of a configuration.

    Raises:
        UsageError: an objective that cannot be used with the run's data.
    """
    console = make_console()
    for part in parts(config):
        console.print(part, markup=False, highlight=False)


def parts(config: Config) -> Iterator[Any]:
    """Yields the explanation of a configuration as lines and tables."""
    objective = build_objective(config)
    steps = config.training.steps
    groups = config.training.prompts_per_step
    plans: list[Plan] = []
    fresh = replayed = 0
    if config.samples:
        schedule = config.schedule
        plans = [schedule(step) for step in range(steps)]
        fresh = schedule.fresh_per_batch
        replayed = schedule.replayed_per_step
    stored = groups - fresh - replayed
    yield f"{config.name}: {steps} steps, {data_line(config)}"
    yield (
        f"A step is {groups} groups of {config.sampling.group_size} completions: {fresh} fresh,"
        f" {replayed} replayed, {stored} stored."
    )
    if plans:
        rows = versions(plans)
        yield f"{len(rows)} of {steps} policy versions sample."
        if len(rows) > HEAD + TAIL + 1:
            rows[HEAD:-TAIL] = [(f"... {len(rows) - HEAD - TAIL} more",)]
        columns = ("version", "steps", "fresh batches", "updates old")
        yield make_table(columns, rows, "What each version samples")
        ages = np.concatenate([plan.ages for plan in plans])
        yield f"Sampled groups are {ages.mean():.2f} updates old on average, {ages.max()} at most."
    if stored:
        yield "The age of stored groups is not known."
    first_stale = next((plan.step for plan in plans if (plan.ages > 0).any()), None)
    report = objective_report(config, objective, first_stale)
    cells = [(name, text or "none") for name, text in report.items()]
    yield make_table((), cells, f"What {objective.name} sees")


def versions(plans: Sequence[Plan]) -> list[tuple[str, ...]]:
    """Returns version, steps, batches and ages in updates of the fresh data that each samples."""
    rows = []
    for version, group in itertools.groupby(plans, lambda plan: plan.version):
        part = list(group)
        first = part[0]
        last = part[-1]
        row = (
            str(version),
            _span(first.step, last.step),
            _span(first.batch, last.batch),
            _span(first.step - version, last.step - version),
        )
        rows.append(row)
    return rows


def _span(low: int, high: int) -> str:
    return str(low) if low == high else f"{low} to {high}"
