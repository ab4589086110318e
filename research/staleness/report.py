"""Tables and the heat maps of `python -m research.staleness`, from its results alone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from research.report_parts import (
    as_json,
    cross_table,
    interval,
    markdown_table,
    page,
    png,
    write_files,
)

PAGE = """
# How stale the data may be

{task}, seeds {first} to {last}, {steps} steps a run, learning rate {rate:g}. Computed by grre_jax
{version} on {machines}, random draws version {random_streams}.

![Final accuracy, and the share of runs that lost over half, of every algorithm in every
regime](staleness.png)

## Ranking

Final {kind} accuracy averaged over all regimes, with its 95% interval over seeds; then how far
behind the first, seed by seed, with the interval of that difference.

{ranking_table}

## Cells

Mean final accuracy, {kinds}; then how many of the runs lost over half of their best {kind}
accuracy.

{cell_table}
"""
RANKING = ("", "algorithm", "mean", "interval", "behind the first", "interval")


def write(output: Path, found: Mapping[str, Any]) -> None:
    """Writes staleness.json, staleness.md and staleness.png into the folder."""
    pictures = {"staleness.md": tables(found), "staleness.png": heat_maps(found)}
    write_files(output, {"staleness.json": as_json(found)} | pictures)


def tables(found: Mapping[str, Any]) -> str:
    """Returns the results as Markdown."""
    labels = [row["algorithm"] for row in found["ranking"]]
    kinds = list(found["cells"][0]["final"])
    rows = [_ranked(rank, row) for rank, row in enumerate(found["ranking"], start=1)]
    headings, *ranking = markdown_table(RANKING, rows)
    return page(
        PAGE,
        **found | {"machines": "; ".join(found["machines"])},
        first=found["seeds"][0],
        last=found["seeds"][-1],
        kind=kinds[0],
        kinds=" and in brackets ".join(kinds),
        ranking_table=[headings.replace("|  |", "| |"), *ranking],
        cell_table=cross_table(
            sorted(found["cells"], key=lambda cell: labels.index(cell["algorithm"])), _cell
        ),
    )


def _ranked(rank: int, row: Mapping[str, Any]) -> list[object]:
    behind = row["behind"]
    own = f"{row['mean']:.3f}", interval(row["low"], row["high"], ".3f")
    distance = f"{behind['mean']:.3f}", interval(behind["low"], behind["high"])
    return [rank, row["algorithm"], *own, *distance]


def _cell(cell: Mapping[str, Any]) -> str:
    first, *further = (f"{np.mean(ends):.3f}" for ends in cell["final"].values())
    runs = len(cell["seeds"])
    return " ".join(
        [first, *(f"({one})" for one in further), f"{round(cell['collapsed'] * runs)}/{runs}"]
    )


def heat_maps(found: Mapping[str, Any]) -> bytes:
    """Draws final accuracy and probability of collapse, algorithms by rank against regimes.

    Returns:
        PNG bytes.
    """
    from matplotlib.figure import Figure

    labels, kind = (
        [row["algorithm"] for row in found["ranking"]],
        next(iter(found["cells"][0]["final"])),
    )
    regimes = list(dict.fromkeys(cell["regime"] for cell in found["cells"]))
    size = 3.5 + 0.62 * len(regimes), 2.6 + 0.68 * len(labels)
    figure = Figure(figsize=size, layout="constrained")
    shown = (
        ("final", f"final {kind} accuracy (mean over seeds)", "viridis"),
        ("collapsed", "share of runs that lost over half", "Reds"),
    )
    for number, (name, title, colours) in enumerate(shown, start=1):
        axis = figure.add_subplot(2, 1, number)
        values: Float[np.ndarray, "algorithms regimes"] = np.zeros((len(labels), len(regimes)))
        for cell in found["cells"]:
            row, column = labels.index(cell["algorithm"]), regimes.index(cell["regime"])
            shown_values = next(iter(cell["final"].values())) if name == "final" else cell[name]
            value = values[row, column] = np.mean(shown_values)
            white = value < 0.55 if name == "final" else value > 0.6
            look = {"ha": "center", "va": "center", "fontsize": 7}
            look["color"] = "white" if white else "black"
            axis.text(column, row, f"{value:.2f}", **look)
        image = axis.imshow(values, cmap=colours, vmin=0, vmax=1, aspect="auto")
        axis.set_yticks(range(len(labels)), labels, fontsize=8)
        names = regimes if number == len(shown) else [""] * len(regimes)
        axis.set_xticks(range(len(regimes)), names, rotation=40, ha="right", fontsize=8)
        axis.set_title(title, fontsize=10, loc="left")
        figure.colorbar(image, ax=axis, fraction=0.025)
    return png(figure)
