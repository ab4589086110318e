"""Table and figure of `grre study compare`, from its results alone."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from grre_jax.config import Config
from grre_jax.reporting import wilson_interval
from grre_jax.studies.figures import LINES, png
from grre_jax.studies.measures import MEASURES
from grre_jax.studies.runs import Ledger, Run
from grre_jax.whole_files import replace


def results(config: Config, cells: Mapping[tuple[str, str], Sequence[Run]], ledger: Ledger, devices: str) -> dict[str, Any]:
    """What compare.json holds: the machine, the setting, and each cell's curves, a list a seed."""
    return {
        "machine": devices,
        "configuration": config.name,
        "model": config.model.path,
        "task": config.task.name,
        "steps": config.training.steps,
        "learning_rate": config.optimizer.learning_rate,
        "answers": config.evaluation.questions * config.evaluation.num_samples,
        "cells": [
            {"regime": regime, "algorithm": label, "seeds": [run.seed for run in runs]}
            | {name: [ledger[run][name] for run in runs] for name in ("step", "accuracy", "kl", "length")}
            for (regime, label), runs in cells.items()
        ],
    }


def write(output: Path, found: Mapping[str, Any]) -> None:
    """Writes compare.json, compare.md and compare.png into the folder."""
    replace(output / "compare.json", json.dumps(found, indent=1) + "\n")
    replace(output / "compare.md", table(found))
    replace(output / "compare.png", curves(found))


def table(found: Mapping[str, Any]) -> str:
    """The results as markdown."""
    seeds = len(found["cells"][0]["seeds"])
    lines = [
        f"# {found['configuration']}: algorithms and regimes",
        "",
        f"{found['model'] or 'a new model'} on {found['task']}, {found['steps']} steps at a learning rate of {found['learning_rate']:g}, {seeds} seed{'s' * (seeds > 1)} a cell, on {found['machine']}. "
        f"Accuracy of {found['answers']} sampled answers an evaluation; the interval is that of the answers (Wilson, 95%), not that of seeds.",
        "",
        "![Accuracy by step, a panel a regime](compare.png)",
        "",
        "| regime | algorithm | at the start | mean over the run | at the end | largest share lost | KL to the start | tokens an answer |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for cell in found["cells"]:
        runs = [{name: cell[name][i] for name in ("accuracy", "kl", "length")} for i in range(len(cell["seeds"]))]
        mean = {name: float(np.mean([MEASURES[name](run) for run in runs])) for name in ("mean", "drawdown", "kl", "length")}
        start, end = (float(np.mean([run["accuracy"][i] for run in runs])) for i in (0, -1))
        answers = found["answers"] * len(runs)
        low, high = wilson_interval(round(end * answers), answers)
        lines.append(
            f"| {cell['regime']} | {cell['algorithm']} | {start:.3f} | {mean['mean']:.3f} | {end:.3f} ({low:.3f} to {high:.3f}) | {mean['drawdown']:.2f} | {mean['kl']:.3f} | {mean['length']:.1f} |"
        )
    return "\n".join(lines) + "\n"


def curves(found: Mapping[str, Any]) -> bytes:
    """Accuracy by step, a panel a regime; the mean over seeds. PNG bytes."""
    from matplotlib.figure import Figure

    regimes = list(dict.fromkeys(cell["regime"] for cell in found["cells"]))
    labels = list(dict.fromkeys(cell["algorithm"] for cell in found["cells"]))
    colours = dict(zip(labels, np.resize(np.array(LINES), len(labels)), strict=True))
    figure = Figure(figsize=(4.6 * len(regimes), 4.4), layout="constrained")
    axes = np.atleast_1d(figure.subplots(1, len(regimes), sharey=True))
    for axis, regime in zip(axes, regimes, strict=True):
        for cell in (cell for cell in found["cells"] if cell["regime"] == regime):
            accuracy = np.array(cell["accuracy"], float)
            axis.plot(cell["step"][0], accuracy.mean(0), "o-", markersize=3, color=colours[cell["algorithm"]], label=cell["algorithm"])
        axis.set(title=regime, xlabel="step", ylim=(0, 1))
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("sampled accuracy on held-out questions")
    handles, names = axes[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=3, fontsize=8)
    return png(figure)
