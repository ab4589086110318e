"""`grre explain`: prints what a run will train on, from its configuration alone."""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from grre_jax.console import make_console, make_table
from grre_jax.objectives import RATIO, Objective, Part
from grre_jax.objectives.parts import ratios
from grre_jax.training.build import build_objective
from grre_jax.training.config.run import Config
from grre_jax.training.data.plan import Plan
from grre_jax.training.preflight import data_line, left_out, stored_data

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


def _phrase(part: Part) -> str:
    """Returns the description of a part without its capital and its period."""
    return part.description[0].lower() + part.description[1:].removesuffix(".")


# The source of what an objective requires; {} is the place of the records.
_SOURCES = {
    "old_logprobs": "log-probs q of the policy that sampled, from the groups' records{}",
    "prox_logprobs": "log-probs p of the policy at the start of the update: the step's own",
    "ref_logprobs": "log-probs f of the policy that the run starts from: one more forward pass",
    "rewards": "each group's record",
    "staleness": "the step less the version in each group's record",
    "expert": "the records' is_expert, and the folders that data.mix marks",
    "turns": "turns and their rewards, from each group's record; else one turn a completion",
}
_OWN = "not known of a loss of one's own"


def objective_report(
    config: Config, objective: Objective, first_stale: int | None
) -> dict[str, str]:
    """Reports what the objective sees.

    Args:
        config: the run.
        objective: the loss.
        first_stale: the first step that trains on a group of another policy than the learner's;
            None if every step is on-policy.

    Returns:
        The sources of the data it requires, its ratio, its clipping, and omitted settings; empty
        for none.
    """
    sources = (f"{name}: {_source(name, config)}" for name in sorted(objective.requires))
    return {
        "sources": "\n".join(sources),
        "ratio": _ratio(config, objective),
        "clipping": _clipping(config, objective, first_stale),
        "left out": "\n".join(left_out(config, objective)),
    }


def _ratio(config: Config, objective: Objective) -> str:
    """Of a user's own loss, that of its correction."""
    autodiff = objective.term.differentiated
    if not (objective.correction if autodiff else objective.takes_ratio):
        return _OWN if autodiff else ""
    ratio = (
        f"of {_phrase(objective.level)}, to {_phrase(objective.ratio_reference)}, both at"
        f" temperature {config.sampling.temperature:g} over the full vocabulary"
    )
    return f"its correction's: {ratio}" if autodiff else ratio


def _source(name: str, config: Config) -> str:
    if name in config.objective.stored_fields:
        return f"stored in the records of {config.data.path}"
    place = "" if config.samples else f" of {config.data.path or config.data.mix}"
    return _SOURCES.get(name, "the batch").format(place)


def _clipping(config: Config, objective: Objective, first_stale: int | None) -> str:
    if objective.term.differentiated:
        return _OWN
    bounds = [part for part in (objective.mask, objective.weight) if RATIO in part.data]
    if not (bounds or RATIO in objective.term.data):
        return ""
    what = "; ".join(map(_phrase, bounds)) or "the loss depends on the ratio"
    proximal = objective.ratio_reference == ratios.proximal
    # A ratio to the group's expectation is another number than 1 on-policy too.
    group = objective.level == ratios.group_expectation
    if proximal and "proximal" not in config.objective.stored and not group:
        when = "never acts: a step is one update, so p is the policy itself and the ratio is 1"
    elif group or stored_data(config) or first_stale == 0:
        when = "can act from the first step on"
    elif first_stale is None:
        when = "cannot act: all data is on-policy, and the ratio is 1 up to rounding"
    else:
        when = f"can act from step {first_stale} on; before, the ratio is 1 up to rounding"
    return f"{what}. It {when}."
