"""Pictures of runs: curves, panels of curves and the histogram of staleness, on matplotlib axes, on
figures and in PNG files.

Every step is drawn, faint, and over it a smooth line; intervals are bands; of several runs each has
its colour. Matplotlib is imported when something is drawn, and never through pyplot: no global
state, no window, no backend to choose.
"""

import io
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float, Real

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
TICKS = (1, 2, 5, 10)
SMOOTHED_FROM = 30  # fewer points than this are joined, not smoothed
MOST_POINTS = 1200  # of a smoothed curve: the smooth line costs the square of its points
LABEL_GAP = 0.075  # least distance between the labels of two ends, in heights of the axis
DPI = 160  # pixels per inch of the files; the overview is 12 inches wide


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
    panels = overview_panels(runs.values())
    some = (*panels, *further_panels(runs.values()))
    drawn = [panel for panel in some if any(has_data(m, panel) for m in runs.values())]
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
    """Draws the overview's panels on one figure, three per row, under the run's name or "n runs".

    Args:
        runs: run name to its metrics; a panel without data is labelled so.
        subtitle: a line under the panels.

    Returns:
        A `matplotlib.figure.Figure`.
    """
    panels = overview_panels(runs.values())
    rows = math.ceil(len(panels) / 3)
    figure = _figure(runs, (12.0, 2.9 * rows + 1), (rows, 3), panels, _heading(runs), subtitle)
    with _styled():
        for axis, panel in zip(figure.axes, panels, strict=True):
            draw_panel(axis, runs, panel, last_step(runs, panels), panel.title, panel.note)
    return figure


def panel_figure(runs: Mapping[str, Metrics], panel: Panel):
    """Draws one panel on a figure of its own.

    Args:
        runs: run name to its metrics.
        panel: what to draw.

    Returns:
        A `matplotlib.figure.Figure`.
    """
    title = panel.title if len(runs) > 1 else f"{panel.title} · {_heading(runs)}"
    figure = _figure(runs, (6.4, 4.0), (1, 1), [panel])
    with _styled():
        draw_panel(figure.axes[0], runs, panel, last_step(runs, [panel]), title, panel.note)
    return figure


def staleness_figure(runs: Mapping[str, Metrics], titled: bool = True):
    """Draws bars of the share of groups at each age, the runs side by side.

    Args:
        runs: run name to its metrics; a run that recorded no ages is left out.
        titled: whether title and legend are on the figure.

    Returns:
        A `matplotlib.figure.Figure`.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator, PercentFormatter

    found = {name: staleness_histogram(metrics) for name, metrics in runs.items()}
    found = {name: ages for name, ages in found.items() if any(ages.values())}
    width, colours = 0.8 / max(len(found), 1), run_colours(list(runs))
    with _styled():
        axis = Figure(figsize=(6.4, 3.6), layout="constrained").subplots()
        for number, (name, ages) in enumerate(found.items()):
            centres = [age + (number - (len(found) - 1) / 2) * width for age in ages]
            shares = [count / sum(ages.values()) for count in ages.values()]
            axis.bar(centres, shares, width=width, color=colours[name], label=name)
        axis.set_xlabel("updates between sampling and training")
        axis.set_ylabel("share of the groups trained on")
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        axis.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        if titled:
            axis.set_title("Staleness", loc="left", fontsize=12, fontweight="bold")
        if titled and len(found) > 1:
            axis.legend(fontsize=9)
    return axis.figure


def draw_panel(
    axis, runs: Mapping[str, Metrics], panel: Panel, end: int, title: str = "", note: str = ""
) -> None:
    """Draws one panel of all runs.

    Args:
        axis: a matplotlib axis.
        runs: run name to its metrics.
        panel: what to draw.
        end: where the step axis ends.
        title, note: two lines above the axis.
    """
    from matplotlib.ticker import EngFormatter, MaxNLocator, PercentFormatter

    if title:
        axis.set_title(title, loc="left", fontsize=10.5, fontweight="bold", pad=18)
        place = {"xycoords": "axes fraction", "textcoords": "offset points"}
        axis.annotate(note, (0, 1), (0, 6), fontsize=8.5, color=MUTED, **place)
        axis.set_xlabel("step", color=MUTED)
    axis.set_xlim(0, end * 1.015)
    axis.xaxis.set_major_locator(MaxNLocator(5, integer=True, steps=TICKS))
    axis.xaxis.set_major_formatter(EngFormatter(sep=""))
    axis.yaxis.set_major_locator(MaxNLocator(6, steps=TICKS))
    if panel.percent:
        axis.yaxis.set_major_formatter(PercentFormatter(1))
    extent: list[float] = []
    for index, metrics in enumerate(runs.values()):
        if has_data(metrics, panel):
            extent += _draw_run(axis, metrics, panel, run_style(index), alone=len(runs) == 1)
            extent += _draw_dashed(axis, metrics, panel, run_style(index)["color"])
    if extent:
        axis.set_ylim(*_bounds(panel, min(extent), max(extent)))
    _label_ends(axis, panel)
    missing = [name for name, metrics in runs.items() if not has_data(metrics, panel)]
    if missing:
        only = len(missing) == len(runs)
        words = "not recorded" if only else f"not recorded: {', '.join(missing)}"
        middle = {"transform": axis.transAxes, "ha": "center", "color": MUTED}
        axis.text(0.5, 0.5 if only else 0.02, words, fontsize=7.5, **middle)
        if only:
            axis.set_yticks([])


def last_step(runs: Mapping[str, Metrics], panels: Sequence[Panel]) -> int:
    """Returns the last step of the runs' rows of the panels' kinds, at least 1."""
    kinds = {panel.kind for panel in panels}
    rows = (row for metrics in runs.values() for kind in kinds for row in metrics.get(kind, ()))
    return max([1, *(row["step"] for row in rows)])


def smooth(
    steps: Real[np.ndarray, "n"], values: Real[np.ndarray, "n"], width: float
) -> Float[np.ndarray, "n"]:
    """Returns the local linear regression with a Gaussian window.

    W. S. Cleveland and S. J. Devlin, "Locally weighted regression", JASA 83 (1988),
    https://doi.org/10.1080/01621459.1988.10478639, with a Gaussian instead of a tricube window.
    Linear, not constant, so that a curve still rising is not drawn flat at its ends.

    Args:
        steps: [n], increasing.
        values: [n], finite.
        width: standard deviation of the window, in steps, > 0.

    Returns:
        [n] smooth values, within the range of the given ones.
    """
    x = steps.astype(np.float64)
    offset = (x[None, :] - x[:, None]) / width
    # A floor, so that a point far from all others still has neighbours.
    weight = np.exp(-0.5 * offset**2) + 1e-12
    s0, s1, s2 = weight.sum(1), (weight * offset).sum(1), (weight * offset**2).sum(1)
    t0, t1 = weight @ values, (weight * offset) @ values
    determinant = s0 * s2 - s1**2
    solvable = determinant > 1e-9 * s0**2
    line = np.where(solvable, (s2 * t0 - s1 * t1) / np.where(solvable, determinant, 1.0), t0 / s0)
    return np.clip(line, values.min(), values.max())


def smoothing_width(steps: Real[np.ndarray, "n"]) -> float:
    """Returns the window's s.d. in steps: a fortieth of the curve, at least 1.5 of its points."""
    span = float(steps[-1] - steps[0])
    return max(span / 40, 1.5 * span / max(len(steps) - 1, 1), 1e-9)


def _draw_run(axis, metrics: Metrics, panel: Panel, look: dict, alone: bool) -> list[float]:
    """Draws one curve; returns the values that the axis must show."""
    steps, values = series(metrics[panel.kind], panel.key)
    finite, extent = np.isfinite(values), []
    if not finite.all():
        at_bottom = {"transform": axis.get_xaxis_transform(), "clip_on": False, "markersize": 4}
        axis.plot(steps[~finite], 0 * steps[~finite], "x", color=look["color"], **at_bottom)
    if panel.interval:
        rows = metrics[panel.kind]
        (at, low), (_, high) = (series(rows, f"{panel.key}_{end}") for end in ("low", "high"))
        if len(at) and len(low) == len(high):
            alpha = 0.16 if alone else 0.11
            axis.fill_between(at, low, high, color=look["color"], alpha=alpha, linewidth=0)
            extent = [bound for bound in (*low, *high) if math.isfinite(bound)]
    if not finite.any():
        return extent
    width = smoothing_width(steps)
    steps, values = steps[finite], values[finite]
    dots = {"marker": "o", "markersize": 3.6, "markeredgewidth": 0.6, "clip_on": False}
    smoothed = _smooths(panel, values)
    if smoothed:
        groups = np.array_split(np.arange(len(steps)), min(len(steps), MOST_POINTS))
        steps, values = (np.array([some[g].mean() for g in groups]) for some in (steps, values))
        alpha = 0.28 if alone else 0.13
        axis.plot(steps, values, color=look["color"], alpha=alpha, linewidth=0.7)
        # Spikes may leave the axis; the line may not, nor may the bulk of the steps.
        extent += list(np.quantile(values, [0.01, 0.99]))
        values = smooth(steps, values, width)
    shown = dots if len(steps) <= 60 and not smoothed else {}
    axis.plot(steps, values, **look, linewidth=1.9, markeredgecolor="white", **shown)
    _draw_end(axis, steps, values, look["color"])
    return [*extent, *values]


def _draw_dashed(axis, metrics: Metrics, panel: Panel, colour: str) -> list[float]:
    """Draws a panel's second scalar if the run has it; returns the values to show."""
    steps, values = series(metrics[panel.kind], panel.dashed)
    finite = np.isfinite(values)
    steps, values = steps[finite], values[finite]
    if len(values):
        axis.plot(steps, values, color=colour, linestyle=DASHED, linewidth=1.4)
        _draw_end(axis, steps, values, colour)
    return list(values)


def _draw_end(axis, steps, values, colour: str) -> None:
    """Draws the point that `_label_ends` labels."""
    last = {"color": colour, "markeredgecolor": "white", "clip_on": False, "zorder": 6}
    axis.plot(steps[-1], values[-1], "o", markersize=5, **last)


def _smooths(panel: Panel, finite: Float[np.ndarray, " n"]) -> bool:
    return panel.smoothed and panel.kind == "train" and len(finite) >= SMOOTHED_FROM


def _bounds(panel: Panel, low: float, high: float) -> tuple[float, float]:
    if panel.from_zero or 0 <= low < 0.5 * high:
        low = min(low, 0.0)
    span = (high - low) or abs(high) * 0.1 or 1.0
    bottom, top = low if low == 0 else low - 0.06 * span, high + 0.08 * span
    if panel.percent:  # not beyond 100%, but with air for a line that lies on it
        bottom, top = max(bottom, 0.0), min(top, max(1.02, high))
    return bottom, top if top > bottom else bottom + span


def _label_ends(axis, panel: Panel) -> None:
    """Writes each curve's last value beside its end, in its colour, where there is room for it."""
    bottom, top = axis.get_ylim()
    taken: list[float] = []
    for line in axis.lines:
        x, y = line.get_data()
        height = (y[0] - bottom) / (top - bottom)
        if line.get_zorder() == 6 and all(abs(height - other) >= LABEL_GAP for other in taken):
            taken.append(height)
            style = {"fontsize": 8.5, "fontweight": "bold", "va": "center"}
            style |= {"textcoords": "offset points", "annotation_clip": False}
            end = (x[0], min(max(y[0], bottom), top))
            axis.annotate(panel.written(y[0]), end, (7, 0), color=line.get_color(), **style)


def _figure(
    runs: Mapping[str, Metrics],
    size: tuple[float, float],
    shape: tuple[int, int],
    panels: Sequence[Panel],
    title: str = "",
    subtitle: str = "",
):
    """Empty axes under a title and a legend of several runs, with notes on the lines below."""
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    with _styled():
        figure = Figure(figsize=size, layout="constrained")
        figure.subplots(*shape)
        heading = {"size": 14, "weight": "bold"}
        if len(runs) == 1:
            figure.suptitle(title, x=0.01, ha="left", fontproperties=heading)
        else:
            names = [shortened(name, LONGEST_NAME) for name in runs]
            columns = max(1, int((size[0] - 0.5) / (0.7 + 0.08 * max(map(len, names)))))
            figure.legend(
                handles=[Line2D([], [], **run_style(i), linewidth=1.9) for i in range(len(names))],
                labels=names,
                loc="outside upper left",
                ncols=min(columns, len(names)),
                title=title or None,
                title_fontproperties=heading,
                alignment="left",
            )
        notes = "  ".join(filter(None, [subtitle, *_notes(runs, panels)]))
        figure.supxlabel(notes, x=0.01, ha="left", fontsize=7.5, color=MUTED)
    return figure


def _notes(runs: Mapping[str, Metrics], panels: Sequence[Panel]) -> list[str]:
    """Sentences on the lines, as far as they apply to what is drawn."""
    curves = [
        (panel, series(metrics[panel.kind], panel.key)[1])
        for metrics in runs.values()
        for panel in panels
        if has_data(metrics, panel)
    ]
    notes = []
    if any(_smooths(panel, values[np.isfinite(values)]) for panel, values in curves):
        notes += [f"Faint: every step, or means of neighbours if there are over {MOST_POINTS:,}."]
        notes += ["Line: local linear fit with a Gaussian window."]
    if not all(np.isfinite(values).all() for _, values in curves):
        notes += ["× NaN or infinite."]
    return notes


def _styled():
    from matplotlib import style

    return style.context(["default", STYLE])


def _heading(runs: Mapping[str, Metrics]) -> str:
    return shortened(next(iter(runs)), LONGEST_NAME) if len(runs) == 1 else f"{len(runs)} runs"
