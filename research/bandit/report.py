"""`python -m research.bandit`: the bandit's table on the terminal, `bandit.json` with every number,
`bandit.png` with every orbit.
"""

import json
import os
import textwrap
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

import grre_jax
from grre_jax.console import make_console
from grre_jax.errors import UsageError
from grre_jax.reporting.panels import INK, MUTED, PALETTE, STYLE
from grre_jax.reporting.progress import speaks_unicode
from research.bandit import cases as bandit
from research.bandit import study as bandit_study
from research.report_parts import png, write_files

ARM_COLOURS = (PALETTE[6], PALETTE[0], PALETTE[1])
CORNERS = np.array([[0.0, 0.0], [1.0, 0.0], [0.5, np.sqrt(3) / 2]])  # of the triangle, arm 1 to 3
# Columns of the table, and how wide a terminal has to be to show them.
HEADINGS = (
    ("algorithm", 0),
    ("ends at", 0),
    ("how", 130),
    ("leads", 0),
    ("other starts", 130),
    ("arm 3 leads for", 0),
    ("sampled: mean end", 100),
    ("arm 3, 95% of runs", 150),
)
PATH_POINTS = 60  # of a path in bandit.json
# Of bandit.png, in inches: its width and margin, the large triangle's box; small triangles in a
# row, and their distances in their sides.
WIDTH, MARGIN, LARGE = 16.0, 0.45, (6.2, 5.4)
COLUMNS, PITCH = 11, (1.3, 1.3)


def run(
    folder: str | os.PathLike, *, seed: int = 0, names: Sequence[str] | None = None, console=None
) -> list[bandit_study.Result]:
    """Runs the study, prints its table and writes `bandit.json` and `bandit.png`.

    Args:
        folder: of the files; made when missing.
        seed: of the sampled updates.
        names: only these algorithms; all, and the surrogate, by default.
        console: the rich console; one on standard output by default.

    Returns:
        The results, in the order of the table.

    Raises:
        UsageError: a name is not an algorithm's.
    """
    from rich.text import Text

    console = console if console is not None else make_console()
    try:
        cases = bandit.cases(names)
    except ValueError as error:
        raise UsageError(str(error)) from error
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    begun, results = time.monotonic(), []
    with console.status("three-arm bandit") as status:
        for result in _in_order(cases, seed):
            results.append(result)
            done = f"{len(results)} of {len(cases)} {result.case.label}"
            status.update(Text(f"three-arm bandit: {done}"))
    seconds = time.monotonic() - begun
    found = json.dumps(as_json(results, seed), indent=1, allow_nan=False)
    write_files(folder, {"bandit.json": found + "\n", "bandit.png": draw(results)})
    console.print(table(results, console))
    for line in caption():
        console.print(line, style="dim", markup=False, highlight=False)
    written = f"{len(results)} rows in {seconds:.0f}s; written to {folder}"
    console.print(written, markup=False, highlight=False, soft_wrap=True)
    return results


def _in_order(cases: Sequence[bandit.Case], seed: int) -> Iterator[bandit_study.Result]:
    """Results two at a time, since most of the time goes into compiling."""
    with ThreadPoolExecutor(max_workers=2) as pool:
        yield from pool.map(lambda case: bandit_study.study(case, seed=seed), cases)


# ---- the table


def table(results: Sequence[bandit_study.Result], console):
    """Returns a `rich.table.Table`, a row per result, with as many columns as the console is wide
    enough for.
    """
    from rich import box
    from rich.table import Table
    from rich.text import Text

    unicode = speaks_unicode(console)
    frame = Table(
        box=box.SIMPLE_HEAD if unicode else box.ASCII,
        header_style="bold",
        pad_edge=not unicode,
        title="Three-arm bandit",
    )
    shown = [index for index, (_, width) in enumerate(HEADINGS) if console.width >= width]
    for heading, _ in (HEADINGS[index] for index in shown):
        folds = heading == "arm 3 leads for" or (heading == "algorithm" and console.width < 160)
        least = 20 if folds else None
        frame.add_column(heading, no_wrap=not folds, overflow="fold", min_width=least)
    for result in results:
        cells = row(result)
        cells[3] = Text(cells[3], style=ARM_COLOURS[result.leads])
        frame.add_row(*(cells[index] for index in shown))
    return frame


def row(result: bandit_study.Result) -> list[str]:
    """Returns the cells of the table, as text."""
    low, high = np.quantile(result.sampled[:, bandit.BEST], [0.025, 0.975])
    others = [end for start, end in result.ends.items() if start != "behavior"]
    leads = " ".join(str(int(np.argmax(end)) + 1) for end in others)
    return [
        result.case.label,
        policy(result.end),
        ending(result),
        f"arm {result.leads + 1}",
        "same" if result.agree else leads,
        "; ".join(strengths(result)) or "-",
        policy(result.sampled.mean(0)),
        f"{low:.2f} to {high:.2f}",
    ]


def policy(probabilities: np.ndarray) -> str:
    """Returns probabilities as text, "(.16 .72 .12)"."""
    shown = ("1" if share >= 0.9995 else f"{share:.3f}"[1:] for share in probabilities)
    return f"({' '.join(shown)})"


def ending(result: bandit_study.Result) -> str:
    """Returns the kind of the end: corner, edge, interior, or how else the flow ended."""
    how = result.how["behavior"]
    if how not in ("equilibrium", "boundary"):
        return how
    if result.end.max() > 1 - 1e-4:
        return "corner"
    return "edge" if result.end.min() < 1e-6 else "interior"


def strengths(result: bandit_study.Result) -> list[str]:
    """Returns the ranges of each number in which arm 3 leads, as "tau < 0.175"."""
    found = []
    for sweep in result.sweeps:
        first, last = sweep.values[0], sweep.values[-1]
        for low, high in sweep.best_leads:
            if low == first and high == last:
                found.append(f"every {sweep.number}")
            elif low == first:
                found.append(f"{sweep.number} < {high:.3g}")
            elif high == last:
                found.append(f"{sweep.number} > {low:.3g}")
            else:
                found.append(f"{low:.3g} < {sweep.number} < {high:.3g}")
    return found


def caption() -> list[str]:
    """Returns sentences that explain the columns."""
    decades = 10**bandit_study.DECADES
    return [
        f"Probabilities of arms 1, 2, 3. Behaviour policy {policy(np.array(bandit.BEHAVIOR))},"
        f" rewards {bandit.REWARDS}; data, old, proximal and reference log-probs are the behaviour"
        " policy's.",
        "ends at: limit of the expected update (a group of ten responses, 3, 6 and 1 of each arm)"
        " from the behaviour policy. other starts: the same, or the arm that leads from uniform and"
        " from near arm 1, 2, 3.",
        "no gradient: every arm is masked there and beyond, so that the end depends on the start.",
        f"arm 3 leads for: each number alone, from 1/{decades} to {decades} times its default where"
        " the library takes it, below zero too; -: nowhere.",
        "chord learns from one response more, an expert's of arm 3, beside the group; staleness is"
        " 1 where it is asked for.",
        f"sampled: {bandit_study.RUNS} runs of {bandit_study.UPDATES} steps, each on ten draws from"
        " the behaviour policy.",
    ]


# ---- the files


def as_json(results: Sequence[bandit_study.Result], seed: int) -> dict[str, object]:
    """Returns all results of the study as plain values."""
    return {
        "version": grre_jax.__version__,
        "seed": seed,
        "behavior": bandit.BEHAVIOR,
        "rewards": bandit.REWARDS,
        "counts": bandit.COUNTS,
        "starts": bandit.STARTS,
        "sampled": {
            "runs": bandit_study.RUNS,
            "updates": bandit_study.UPDATES,
            "responses": sum(bandit.COUNTS),
            "first_step": bandit_study.FIRST_STEP,
        },
        "results": [_result_json(result) for result in results],
    }


def _result_json(result: bandit_study.Result) -> dict[str, object]:
    sweeps = [
        {
            "number": sweep.number,
            "values": sweep.values,
            "ends": _rounded(sweep.ends),
            "arm_3_leads": sweep.best_leads,
        }
        for sweep in result.sweeps
    ]
    low, high = np.quantile(result.sampled, [0.025, 0.975], axis=0)
    return {
        "algorithm": result.case.name,
        "label": result.case.label,
        "options": dict(result.case.structure),
        "numbers": dict(result.case.numbers),
        "leads": result.leads + 1,
        "kind": ending(result),
        "starts_agree": result.agree,
        "ends": {start: _rounded(end) for start, end in result.ends.items()},
        "how": dict(result.how),
        "strengths": strengths(result),
        "sweeps": sweeps,
        "given_up": result.given_up,
        "sampled": {
            "mean": _rounded(result.sampled.mean(0)),
            "low": _rounded(low),
            "high": _rounded(high),
            "leads": [float(np.mean(np.argmax(result.sampled, axis=1) == arm)) for arm in range(3)],
        },
        "paths": {
            start: _rounded(path[:: max(1, -(-len(path) // PATH_POINTS))])
            for start, path in result.paths.items()
        },
    }


def _rounded(values: np.ndarray) -> list:
    return np.round(values, 6).tolist()


def draw(results: Sequence[bandit_study.Result]) -> bytes:
    """Draws `bandit.png`: all orbits from the behaviour policy on one simplex, and a small
    simplex for each result with those of every start.

    Returns:
        PNG bytes.
    """
    from matplotlib import style
    from matplotlib.figure import Figure

    scale = (WIDTH - 2 * MARGIN) / (COLUMNS * PITCH[0])  # inches of a small triangle
    small = -(-len(results) // COLUMNS) * PITCH[1] * scale
    height, left = LARGE[1] + small + 1.2, MARGIN / WIDTH
    with style.context(["default", STYLE]):
        figure = Figure(figsize=(WIDTH, height))
        title = "Three-arm bandit: where each objective takes the policy"
        bold = {"fontsize": 14, "fontweight": "bold"}
        figure.text(left, 1 - 0.3 / height, title, va="top", **bold)
        note = (
            f"Behaviour policy {policy(np.array(bandit.BEHAVIOR))}, rewards {bandit.REWARDS}: arm 3"
            " is best, arm 2 is drawn most. Expected updates, data always from the behaviour"
            " policy."
        )
        figure.text(left, 1 - 0.62 / height, note, fontsize=9, color=MUTED, va="top")
        box = (left, 1 - (LARGE[1] + 0.8) / height, LARGE[0] / WIDTH, LARGE[1] / height)
        groups = _draw_all(figure.add_axes(box), results)
        _list(figure, groups, MARGIN + LARGE[0] + 0.2, height - 1.0)
        box = (left, 0.1 / height, 1 - 2 * MARGIN / WIDTH, small / height)
        _draw_each(figure.add_axes(box), results)
        return png(figure, dpi=130)


def _draw_all(axis, results: Sequence[bandit_study.Result]) -> list[list[bandit_study.Result]]:
    """Every orbit from the behaviour policy; returns the results by where they end, in the order
    of their numbers on the picture.
    """
    _triangle(axis, np.zeros(2), 1.0)
    offsets = (-0.02, -0.04), (0.02, -0.04), (0, 0.04)
    bold = {"ha": "center", "va": "center", "fontsize": 10, "fontweight": "bold"}
    for arm, (corner, offset) in enumerate(zip(CORNERS, offsets, strict=True)):
        axis.text(*(corner + offset), f"arm {arm + 1}", color=ARM_COLOURS[arm], **bold)
    for result in results:
        _orbit(axis, result, "behavior", np.zeros(2), 1.0, size=22)
    axis.plot(*(np.array(bandit.BEHAVIOR) @ CORNERS), "o", mfc="white", mec=INK, ms=7, zorder=5)
    groups: list[list[bandit_study.Result]] = []
    for result in results:  # an end within 0.02 of the first of a group belongs to it
        near = [group for group in groups if np.abs(group[0].end - result.end).max() < 0.02]
        near[0].append(result) if near else groups.append([result])
    groups.sort(key=lambda group: tuple(-group[0].end[::-1]))
    small = {"textcoords": "offset points", "fontsize": 7.5, "va": "center", "zorder": 6}
    for number, group in enumerate(groups, start=1):
        axis.annotate(str(number), group[0].end @ CORNERS, (6, 0), **small)
    _frame(axis, (-0.08, 1.08), (-0.08, 0.94))
    return groups


def _list(figure, groups: Sequence[Sequence[bandit_study.Result]], left: float, top: float) -> None:
    """The names of those that end at the same place; positions in inches from the lower left
    corner.
    """
    width, height = figure.get_size_inches()
    for number, group in enumerate(groups, start=1):
        head = {"fontsize": 7.5, "va": "top", "fontweight": "bold"}
        head["color"] = ARM_COLOURS[group[0].leads]
        figure.text(left / width, top / height, f"{number}", **head)
        figure.text((left + 0.25) / width, top / height, policy(group[0].end), **head)
        for line in textwrap.wrap(", ".join(member.case.label for member in group), 112):
            figure.text((left + 1.4) / width, top / height, line, fontsize=7.5, va="top")
            top -= 0.15
        top -= 0.04


def _draw_each(axis, results: Sequence[bandit_study.Result]) -> None:
    """A small triangle a result, in the order of the table, with the orbits of every start."""
    rows = -(-len(results) // COLUMNS)
    for index, result in enumerate(results):
        offset = np.array(PITCH) * (index % COLUMNS, rows - 1 - index // COLUMNS)
        _triangle(axis, offset, 0.6)
        for start in bandit.STARTS:
            _orbit(axis, result, start, offset, 0.7, size=11)
        start = np.array(bandit.BEHAVIOR) @ CORNERS + offset
        axis.plot(*start, "o", mfc="white", mec=INK, ms=3, mew=0.7, zorder=5)
        names = textwrap.wrap(result.case.label, 24, break_long_words=False)
        for line, words in enumerate(reversed(names)):
            small = {"ha": "center", "va": "center", "fontsize": 6.5, "color": INK}
            axis.text(*(offset + (0.5, 0.94 + 0.11 * line)), words, **small)
    _frame(axis, (-0.15, PITCH[0] * COLUMNS - 0.15), (-0.05, PITCH[1] * rows - 0.05))


def _triangle(axis, offset: np.ndarray, width: float) -> None:
    look = {"facecolor": "#FAFAFB", "edgecolor": "#9AA1AB", "linewidth": width, "zorder": 0}
    axis.fill(*(CORNERS + offset).T, **look)


def _orbit(
    axis, result: bandit_study.Result, start: str, offset: np.ndarray, width: float, size: float
) -> None:
    path, end = result.paths[start] @ CORNERS + offset, result.ends[start]
    colour = ARM_COLOURS[int(np.argmax(end))]
    axis.plot(*path.T, color=colour, linewidth=width, alpha=0.55, zorder=2)
    look = {"color": colour, "edgecolor": "white", "linewidth": 0.5, "zorder": 4}
    axis.scatter(*(end @ CORNERS + offset), s=size, **look)


def _frame(axis, x: tuple[float, float], y: tuple[float, float]) -> None:
    axis.set_aspect("equal", anchor="W")
    axis.set_xlim(*x)
    axis.set_ylim(*y)
    axis.set_axis_off()
