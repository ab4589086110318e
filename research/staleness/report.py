"""Tables and the heat maps of `python -m research.staleness`, from its results alone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from research.report_parts import as_json, markdown_table, page, png, write_files

PAGE = """
# How stale the data may be

{task}, seeds {first} to {last}, {steps} steps a run, learning rate {rate:g}. Computed by grre_jax
{version} on {machines}, random draws version {random_streams}.

![Final accuracy, and the share of runs that lost over half, of every algorithm in every
regime](staleness.png)

## Ranking

Final {kind} accuracy averaged over all regimes, and how far it is behind the first, seed by seed;
both with their 95% interval over seeds.

{ranking_table}

## Cells

Mean final accuracy, {kinds}; then how many of the runs lost over half of their best {kind}
accuracy.

{cell_table}
"""


def write(output: Path, found: Mapping[str, Any]) -> None:
    """Writes staleness.json, staleness.md and staleness.png into the folder."""
    pictures = {"staleness.md": tables(found), "staleness.png": heat_maps(found)}
    write_files(output, {"staleness.json": as_json(found)} | pictures)


def tables(found: Mapping[str, Any]) -> str:
    """Returns the results as Markdown."""
    labels, regimes, cells = _grid(found)
    kinds = list(found["cells"][0]["final"])
    ranking = [
        [rank, row["algorithm"], _with_interval(row), _with_interval(row["behind"])]
        for rank, row in enumerate(found["ranking"], start=1)
    ]
    rows = [[label, *(_cell(cells[label, regime]) for regime in regimes)] for label in labels]
    return page(
        PAGE,
        **found | {"machines": "; ".join(found["machines"])},
        first=found["seeds"][0],
        last=found["seeds"][-1],
        kind=kinds[0],
        kinds=" and in brackets ".join(kinds),
        ranking_table=markdown_table(["rank", "algorithm", "mean", "behind the first"], ranking),
        cell_table=markdown_table(["algorithm", *regimes], rows),
    )


def _grid(found: Mapping[str, Any]) -> tuple[list[str], list[str], dict[tuple[str, str], Any]]:
    """Algorithms by rank, regimes, and the cells of both."""
    cells = {(cell["algorithm"], cell["regime"]): cell for cell in found["cells"]}
    labels = [row["algorithm"] for row in found["ranking"]]
    return labels, list(dict.fromkeys(regime for _, regime in cells)), cells


def _with_interval(row: Mapping[str, float]) -> str:
    return f"{row['mean']:.3f} ({row['low']:.3f} to {row['high']:.3f})"


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

    labels, regimes, cells = _grid(found)
    kind = next(iter(found["cells"][0]["final"]))
    size = 3.5 + 0.62 * len(regimes), 2.6 + 0.68 * len(labels)
    figure = Figure(figsize=size, layout="constrained")
    upper, lower = figure.subplots(2, 1)
    maps = (
        (upper, f"final {kind} accuracy (mean over seeds)", "viridis", [""] * len(regimes)),
        (lower, "share of runs that lost over half", "Reds", regimes),
    )
    for axis, title, colours, names in maps:
        values: Float[np.ndarray, "algorithms regimes"] = np.zeros((len(labels), len(regimes)))
        for row, column in np.ndindex(values.shape):
            cell = cells[labels[row], regimes[column]]
            value = np.mean(cell["final"][kind] if axis is upper else cell["collapsed"])
            white = value < 0.55 if axis is upper else value > 0.6
            values[row, column] = value
            look = {"ha": "center", "va": "center", "color": "white" if white else "black"}
            axis.text(column, row, f"{value:.2f}", fontsize=7, **look)
        image = axis.imshow(values, cmap=colours, vmin=0, vmax=1, aspect="auto")
        axis.set_yticks(range(len(labels)), labels, fontsize=8)
        axis.set_xticks(range(len(regimes)), names, rotation=40, ha="right", fontsize=8)
        axis.set_title(title, fontsize=10, loc="left")
        figure.colorbar(image, ax=axis, fraction=0.025)
    return png(figure)
