"""Table and figure of `python -m research.compare`, from its results alone."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from research.curve_statistics import drawdown, mean
from research.entrants import REINFORCE
from research.report_parts import markdown_table, page, png, styles, write_files
from research.runs import Result
from research.statistics import estimate

NONE = "–"
PAGE = """
# {name}: algorithms and regimes

{model} on {task}, {steps} steps at a learning rate of {rate:g}, {seeds} seeds a cell. Computed by
grre_jax {version} on {machines}.

Accuracy is the share of correct answers, {samples} sampled to each of {questions} held-out
questions; greedy accuracy is that of one greedy answer to each. In brackets are 95% intervals over
seeds. What an algorithm has over {first} in the same regime is taken seed by seed, since seeds
share questions and draws; of many intervals some leave 0 out by chance. A cell with a run that
diverged has no means.

![Accuracy by step, a panel a regime](compare.png)

{table}
"""


def _end(run: Result) -> Any:
    return run["accuracy"][-1]


STATISTICS: dict[str, Callable[[Result], Any]] = {
    "at the start": lambda run: run["accuracy"][0],
    "mean over the run": mean,
    "at the end": _end,
    "greedy, at the start": lambda run: run["greedy_accuracy"][0],
    "greedy, at the end": lambda run: run["greedy_accuracy"][-1],
    "largest share lost": drawdown,
    "KL to the start (nats a token)": lambda run: run["kl"][-1],
    "tokens an answer": lambda run: run["length"][-1],
}


def write(output: Path, found: Mapping[str, Any]) -> None:
    """Writes compare.json, compare.md and compare.png into the folder."""
    text = json.dumps(found, indent=1) + "\n"
    pages = {"compare.md": table(found), "compare.png": curves(found)}
    write_files(output, {"compare.json": text} | pages)


def table(found: Mapping[str, Any]) -> str:
    """Returns the results as Markdown; columns that would be empty are left out."""
    config, cells = found["configuration"], found["cells"]
    columns = {name: [cell[name] for cell in cells] for name in ("regime", "algorithm")}
    for heading, statistic in STATISTICS.items():
        columns[heading] = [_estimate(_values(cell, statistic)) for cell in cells]
    ends = {(cell["regime"], cell["algorithm"]): _values(cell, _end) for cell in cells}
    columns[f"at the end, over {REINFORCE}"] = [
        _estimate(values - ends.get((regime, REINFORCE), np.nan), "+.3f")
        if label != REINFORCE
        else NONE
        for (regime, label), values in ends.items()
    ]
    columns["diverged at step"] = [
        ", ".join(str(step) for run in cell["runs"] for step in run["diverged"]) or NONE
        for cell in cells
    ]
    kept = {heading: texts for heading, texts in columns.items() if {*texts} != {NONE}}
    return page(
        PAGE,
        name=config["name"],
        model=config["model"]["path"] or "A new model",
        task=config["task"]["name"],
        steps=config["training"]["steps"],
        rate=config["optimizer"]["learning_rate"],
        seeds=len(cells[0]["seeds"]),
        version=found["version"],
        machines="; ".join(found["machines"]),
        samples=config["evaluation"]["num_samples"],
        questions=config["evaluation"]["questions"],
        first=REINFORCE,
        table=markdown_table(list(kept), zip(*kept.values(), strict=True)),
    )


def _values(
    cell: Mapping[str, Any], statistic: Callable[[Result], Any]
) -> Float[np.ndarray, " seeds"]:
    """A statistic of each run of a cell; NaN if the run diverged or has no such number."""
    values = [None if run["diverged"] else statistic(run) for run in cell["runs"]]
    return np.array(values, float)


def _estimate(values: Float[np.ndarray, " seeds"], form: str = ".3f") -> str:
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

    cells = found["cells"]
    regimes = list(dict.fromkeys(cell["regime"] for cell in cells))
    lines = styles(list(dict.fromkeys(cell["algorithm"] for cell in cells)))
    figure = Figure(figsize=(4.6 * len(regimes), 4.4), layout="constrained")
    axes = figure.subplots(1, len(regimes), sharey=True, squeeze=False)[0]
    for axis, regime in zip(axes, regimes, strict=True):
        axis.set(title=regime, xlabel="step", ylim=(0, 1))
        axis.grid(alpha=0.3)
    for cell in cells:
        axis, line = axes[regimes.index(cell["regime"])], lines[cell["algorithm"]]
        steps = min((run["step"] for run in cell["runs"]), key=len)
        sampled, greedy = (
            np.array([run[name][: len(steps)] for run in cell["runs"]], float).mean(0)
            for name in ("accuracy", "greedy_accuracy")
        )
        axis.plot(steps, sampled, marker="o", markersize=3, **line, label=cell["algorithm"])
        axis.plot(steps, greedy, color=line["color"], linestyle="--", linewidth=1)
        if any(run["diverged"] for run in cell["runs"]):
            axis.plot(steps[-1], sampled[-1], "x", markersize=9, color=line["color"])
    axes[0].set_ylabel("held-out accuracy: sampled; greedy dashed")
    handles, names = axes[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=3, fontsize=8)
    return png(figure)
