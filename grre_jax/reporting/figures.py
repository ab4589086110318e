"""Curves of runs, by matplotlib without pyplot: no global state, no window."""

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from grre_jax.reporting.metric_names import MetricName, described
from grre_jax.reporting.metrics import COMPONENT, Metrics, Row, series

# Okabe & Ito's palette for the colour blind (https://jfly.uni-koeln.de/color/), without its yellow.
# Beyond seven runs the colours come again.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#6E6E6E")
STYLE = ("default", str(Path(__file__).with_name("template") / "figures.mplstyle"))

SMOOTHED_FROM = 30  # fewer points than this are joined, not smoothed
NOTE = "Faint: every step. Line: local linear fit. Band: 95% interval. Dashed: greedy."


@dataclass(frozen=True)
class Panel:
    """The picture of one scalar `key` of the rows of a kind."""

    kind: str
    key: str

    @property
    def title(self) -> str:
        """The names of the rows and the scalar in `metrics.jsonl`."""
        return f"{self.kind}: {self.key}"

    @property
    def entry(self) -> MetricName:
        """Unit, meaning and advice of the scalar."""
        return described(self.kind, self.key)


PANELS = {
    "eval": ("accuracy", "reward", "kl_to_start"),
    "train": (
        "reward",
        "entropy",
        "clip_fraction",
        "response_length",
        "effective_sample_size",
        "staleness",
        "kl_behavior_k3",
        "zero_variance_groups",
        "grad_norm",
        "loss",
        "verify_failures",
    ),
    "warm_start": ("loss",),
}


def shown_panels(runs: Mapping[str, Metrics]) -> list[Panel]:
    """Returns the panels of which any run has data: `PANELS`, and the reward's components."""
    panels = []
    for kind, keys in PANELS.items():
        rows = [row for metrics in runs.values() for row in metrics.get(kind, ())]
        names = dict.fromkeys(name for row in rows for name in row if name.startswith(COMPONENT))
        if kind == "eval" and all(row.get("reward") == row.get("accuracy") for row in rows):
            keys = ("accuracy", "kl_to_start")
        panels += [Panel(kind, key) for key in (*keys, *names) if any(key in row for row in rows)]
    return panels


def overview_figure(runs: Mapping[str, Metrics]):
    """Draws the panels that have data on a `matplotlib.figure.Figure`, three per row.

    Args:
        runs: run name to its metrics.
    """
    from matplotlib import style
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    panels = shown_panels(runs)
    rows = max(1, math.ceil(len(panels) / 3))
    colours = dict(zip(runs, itertools.cycle(PALETTE), strict=False))
    with style.context(STYLE):
        figure = Figure(figsize=(12.0, 2.9 * rows + 0.6), layout="constrained")
        axes = figure.subplots(rows, 3, squeeze=False).flat
        for axis, panel in zip(axes, panels, strict=False):
            _draw_panel(axis, runs, panel, colours)
        for axis in list(axes)[len(panels) :]:
            axis.set_axis_off()
        lines = [Line2D([], [], color=colour) for colour in colours.values()]
        figure.legend(lines, list(runs), loc="outside upper left", ncols=3)
        figure.supxlabel(NOTE, x=0.01, ha="left", fontsize=7.5)
    return figure


def _draw_panel(
    axis, runs: Mapping[str, Metrics], panel: Panel, colours: Mapping[str, str]
) -> None:
    """Draws one panel of all runs on a matplotlib axis."""
    from matplotlib.ticker import MaxNLocator

    axis.set_title(panel.title, loc="left", fontsize=10.5, fontweight="bold")
    axis.set_title(panel.entry.unit, loc="right", fontsize=8)
    axis.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    for name, metrics in runs.items():
        _draw_run(axis, metrics.get(panel.kind, []), panel, colours[name])


def _draw_run(axis, rows: list[Row], panel: Panel, colour: str) -> None:
    """Draws one run's curves."""
    from scipy.signal import savgol_filter

    steps, values = series(rows, panel.key)
    finite = np.isfinite(values)
    at, low = series(rows, f"{panel.key}_low")
    _, high = series(rows, f"{panel.key}_high")
    if at.size:
        axis.fill_between(at, low, high, color=colour, alpha=0.13, linewidth=0)
    steps = steps[finite]
    values = values[finite]
    # The regime sets the staleness: its steps are not noise.
    if panel.kind != "eval" and len(values) >= SMOOTHED_FROM and panel.key != "staleness":
        axis.plot(steps, values, color=colour, alpha=0.25, linewidth=0.7)
        # Linear, so that a curve still rising is not drawn flat at its ends.
        values = savgol_filter(values, max(5, len(values) // 12), polyorder=1)
    marker = "o" if len(steps) < SMOOTHED_FROM else ""
    axis.plot(steps, values, color=colour, linewidth=1.9, marker=marker, markersize=3.6)
    steps, values = series(rows, f"greedy_{panel.key}")
    axis.plot(steps, values, color=colour, linestyle="--", linewidth=1.4)
