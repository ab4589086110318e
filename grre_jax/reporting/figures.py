"""Curves of runs, by matplotlib without pyplot: no global state, no window."""

import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from grre_jax.reporting.metric_names import MetricName, described
from grre_jax.reporting.metrics import COMPONENT, Metrics, series

# Okabe & Ito's palette for the colour blind (https://jfly.uni-koeln.de/color/), without its yellow.
# Beyond seven runs the colours come again with another dash.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#6E6E6E")
DASHES = ("-", ":", "-.")
# Of the style file, by the page's variable.
COLOURS = {"ink": "#1F2328", "muted": "#6B7280", "line": "#E6E8EB"}
STYLE = ("default", str(Path(__file__).with_name("template") / "figures.mplstyle"))

SMOOTHED_FROM = 30  # fewer points than this are joined, not smoothed
MOST_POINTS = 1200  # of a curve; a longer one is drawn in means of neighbours
LABEL_GAP = 0.075  # least distance between the labels of two ends, in heights of the axis
OVERVIEW = 9  # panels on the overview, three per row
NOTE = (
    "Faint: every step. Line: local linear fit. Band: 95% interval. Dashed: greedy. ×: NaN or"
    " infinite."
)


@dataclass(frozen=True)
class Panel:
    """The picture of one scalar `key` of the rows of a kind."""

    kind: str
    key: str
    title: str

    @property
    def entry(self) -> MetricName:
        """Unit, meaning and advice of the scalar."""
        return described(self.kind, self.key) or MetricName(self.key, [self.kind], "", "")

    def has_data(self, metrics: Metrics) -> bool:
        """True if any row of the run has the scalar."""
        return any(self.key in row for row in metrics.get(self.kind, ()))


PANELS = (
    Panel("train", "reward", "Reward"),
    Panel("eval", "accuracy", "Accuracy, held-out"),
    Panel("eval", "reward", "Reward, held-out"),
    Panel("eval", "kl_to_start", "KL to the start"),
    Panel("train", "entropy", "Entropy"),
    Panel("train", "clip_fraction", "Clipped tokens"),
    Panel("train", "response_length", "Response length"),
    Panel("train", "effective_sample_size", "Effective sample size"),
    Panel("train", "staleness", "Staleness"),
    Panel("train", "kl_behavior_k3", "KL, behaviour to policy"),
    Panel("train", "zero_variance_groups", "Groups without a signal"),
    Panel("train", "grad_norm", "Gradient norm"),
    Panel("train", "loss", "Loss"),
    Panel("train", "verify_failures", "Completions without a verdict"),
    Panel("warm_start", "loss", "Loss, warm start"),
)


def shown_panels(runs: Mapping[str, Metrics]) -> list[Panel]:
    """Returns the panels of which any run has data: `PANELS`, then the reward's components."""
    panels = list(PANELS)
    held_out = [row for metrics in runs.values() for row in metrics.get("eval", ())]
    if all(row.get("reward") == row.get("accuracy") for row in held_out):
        panels.remove(Panel("eval", "reward", "Reward, held-out"))
    for kind, title in (("train", "Component {}"), ("eval", "Component {}, held-out")):
        rows = [row for metrics in runs.values() for row in metrics.get(kind, ())]
        names = dict.fromkeys(name for row in rows for name in row if name.startswith(COMPONENT))
        panels += [Panel(kind, n, title.format(n.removeprefix(COMPONENT))) for n in names]
    return [panel for panel in panels if any(map(panel.has_data, runs.values()))]


def run_colours(names: Sequence[str]) -> dict[str, str]:
    """Returns the colour "#rrggbb" of each run in every picture."""
    return {name: run_style(index)["color"] for index, name in enumerate(names)}


def run_style(index: int) -> dict[str, str]:
    """Returns matplotlib's colour and linestyle of run `index`."""
    again, place = divmod(index, len(PALETTE))
    return {"color": PALETTE[place], "linestyle": DASHES[again % len(DASHES)]}


def overview_figure(runs: Mapping[str, Metrics]):
    """Draws the first nine panels that have data on a `matplotlib.figure.Figure`.

    Args:
        runs: run name to its metrics.
    """
    from matplotlib import style
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    panels = shown_panels(runs)[:OVERVIEW]
    rows = max(1, math.ceil(len(panels) / 3))
    with style.context(STYLE):
        figure = Figure(figsize=(12.0, 2.9 * rows + 0.6), layout="constrained")
        axes = figure.subplots(rows, 3, squeeze=False).flat
        for axis, panel in zip(axes, panels, strict=False):
            _draw_panel(axis, runs, panel)
            axis.set_title(panel.title, loc="left", fontsize=10.5, fontweight="bold")
            axis.set_title(panel.entry.unit, loc="right", fontsize=8)
        for axis in list(axes)[len(panels) :]:
            axis.set_axis_off()
        lines = [Line2D([], [], **run_style(index)) for index in range(len(runs))]
        figure.legend(lines, list(runs), loc="outside upper left", ncols=3)
        figure.supxlabel(NOTE, x=0.01, ha="left", fontsize=7.5)
    return figure


def inline_svg(runs: Mapping[str, Metrics], panel: Panel):
    """Returns a panel as inline SVG in the page's colour variables, light or dark."""
    from markupsafe import Markup
    from matplotlib import style
    from matplotlib.figure import Figure

    buffer = io.StringIO()
    with style.context([*STYLE, {"svg.fonttype": "none", "svg.hashsalt": "grre_jax"}]):
        figure = Figure(figsize=(4.3, 2.6))
        axis = figure.subplots()
        # Right of the axis, the last values: of eight characters at most, as in -0.00983.
        figure.subplots_adjust(left=0.13, right=0.81, top=0.94, bottom=0.12)
        _draw_panel(axis, runs, panel)
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :].replace("'DejaVu Sans'", "system-ui, sans-serif")
    variables = COLOURS | {f"run-{index}": colour for index, colour in enumerate(PALETTE)}
    for name, colour in variables.items():
        text = text.replace(colour.lower(), f"var(--{name})")
    return Markup(text)


def _draw_panel(axis, runs: Mapping[str, Metrics], panel: Panel) -> None:
    """Draws one panel of all runs on a matplotlib axis."""
    from matplotlib.ticker import EngFormatter, MaxNLocator, PercentFormatter

    axis.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    axis.yaxis.set_major_locator(MaxNLocator(6))
    axis.xaxis.set_major_formatter(EngFormatter(sep=""))
    share = panel.entry.unit.startswith("share")
    if share:
        axis.yaxis.set_major_formatter(PercentFormatter(1))
    ends = []
    for index, metrics in enumerate(runs.values()):
        if panel.has_data(metrics):
            ends += _draw_run(axis, metrics, panel, run_style(index))
    bottom, top = axis.get_ylim()
    if bottom < 0.5 * top and (share or bottom > 0):
        bottom = 0.0
    axis.set_ylim(bottom, top)
    labelled: list[float] = []
    for step, value, colour in ends:
        if all(abs(value - other) > LABEL_GAP * (top - bottom) for other in labelled):
            labelled.append(value)
            axis.annotate(
                f"{value:.1%}" if share else f"{value:.3g}",
                (step, value),
                (7, 0),
                textcoords="offset points",
                annotation_clip=False,
                va="center",
                color=colour,
                weight="bold",
            )


def _draw_run(axis, metrics: Metrics, panel: Panel, look: Mapping[str, str]) -> list[tuple]:
    """Draws one run's curves; returns (step, value, colour) of their ends."""
    from scipy.signal import savgol_filter

    rows = metrics[panel.kind]
    colour = look["color"]
    steps, values = series(rows, panel.key)
    finite = np.isfinite(values)
    if not finite.all():
        crosses = steps[~finite]
        axis.plot(crosses, 0 * crosses, "x", color=colour, transform=axis.get_xaxis_transform())
    at, low = series(rows, f"{panel.key}_low")
    _, high = series(rows, f"{panel.key}_high")
    if at.size:
        axis.fill_between(at, low, high, color=colour, alpha=0.13, linewidth=0)
    steps = steps[finite]
    values = values[finite]
    # The regime sets the staleness: its steps are not noise.
    if panel.kind != "eval" and len(values) >= SMOOTHED_FROM and panel.key != "staleness":
        pieces = np.array_split(np.arange(len(steps)), min(len(steps), MOST_POINTS))
        steps = np.array([steps[piece].mean() for piece in pieces])
        values = np.array([values[piece].mean() for piece in pieces])
        axis.plot(steps, values, color=colour, alpha=0.25, linewidth=0.7)
        # Linear, so that a curve still rising is not drawn flat at its ends.
        values = savgol_filter(values, max(5, len(values) // 12), polyorder=1)
    marker = "o" if len(steps) < SMOOTHED_FROM else ""
    axis.plot(steps, values, **look, linewidth=1.9, marker=marker, markersize=3.6)
    ends = [(steps[-1], values[-1], colour)] if values.size else []
    steps, values = series(rows, f"greedy_{panel.key}")
    if values.size:
        axis.plot(steps, values, color=colour, linestyle="--", linewidth=1.4)
        ends.append((steps[-1], values[-1], colour))
    return ends
