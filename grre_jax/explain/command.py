"""`grre explain`: prints what a configuration will do."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from typing import Any

from grre_jax.console import make_console, make_table
from grre_jax.errors import UsageError
from grre_jax.explain import timeline
from grre_jax.explain.objective_report import objective_report
from grre_jax.explain.run_warnings import run_warnings
from grre_jax.training.config.run import Config

BAR = 20  # characters of the longest bar
HEAD, TAIL = 8, 2  # rows shown of the first and of the last versions of a long run


def run(config: Config, *, steps: int | None = None, as_json: bool = False) -> None:
    """Explains a configuration.

    Args:
        config: the run.
        steps: how many of the run's steps; all if None.
        as_json: print one JSON object.

    Raises:
        UsageError: a configuration or a number of steps that cannot be used.
    """
    if steps is not None and steps < 1:
        raise UsageError(f"--steps takes a number of at least 1, got {steps}")
    report = explanation(config, config.training.steps if steps is None else steps)
    if as_json:
        print(json.dumps(report, indent=2))
        return
    console = make_console()
    for part in _parts(report):
        console.print(part, markup=False, highlight=False)
    for sentence in report["warnings"]:
        console.print(f"Note: {sentence}.", style="yellow", markup=False)


def explanation(config: Config, steps: int) -> dict[str, Any]:
    """Explains a configuration, as what JSON can express.

    Args:
        config: the run.
        steps: how many of its steps.

    Returns:
        "run"; "step", the composition of one; "rows", `timeline.Stretch`es; "sampling_versions";
        "calls" of the sampler on one device of unknown memory ("training", its different sizes,
        and "evaluation"); "version", the calls of one and the steps that they serve;
        "staleness", {"fresh" and "replayed": {age: groups}, "unknown": groups}; "objective", an
        `ObjectiveReport`; "warnings".

    Raises:
        UsageError: an objective that cannot be used with the run's data.
    """
    from grre_jax.planner.compile import call_summary
    from grre_jax.training.actors.calls import evaluation_calls, training_calls
    from grre_jax.training.build import build_objective

    objective = build_objective(config)
    rows, versions, first_stale = [], 0, None
    staleness: dict[str, Any] = {"fresh": {}, "replayed": {}}
    unknown = config.mixed_per_step if config.samples else config.training.prompts_per_step
    if config.samples:
        schedule = config.schedule
        rows = timeline.stretches(schedule, steps)
        for kind, counts in timeline.ages(schedule, steps).items():
            staleness[kind] = dict(sorted(counts.items()))
        versions = sum(bool(len(config.regime.batches(version, steps))) for version in range(steps))
        stale = () if config.regime.on_policy else range(steps)
        first_stale = next((step for step in stale if (schedule(step).ages > 0).any()), None)
    calls = {"training": training_calls(config), "evaluation": evaluation_calls(config)}
    return {
        "run": {
            "name": config.name,
            "steps": steps,
            "regime": config.regime.described if config.samples else None,
            "samples": config.samples,
            "sampler_devices": config.mesh.sampler.devices,
        },
        "step": _composition(config),
        "rows": [dataclasses.asdict(row) for row in rows],
        "sampling_versions": versions,
        "calls": {
            kind: [call_summary(call, call.shape(1, "float32")) for call in different]
            for kind, different in calls.items()
        },
        "version": _version_calls(config) if config.samples else None,
        "staleness": staleness | {"unknown": steps * unknown},
        "objective": dataclasses.asdict(objective_report(config, objective, first_stale)),
        "warnings": run_warnings(config, objective, first_stale),
    }


def _version_calls(config: Config) -> dict[str, int]:
    """Returns the calls of the policy version that samples for most steps after the first: prompts,
    calls, the steps that they serve, and the steps taken before the first that needs them.
    """
    from grre_jax.training.actors.calls import call_of

    regime = config.regime
    steps = config.training.steps
    counts = {version: len(regime.batches(version, steps)) for version in range(steps)}
    # Version 0 samples for more steps than the others where it samples ahead of the learner.
    later = {version: count for version, count in counts.items() if version and count}
    later = later or {0: counts[0]}
    version = max(later, key=lambda version: (later[version], -version))
    positions = len(config.schedule.sampled(version, steps))
    return {
        "positions": positions,
        "calls": -(-positions // call_of(config.sampling, positions).prompts),
        "steps": min(later[version] * regime.reuse, steps),
        "ahead": regime.sync_offset + regime.staleness,
    }


def _composition(config: Config) -> dict[str, Any]:
    groups, mixed = config.training.prompts_per_step, config.mixed_per_step
    made: dict[str, Any] = {
        "groups": groups,
        "completions_a_group": config.sampling.group_size,
        "mix": [dataclasses.asdict(entry) for entry in config.data.entries],
        "mixed": mixed,
    }
    if config.samples:
        made["fresh"] = config.schedule.fresh_per_batch
        made["replayed"] = config.schedule.replayed_per_step
        made |= {"replay_window": config.regime.replay_window, "reuse": config.regime.reuse}
    elif config.data.path:
        made["path"] = {"folder": config.data.path, "groups": groups - mixed}
    return made


def _parts(report: dict[str, Any]) -> Iterator[Any]:
    from grre_jax.planner.compile import described

    run = report["run"]
    regime = run["regime"] or "all data is stored already"
    yield f"{run['name']}: {run['steps']} steps, {regime}"
    yield _composed(report["step"])
    if report["rows"]:
        columns = ("version", "steps", "fresh batches", "fresh places", "updates old", "replayed")
        yield make_table(columns, _stretches(report["rows"]), "What each version samples")
        yield f"{report['sampling_versions']} of {run['steps']} policy versions sample."
    if version := report["version"]:
        who = f"{run['sampler_devices']} devices" if run["sampler_devices"] else "explorers"
        side = (
            f"{who} sample {version['ahead']} steps ahead, beside the learner"
            if version["ahead"]
            else "sampling and training take turns"
        )
        share = version["calls"] / version["steps"]
        yield (
            f"A version samples {version['positions']:,} prompts in {version['calls']} calls for"
            f" {version['steps']} steps, {share:.3g} calls a step; {side}."
        )
    for kind, calls in report["calls"].items():
        yield from (f"{kind.title()} samples in {described(call)}." for call in calls)
    if ages := _ages(report["staleness"]):
        titles = ("updates old", "groups", "of these replayed", "share", "")
        yield make_table(titles, ages, "Staleness over the run")
    objective = report["objective"]
    numbers = [f"{name} {value:g}" for name, value in objective["hyperparameters"].items()]
    sources = [f"{name}: {source}" for name, source in objective["sources"].items()]
    takes = ["rewards", *(line for line in sources if not line.startswith("rewards:"))]
    rows = [("formula", objective["formula"])]
    rows += [("hyperparameters", ", ".join(numbers))] if numbers else []
    rows += [("takes", "\n".join(takes)), ("ratio", objective["ratio"] or "none is taken")]
    rows += [("clipping", objective["clipping"] or "there is none")]
    rows += [("left out", "\n".join(objective["dropped"]) or "nothing")]
    yield make_table((), rows, f"What {objective['objective']} sees")


def _composed(step: dict[str, Any]) -> str:
    parts = []
    if "fresh" in step:
        reuse = f", each trained on in {step['reuse']} consecutive steps"
        parts.append(f"{step['fresh']} freshly sampled{reuse if step['reuse'] > 1 else ''}")
        if step["replayed"]:
            last = f"the last {step['replay_window']} batches"
            window = last if step["replay_window"] else "all earlier batches"
            parts.append(
                f"{step['replayed']} replayed from {window} (the first batch is all fresh)"
            )
    if "path" in step:
        parts.append(f"{step['path']['groups']} of {step['path']['folder']}")
    if step["mix"]:
        shares = ", ".join(
            f"{entry['share']:.0%} {entry['path']}{' (expert)' if entry['expert'] else ''}"
            for entry in step["mix"]
        )
        parts.append(f"{step['mixed']} mixed in ({shares})")
    return (
        f"A step is {step['groups']} groups of {step['completions_a_group']} completions:"
        f" {'; '.join(parts)}."
    )


def _stretches(rows: list[dict[str, Any]]) -> list[tuple[str, ...]]:
    spans = ("steps", "batches", "places", "ages", "replayed")
    cells = [(str(row["version"]), *(_span(*row[name]) for name in spans)) for row in rows]
    if len(cells) > HEAD + TAIL + 1:
        cells[HEAD:-TAIL] = [(f"... {len(cells) - HEAD - TAIL} more",)]
    return cells


def _ages(staleness: dict[str, Any]) -> list[tuple[str, ...]]:
    rows = [
        (_span(low, high), fresh + replayed, str(replayed or ""))
        for low, high, fresh, replayed in timeline.bins(staleness)
    ]
    if staleness["unknown"]:
        rows.append(("unknown (stored)", staleness["unknown"], ""))
    most = max((groups for _, groups, _ in rows), default=0)
    total = sum(groups for _, groups, _ in rows)
    return [
        (label, str(groups), replayed, f"{groups / total:.1%}", "█" * round(BAR * groups / most))
        for label, groups, replayed in rows
    ]


def _span(low: int, high: int) -> str:
    return str(low) if low == high else f"{low} to {high}"
