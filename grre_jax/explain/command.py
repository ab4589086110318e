"""`grre explain`: prints what a configuration will do."""

import collections
import itertools
import json
from collections.abc import Iterator, Sequence
from typing import Any

from grre_jax.console import make_console, make_table
from grre_jax.errors import UsageError
from grre_jax.explain.objective_report import objective_report
from grre_jax.training.config.run import Config
from grre_jax.training.data.plan import Plan

BAR = 20  # characters of the longest bar
BINS = 12  # rows of the table of ages, at most
HEAD, TAIL = 8, 2  # rows shown of the first and of the last versions of a long run


def run(config: Config, *, steps: int | None = None, as_json: bool = False) -> None:
    """Prints the explanation of a configuration.

    Args:
        config: the run.
        steps: how many of the run's steps; all if None.
        as_json: print one JSON object.

    Raises:
        UsageError: steps below 1, or an objective that cannot be used with the run's data.
    """
    if steps is not None and steps < 1:
        raise UsageError(f"--steps: expected a number of at least 1, got {steps}")
    report = explanation(config, config.training.steps if steps is None else steps)
    if as_json:
        print(json.dumps(report, indent=2))
        return
    console = make_console()
    for part in _parts(report):
        console.print(part, markup=False, highlight=False)


def explanation(config: Config, steps: int) -> dict[str, Any]:
    """Explains a configuration, as what JSON can express.

    Args:
        config: the run.
        steps: how many of its steps.

    Returns:
        "run"; "step", its groups by their origin; "rows" of `stretches`; "placed" on the cluster;
        "ages", {age: groups}; "objective", of `objective_report`.
    """
    from grre_jax.training.build import build_objective
    from grre_jax.training.preflight import data_line

    objective = build_objective(config)
    step = {"groups": config.training.prompts_per_step, "completions": config.sampling.group_size}
    plans: list[Plan] = []
    first_stale = None
    if config.samples:
        schedule = config.schedule
        plans = [schedule(number) for number in range(steps)]
        # Of the whole run, also where its first steps alone are explained.
        run = itertools.chain(plans, map(schedule, range(steps, config.training.steps)))
        first_stale = next((plan.step for plan in run if (plan.ages > 0).any()), None)
        step |= {"fresh": schedule.fresh_per_batch, "replayed": schedule.replayed_per_step}
    step["stored"] = step["groups"] - step.get("fresh", 0) - step.get("replayed", 0)
    return {
        "run": {"name": config.name, "steps": steps, "data": data_line(config)},
        "step": step,
        "rows": stretches(plans),
        "placed": [
            {"kind": kind, "least": least, "most": most, "each": each}
            for kind, least, most, each in config.cluster.placed
        ],
        "ages": ages(plans),
        "objective": objective_report(config, objective, first_stale),
    }


def _parts(report: dict[str, Any]) -> Iterator[Any]:
    run = report["run"]
    step = report["step"]
    yield f"{run['name']}: {run['steps']} steps, {run['data']}"
    kinds = [f"{step[name]} {name}" for name in ("fresh", "replayed", "stored") if step.get(name)]
    size = f"{step['groups']} groups of {step['completions']} completions"
    yield f"A step is {size}: {', '.join(kinds)}."
    if rows := report["rows"]:
        columns = ("version", "steps", "fresh batches", "updates old", "replayed")
        yield make_table(columns, _stretches(rows), "What each version samples")
        yield f"{len(rows)} of {run['steps']} policy versions sample."
    if placed := report["placed"]:
        cells = [(row["kind"], _span(row["least"], row["most"]), _amounts(row)) for row in placed]
        yield make_table(("process", "number", "each"), cells, "What is placed on the cluster")
    ages = _ages(report["ages"], run["steps"] * step["stored"])
    yield make_table(("updates old", "groups", "share", ""), ages, "Staleness over the run")
    objective = report["objective"]
    numbers = [f"{name} {value:g}" for name, value in objective["hyperparameters"].items()]
    sources = [f"{name}: {source}" for name, source in objective["sources"].items()]
    cells = objective | {
        "hyperparameters": ", ".join(numbers),
        "sources": "\n".join(sources),
        "left out": "\n".join(objective["left out"]),
    }
    name = cells.pop("objective")
    yield make_table((), [(k, v or "none") for k, v in cells.items()], f"What {name} sees")


def _stretches(rows: list[dict[str, Any]]) -> list[tuple[str, ...]]:
    spans = ("steps", "batches", "ages", "replayed")
    cells = [(str(row["version"]), *(_span(*row[name]) for name in spans)) for row in rows]
    if len(cells) > HEAD + TAIL + 1:
        cells[HEAD:-TAIL] = [(f"... {len(cells) - HEAD - TAIL} more",)]
    return cells


def _ages(ages: dict[int, int], stored: int) -> list[tuple[str, ...]]:
    """Rows of intervals of equal width, without empty ones."""
    width = max(ages, default=0) // BINS + 1
    groups: dict[str, int] = {}
    for age, count in ages.items():
        low = age // width * width
        label = _span(low, min(low + width - 1, max(ages)))
        groups[label] = groups.get(label, 0) + count
    if stored:
        groups["unknown (stored)"] = stored
    most = max(groups.values(), default=0)
    total = sum(groups.values())
    return [
        (label, str(count), f"{count / total:.1%}", "█" * round(BAR * count / most))
        for label, count in groups.items()
    ]


def _amounts(row: dict[str, Any]) -> str:
    return ", ".join(f"{amount:g} {name}" for name, amount in row["each"].items() if amount)


def _span(low: int, high: int) -> str:
    return str(low) if low == high else f"{low} to {high}"


def stretches(plans: Sequence[Plan]) -> list[dict[str, Any]]:
    """Groups steps by the version that sampled their fresh data.

    Returns:
        Of each version: "version"; the first and last of its "steps" and of their fresh "batches";
        the least and largest of the "ages" of fresh groups, in updates, and of the number of
        "replayed" groups a step.
    """
    rows = []
    for version, group in itertools.groupby(plans, lambda plan: plan.version):
        part = list(group)
        first = part[0]
        last = part[-1]
        replayed = [len(plan.replayed) for plan in part]
        row = {
            "version": version,
            "steps": (first.step, last.step),
            "batches": (first.batch, last.batch),
            "ages": (first.step - version, last.step - version),
            "replayed": (min(replayed), max(replayed)),
        }
        rows.append(row)
    return rows


def ages(plans: Sequence[Plan]) -> dict[int, int]:
    """Counts the groups of steps by their age, in updates, when they are trained on."""
    counts: collections.Counter[int] = collections.Counter()
    for plan in plans:
        counts.update(plan.ages.tolist())
    return dict(sorted(counts.items()))
