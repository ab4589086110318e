"""Table and figure of `python -m research.compare`, from its results alone."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import grre_jax
from grre_jax.config import Regime
from grre_jax.errors import DataError
from research.compare import start
from research.curve_statistics import drawdown, last, mean
from research.entrants import REINFORCE
from research.report_parts import as_json, markdown_table, page, png, styles, write_files
from research.runs import Entry, Ledger, Result, Run
from research.statistics import estimate

# Of a cell, one list per seed.
CURVES = ("step", "accuracy", "low", "high", "greedy_accuracy", "kl", "length")
NONE = "–"

PAGE = """
# {name}: algorithms and regimes

{model} on {task}, {steps} steps at a learning rate of {rate:g}, {seeds} a cell. Computed by
grre_jax {version} on {machines}.

Accuracy is the share of correct answers, {samples} sampled to each of {questions} held-out
questions.{greedy} {intervals}{lost}{start}

![Accuracy by step, a panel a regime](compare.png)

{table}
"""
GREEDY = (
    " Greedy accuracy is that of one greedy answer to each: what a policy has learned without how"
    " sharp it is."
)
LOST = (
    " A run that diverged had no finite number left in its policy from that step on; its cell has"
    " no means."
)
START = " The start, the same policy in all runs, was measured once: {told}."
SEVERAL_SEEDS = (
    f"In brackets are 95% intervals over seeds. What an algorithm has over {REINFORCE} in the same"
    " regime is taken seed by seed, since seeds share questions and draws; each interval speaks for"
    " its own row, and of many rows some leave 0 out by chance."
)
ONE_SEED = (
    "In brackets is the 95% interval of the sampled answers (Wilson). It is too short for what"
    " another run would give:{several} seeds differ, of which there is one here."
)
SEVERAL_ANSWERS = " answers to one question go together, which it does not know, and"


def diverged(result: Result) -> int | None:
    """Returns the step at which a run's policy stopped being finite; None if it stayed so."""
    return next(iter(result.get("diverged", ())), None)


def results(
    config: Mapping[str, Any],
    begun: dict[str, Any] | None,
    regimes: Mapping[str, Regime],
    entries: Sequence[Entry],
    cells: Mapping[tuple[str, str], Sequence[Run]],
    ledger: Ledger,
    machines: Sequence[str],
) -> dict[str, Any]:
    """Returns the content of compare.json: package version and machines, the settings, the figures
    of a shared start (None for others), and each cell's curves, one list per seed.
    """
    return {
        "version": grre_jax.__version__,
        "machines": list(machines),
        "configuration": dict(config),
        "start": begun,
        "regimes": {name: dataclasses.asdict(regime) for name, regime in regimes.items()},
        "algorithms": {entry.label: entry.identity for entry in entries},
        "cells": [
            {"regime": regime, "algorithm": label, "seeds": [run.seed for run in runs]}
            | {name: [ledger[run].get(name) for run in runs] for name in CURVES}
            | {"diverged": [diverged(ledger[run]) for run in runs]}
            for (regime, label), runs in cells.items()
        ],
    }


def write(output: Path, found: Mapping[str, Any]) -> None:
    """Writes compare.json, compare.md and compare.png into the folder."""
    write_files(output, {"compare.json": as_json(found)} | _drawn(found))


def redraw(output: Path) -> None:
    """Writes compare.md and compare.png again from the folder's compare.json alone.

    Raises:
        DataError: it cannot be read.
    """
    path = output / "compare.json"
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise DataError(
            f"{path} cannot be read ({error}): run the comparison again, which writes it from its"
            " runs.jsonl"
        ) from error
    write_files(output, _drawn(found))


def _drawn(found: Mapping[str, Any]) -> dict[str, str | bytes]:
    return {"compare.md": table(found), "compare.png": curves(found)}


def table(found: Mapping[str, Any]) -> str:
    """Returns the results as Markdown."""
    config, seeds = found["configuration"], len(found["cells"][0]["seeds"])
    evaluation = config["evaluation"]
    several = SEVERAL_ANSWERS if evaluation["num_samples"] > 1 else ""
    greedy = evaluation.get("greedy", False)  # absent in files of older versions
    values = {(cell["regime"], cell["algorithm"]): _values(cell) for cell in found["cells"]}
    rows = [
        _row(
            cell,
            values[cell["regime"], cell["algorithm"]],
            values.get((cell["regime"], REINFORCE)),
            greedy,
        )
        for cell in found["cells"]
    ]
    return page(
        PAGE,
        name=config["name"],
        model=config["model"]["path"] or "A new model",
        task=config["task"]["name"],
        steps=config["training"]["steps"],
        rate=config["optimizer"]["learning_rate"],
        seeds=f"{seeds} seed{'s' * (seeds > 1)}",
        version=found["version"],
        machines="; ".join(found["machines"]),
        samples=evaluation["num_samples"],
        questions=evaluation["questions"],
        greedy=GREEDY if greedy else "",
        intervals=SEVERAL_SEEDS if seeds > 1 else ONE_SEED.format(several=several),
        lost=LOST if any(any(_diverged(cell)) for cell in found["cells"]) else "",
        start=START.format(told=start.told(found["start"])) if found.get("start") else "",
        table=markdown_table(list(rows[0]), [list(row.values()) for row in rows]),
    )


def _row(
    cell: Mapping[str, Any],
    own: dict[str, np.ndarray],
    first: dict[str, np.ndarray] | None,
    greedy: bool,
) -> dict[str, str]:
    """A cell's row of the table by heading; `first` are the values of REINFORCE in its regime."""
    seeds, went = len(cell["seeds"]), _diverged(cell)
    row = {"regime": cell["regime"], "algorithm": cell["algorithm"]}
    row["at the start"] = _number(own["start"], 3)
    if seeds > 1:
        row |= {"mean over the run": _estimate(own["mean"]), "at the end": _estimate(own["end"])}
        alone = first is None or cell["algorithm"] == REINFORCE
        for name in ("mean", "end"):
            over = NONE if alone else _estimate(own[name] - first[name], "+.3f")
            row[f"{name}, over {REINFORCE}"] = over
    else:
        low, high = (None if cell[end][0] is None else cell[end][0][-1] for end in ("low", "high"))
        known = low is not None and np.isfinite(own["end"]).all()
        interval = f" ({low:.3f} to {high:.3f})" if known else ""
        row["mean over the run"] = _number(own["mean"], 3)
        row["at the end"] = _number(own["end"], 3) + interval
    if any(went):
        at = ", ".join(str(step) for step in cell["diverged"] if step is not None)
        row["at the end"] = f"diverged at step {at}"
        row["at the end"] += f" ({sum(went)} of {seeds} seeds)" if seeds > 1 else ""
    if greedy:
        curves = np.array(cell["greedy_accuracy"], float)
        for name, end in (("start", 0), ("end", -1)):
            row[f"greedy, at the {name}"] = _number(curves[:, end], 3)
    row["largest share lost"] = _number(own["drawdown"], 2)
    row["KL to the start (nats a token)"] = _number(own["kl"], 3)
    return row | {"tokens an answer": _number(own["length"], 1)}


def _diverged(cell: Mapping[str, Any]) -> list[bool]:
    return [step is not None for step in cell["diverged"]]


def _values(cell: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The statistics of each run of a cell, one per seed; NaN if the run has no such number."""
    runs = [
        {name: cell[name][i] for name in ("accuracy", "kl", "length")}
        for i in range(len(cell["seeds"]))
    ]
    found = {
        "mean": np.array([mean(run) for run in runs]),
        "drawdown": np.array([drawdown(run) for run in runs]),
        **{name: np.array([last(name, run) for run in runs]) for name in ("kl", "length")},
    }
    accuracy = np.array([run["accuracy"] for run in runs], float)
    return found | {"start": accuracy[:, 0], "end": accuracy[:, -1]}


def _number(values: np.ndarray, digits: int) -> str:
    mean = float(values.mean())
    return f"{mean:.{digits}f}" if np.isfinite(mean) else NONE


def _estimate(values: np.ndarray, form: str = ".3f") -> str:
    if not np.isfinite(values).all():
        return NONE
    found = estimate(values)
    return f"{found.mean:{form}} ({found.low:{form}} to {found.high:{form}})"


def curves(found: Mapping[str, Any]) -> bytes:
    """Draws both accuracies by step, a panel per regime; the mean over seeds, up to the step at
    which the first of them diverged, which a cross marks.

    Returns:
        PNG bytes.
    """
    from matplotlib.figure import Figure

    regimes = list(dict.fromkeys(cell["regime"] for cell in found["cells"]))
    lines = styles(list(dict.fromkeys(cell["algorithm"] for cell in found["cells"])))
    figure = Figure(figsize=(4.6 * len(regimes), 4.4), layout="constrained")
    axes = np.atleast_1d(figure.subplots(1, len(regimes), sharey=True))
    for axis, regime in zip(axes, regimes, strict=True):
        for cell in (cell for cell in found["cells"] if cell["regime"] == regime):
            steps, line = np.array(cell["step"][0]), lines[cell["algorithm"]]
            accuracy = np.array(cell["accuracy"], float).mean(0)
            axis.plot(steps, accuracy, marker="o", markersize=3, **line, label=cell["algorithm"])
            if found["configuration"]["evaluation"].get("greedy"):
                greedy = np.array(cell["greedy_accuracy"], float).mean(0)
                axis.plot(steps, greedy, color=line["color"], linestyle="--", linewidth=1)
            if any(_diverged(cell)):
                last = np.flatnonzero(np.isfinite(accuracy))[-1]
                axis.plot(steps[last], accuracy[last], "x", markersize=9, color=line["color"])
        axis.set(title=regime, xlabel="step", ylim=(0, 1))
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("accuracy on held-out questions: sampled; greedy dashed")
    handles, names = axes[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=3, fontsize=8)
    return png(figure)
