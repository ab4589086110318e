"""Pictures of runs: curves, panels of curves and the histogram of staleness, on matplotlib axes, on
figures and in PNG files.

Every step is drawn, faint, and over it a smooth line; intervals are bands; of several runs each has
its colour. Matplotlib is imported when something is drawn, and never through pyplot: no global
state, no window, no backend to choose.
"""

import io
import math
import os
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float

from grre_jax.errors import DataError
from grre_jax.reporting.metrics import Metrics, series, staleness_histogram
from grre_jax.reporting.panels import (
    DASHED,
    MUTED,
    STYLE,
    Panel,
    further_panels,
    has_data,
    overview_panels,
    run_colours,
    run_style,
)
from grre_jax.reporting.summary import shortened
from grre_jax.storage import files

LONGEST_NAME = 44  # letters of a run's name in a legend or heading
SMOOTHED_FROM = 30  # fewer points than this are joined, not smoothed
MOST_POINTS = 1200  # of a curve; a longer one is drawn in means of neighbours
LABEL_GAP = 0.075  # least distance between the labels of two ends, in heights of the axis
DPI = 160  # pixels per inch of the files; the overview is 12 inches wide
END = "end"  # marks the lines whose last value is written beside them
NOTE = (
    "Faint: every step. Line: local linear fit with a Gaussian window. Band: 95% interval."
    " ×: NaN or infinite."
)


def draw_curves(
    runs: Mapping[str, Metrics], folder: str | os.PathLike, *, subtitle: str = ""
) -> list[Path]:
    """Draws the overview and a picture of each panel that has data, over earlier ones of the
    same name.

    Args:
        runs: run name to its metrics, as `read_metrics` gives them.
        folder: where the pictures go; made when missing.
        subtitle: a line under the overview.

    Returns:
        The files written: `overview.png` first, then `<panel name>.png`, and `staleness.png` if a
        run recorded how old its data was.

    Raises:
        DataError: no run has any of the scalars; names the runs.
    """
    panels = (*overview_panels(runs.values()), *further_panels(runs.values()))
    drawn = [panel for panel in panels if any(has_data(m, panel) for m in runs.values())]
    if not drawn:
        raise DataError(
            f"nothing to draw: no row of {', '.join(runs)} has any of"
            f" {', '.join(panel.key for panel in panels)}; train for a step first"
        )
    figures = {"overview": overview_figure(runs, subtitle)}
    figures |= {panel.name: panel_figure(runs, panel) for panel in drawn}
    if any(map(staleness_histogram, runs.values())):
        figures["staleness"] = staleness_figure(runs)
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for name, figure in figures.items():
        content = io.BytesIO()
        figure.savefig(content, dpi=DPI, format="png")
        files.replace(folder / f"{name}.png", content.getvalue())
    return [folder / f"{name}.png" for name in figures]


def overview_figure(runs: Mapping[str, Metrics], subtitle: str = ""):
    """Draws the overview's panels on one figure, three per row, under the run's name or a legend.

    Args:
        runs: run name to its metrics; a panel without data is labelled so.
        subtitle: a line under the panels.

    Returns:
        A `matplotlib.figure.Figure`.
    """
    panels = overview_panels(runs.values())
    rows = math.ceil(len(panels) / 3)
    return _figure(runs, panels, (rows, 3), (12.0, 2.9 * rows + 1), subtitle)


def panel_figure(runs: Mapping[str, Metrics], panel: Panel):
    """Draws one panel on a figure of its own.

    Args:
        runs: run name to its metrics.
        panel: what to draw.

    Returns:
        A `matplotlib.figure.Figure`.
    """
    return _figure(runs, [panel], (1, 1), (6.4, 4.3))


def staleness_figure(runs: Mapping[str, Metrics], titled: bool = True):
    """Draws bars of the share of groups at each age, the runs side by side.

    Args:
        runs: run name to its metrics; a run that recorded no ages is left out.
        titled: whether title and legend are on the figure.

    Returns:
        A `matplotlib.figure.Figure`.
    """
    from matplotlib import style
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator, PercentFormatter

    histograms = {name: staleness_histogram(metrics) for name, metrics in runs.items()}
    histograms = {name: ages for name, ages in histograms.items() if any(ages.values())}
    width = 0.8 / max(len(histograms), 1)
    colours = run_colours(list(runs))
    with style.context(["default", STYLE]):
        axis = Figure(figsize=(6.4, 3.6), layout="constrained").subplots()
        for number, (name, ages) in enumerate(histograms.items()):
            centres = [age + (number - (len(histograms) - 1) / 2) * width for age in ages]
            shares = [count / sum(ages.values()) for count in ages.values()]
            axis.bar(centres, shares, width=width, color=colours[name], label=name)
        axis.set_xlabel("updates between sampling and training")
        axis.set_ylabel("share of the groups trained on")
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        axis.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        if titled:
            axis.set_title("Staleness", loc="left", fontsize=12, fontweight="bold")
        if titled and len(histograms) > 1:
            axis.legend(fontsize=9)
    return axis.figure


def _figure(
    runs: Mapping[str, Metrics],
    panels: Sequence[Panel],
    shape: tuple[int, int],
    size: tuple[float, float],
    subtitle: str = "",
):
    """Panels under the name of the one run, or under a legend of several."""
    from matplotlib import style
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    with style.context(["default", STYLE]):
        figure = Figure(figsize=size, layout="constrained")
        axes = figure.subplots(*shape, squeeze=False).flat
        end = last_step(runs, panels)
        for axis, panel in zip(axes, panels, strict=True):
            draw_panel(axis, runs, panel, end, titled=True)
        names = [shortened(name, LONGEST_NAME) for name in runs]
        if len(names) == 1:
            figure.suptitle(names[0], x=0.01, ha="left", fontsize=14, fontweight="bold")
        else:
            letter = 0.08  # inches
            columns = int(size[0] / (0.8 + letter * max(map(len, names))))
            figure.legend(
                handles=[Line2D([], [], **run_style(index)) for index in range(len(names))],
                labels=names,
                loc="outside upper left",
                ncols=min(max(columns, 1), len(names)),
            )
        letters = 15  # of the note's size in an inch
        note = textwrap.fill(f"{subtitle}  {NOTE}".strip(), int(size[0] * letters))
        figure.supxlabel(note, x=0.01, ha="left", fontsize=7.5, color=MUTED)
    return figure


def draw_panel(
    axis, runs: Mapping[str, Metrics], panel: Panel, end: int, titled: bool = False
) -> None:
    """Draws one panel of all runs.

    Args:
        axis: a matplotlib axis.
        runs: run name to its metrics.
        panel: what to draw.
        end: where the step axis ends.
        titled: whether the panel's title and note are above the axis.
    """
    from matplotlib.ticker import EngFormatter, MaxNLocator, PercentFormatter

    if titled:
        axis.set_title(panel.title, loc="left", fontsize=10.5, fontweight="bold")
        axis.set_title(panel.note, loc="right", fontsize=8, color=MUTED)
        axis.set_xlabel("step", color=MUTED)
    axis.set_xlim(0, end * 1.015)
    axis.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    axis.xaxis.set_major_formatter(EngFormatter(sep=""))
    axis.yaxis.set_major_locator(MaxNLocator(6))
    if panel.percent:
        axis.yaxis.set_major_formatter(PercentFormatter(1))
    shown: list[float] = []
    for index, metrics in enumerate(runs.values()):
        if has_data(metrics, panel):
            shown += _draw_run(axis, metrics, panel, run_style(index))
            shown += _draw_dashed(axis, metrics, panel, run_style(index)["color"])
    if shown:
        axis.set_ylim(*_bounds(panel, min(shown), max(shown)))
        _label_ends(axis, panel)
    missing = [name for name, metrics in runs.items() if not has_data(metrics, panel)]
    if missing:
        words = "not recorded"
        if len(missing) < len(runs):
            words = f"not recorded: {', '.join(missing)}"
        below = {"transform": axis.transAxes, "ha": "center", "color": MUTED, "fontsize": 7.5}
        axis.text(0.5, 0.02, words, **below)


def last_step(runs: Mapping[str, Metrics], panels: Sequence[Panel]) -> int:
    """Returns the last step of the runs' rows of the panels' kinds, at least 1."""
    kinds = {panel.kind for panel in panels}
    rows = (row for metrics in runs.values() for kind in kinds for row in metrics.get(kind, ()))
    return max([1, *(row["step"] for row in rows)])


def smooth(values: Float[np.ndarray, "n"]) -> Float[np.ndarray, "n"]:
    """Returns the local linear regression with a Gaussian window, of a fortieth of the points as
    its standard deviation and at least 1.5.

    W. S. Cleveland and S. J. Devlin, "Locally weighted regression", JASA 83 (1988),
    https://doi.org/10.1080/01621459.1988.10478639, with a Gaussian instead of a tricube window.
    Linear, not constant, so that a curve still rising is not drawn flat at its ends.

    Args:
        values: [n], finite, at least 3, at even distances.

    Returns:
        [n] smooth values, within the range of the given ones.
    """
    points = np.arange(len(values))
    offset = (points[None, :] - points[:, None]) / max(len(values) / 40, 1.5)
    weight = np.exp(-0.5 * offset**2)
    weight /= weight.sum(1, keepdims=True)
    mean = (weight * offset).sum(1)
    variance = (weight * offset**2).sum(1) - mean**2
    average = weight @ values
    slope = ((weight * offset) @ values - mean * average) / variance
    return np.clip(average - slope * mean, values.min(), values.max())


def _draw_run(axis, metrics: Metrics, panel: Panel, look: Mapping[str, str]) -> list[float]:
    """Draws one curve; returns the values that the axis must show."""
    rows = metrics[panel.kind]
    colour = look["color"]
    steps, values = series(rows, panel.key)
    finite = np.isfinite(values)
    shown: list[float] = []
    if not finite.all():
        marks = {"transform": axis.get_xaxis_transform(), "clip_on": False, "markersize": 4}
        axis.plot(steps[~finite], 0 * steps[~finite], "x", color=colour, **marks)
    if panel.interval:
        at, low = series(rows, f"{panel.key}_low")
        _, high = series(rows, f"{panel.key}_high")
        axis.fill_between(at, low, high, color=colour, alpha=0.13, linewidth=0)
        shown += [bound for bound in (*low, *high) if math.isfinite(bound)]
    if not finite.any():
        return shown
    steps = steps[finite]
    values = values[finite]
    marker = "o" if len(steps) <= 60 else ""
    if panel.smoothed and panel.kind == "train" and len(values) >= SMOOTHED_FROM:
        pieces = np.array_split(np.arange(len(steps)), min(len(steps), MOST_POINTS))
        steps = np.array([steps[piece].mean() for piece in pieces])
        values = np.array([values[piece].mean() for piece in pieces])
        axis.plot(steps, values, color=colour, alpha=0.25, linewidth=0.7)
        # Spikes may leave the axis; the line may not, nor may the bulk of the steps.
        shown += list(np.quantile(values, [0.01, 0.99]))
        values = smooth(values)
        marker = ""
    axis.plot(steps, values, **look, linewidth=1.9, marker=marker, markersize=3.6, gid=END)
    return [*shown, *values]


def _draw_dashed(axis, metrics: Metrics, panel: Panel, colour: str) -> list[float]:
    """Draws a panel's second scalar if the run has it; returns the values to show."""
    steps, values = series(metrics[panel.kind], panel.dashed)
    finite = np.isfinite(values)
    if finite.any():
        line = {"color": colour, "linestyle": DASHED, "linewidth": 1.4, "gid": END}
        axis.plot(steps[finite], values[finite], **line)
    return list(values[finite])


def _bounds(panel: Panel, low: float, high: float) -> tuple[float, float]:
    if panel.from_zero or 0 <= low < 0.5 * high:
        low = min(low, 0.0)
    span = (high - low) or abs(high) * 0.1 or 1.0
    bottom = low if low == 0 else low - 0.06 * span
    top = high + 0.08 * span
    if panel.percent:  # not beyond 100%, but with air for a line that lies on it
        return max(bottom, 0.0), min(top, max(1.02, high))
    return bottom, top


def _label_ends(axis, panel: Panel) -> None:
    """Writes each curve's last value beside its end, in its colour, where there is room for it."""
    bottom, top = axis.get_ylim()
    heights: list[float] = []
    for line in list(axis.lines):
        if line.get_gid() != END or not len(line.get_xdata()):
            continue
        x = line.get_xdata()[-1]
        y = line.get_ydata()[-1]
        height = (y - bottom) / (top - bottom)
        axis.plot(x, y, "o", color=line.get_color(), markersize=5, clip_on=False)
        if all(abs(height - other) >= LABEL_GAP for other in heights):
            heights.append(height)
            axis.annotate(
                panel.written(y),
                (x, min(max(y, bottom), top)),
                (7, 0),
                textcoords="offset points",
                annotation_clip=False,
                va="center",
                color=line.get_color(),
                fontsize=8.5,
                fontweight="bold",
            )
