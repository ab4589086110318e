"""Tables and figures of `python -m research.claims`, from its results alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from research.claims.judging import FAILS, HOLDS, NOT_ASKED, OPEN, Table
from research.curve_statistics import CURVES
from research.report_parts import (
    as_json,
    cross_table,
    interval,
    markdown_table,
    page,
    png,
    styles,
    write_files,
)
from research.statistics import estimate

COLOURS = {HOLDS: "#1a7f5a", FAILS: "#b3261e", OPEN: "#8a8f98", NOT_ASKED: "#d5d8dc"}
NONE = "–"

PAGE = """
# The paper's claims, measured on {task}

{runs} runs of {steps} steps by {machines}; judged by grre_jax {version}, random draws version
{random_streams}. Seeds {seeds}; {second}; tuning by seeds {tuning_seeds}, which are not judged.
Learning rates {rates}. Intervals are Student's t at 95%. Accuracy is greedy, and in brackets
sampled at temperature 1.

## Verdicts

{verdict_table}

A verdict goes by the comparisons of the paper alone (its core). One holds, or fails, where the t
test says so with the number of the claim's comparisons accounted for (Holm, 1979), and is open
otherwise. A claim reproduces where all hold, does in part where some hold and some fail, does not
where some fail and none holds.

![Every comparison with its interval and threshold](claims.png)

![Final greedy accuracy by learning rate, a panel a regime](rates.png)

## At the start

{start_table}

## The paper's comparisons

{core_table}

## Our extensions

{extension_table}

## At each learning rate

Both algorithms at the same rate, by the tuning seeds; nothing is judged here.

{rate_table}

## Power

Computed before the judged runs from the spread between the tuning seeds, pooled over the
comparisons of a claim with the same measure. Visible is the distance from the threshold that
{count} seeds find four times in five; where it is too far, the comparison is measured and not
judged.

{power_table}
"""
REGIME = """
## {regime}

Best: the rate with the highest final greedy accuracy of the tuning seeds. Largest stable rate: up
to which, from the smallest on, a seed's runs kept half of their greedy accuracy; median, and least
to largest of the tuning seeds.

{best_table}

Final accuracy by learning rate, of the tuning seeds; then how many of the runs lost over half of
their greedy accuracy.

{axis_table}
"""
BEST = (
    *("algorithm", "best rate", "final greedy there", "sampled there", "collapsed there"),
    *("final greedy of tuning", "rates it does not tell apart", "largest stable rate"),
)


def write(output: Path, found: Mapping[str, Any]) -> None:
    """Writes verdicts.json, claims.md, claims.png and rates.png into the folder."""
    contents = {"verdicts.json": as_json(found), "claims.md": tables(found)}
    pictures = {"claims.png": forest(found["claims"]), "rates.png": axes(found)}
    write_files(output, contents | pictures)


# ---- tables


def tables(found: Mapping[str, Any]) -> str:
    """Returns the results as Markdown."""
    again = {claim["name"]: claim for claim in found["claims_again"]}
    listed = {name: _span(found[name]) for name in ("seeds", "tuning_seeds")}
    second = f"the second set {_span(found['again'])}" if again else "no second set"
    values = dict(found) | listed | {"second": second}
    values |= {
        "machines": " and ".join(found["machines"]) or "a machine that was not noted",
        "rates": ", ".join(f"{rate:g}" for rate in found["rates"]),
        "count": len(found["seeds"]),
        "verdict_table": verdict_table(found),
        "start_table": _starts(found["starts"]),
        "core_table": _comparisons(found["claims"], again, "core"),
        "extension_table": _comparisons(found["claims"], {}, "extensions"),
        "rate_table": _by_rate(found),
        "power_table": _power(found["power"]),
    }
    table = Table(found["cells"], found["rates"], found["tuning_seeds"])
    regimes = dict.fromkeys(row["regime"] for row in found["headlines"])
    return "\n".join([page(PAGE, **values), *(_regime(found, table, one) for one in regimes)])


def _span(seeds: Sequence[int]) -> str:
    return f"{seeds[0]} to {seeds[-1]}"


def verdict_table(found: Mapping[str, Any]) -> list[str]:
    """Returns the lines of the table of verdicts, of both sets of seeds."""
    rows, again = [], {claim["name"]: claim["verdict"] for claim in found["claims_again"]}
    for claim in found["claims"]:
        outcomes = [row["greedy"]["outcome"] for row in claim["core"]]
        other = again.get(claim["name"], {"greedy": NONE, "sampled": NONE})
        rows.append(
            [f"{claim['name']} {claim['statement']}", f"**{claim['verdict']['greedy']}**"]
            + [", ".join(str(outcomes.count(one)) for one in COLOURS)]
            + [claim["verdict"]["sampled"], other["greedy"], other["sampled"]]
        )
    kinds = ("verdict, greedy", "hold, fail, open, not asked", "sampled")
    return markdown_table(("claim", *kinds, "second seeds, greedy", "sampled"), rows)


def _starts(starts: Sequence[Mapping[str, Any]]) -> list[str]:
    names = {"greedy_accuracy": "greedy accuracy", "accuracy": "sampled accuracy"}
    rows = []
    for key, name in (names | {"pass_at_8": "pass@8"}).items():
        values = [row[key] for row in starts]
        shown = np.mean(values), min(values), max(values)
        rows.append([name, *(f"{value:.3f}" for value in shown)])
    return markdown_table((f"{len(starts)} warm starts", "mean", "least", "largest"), rows)


def _rows(
    claims: Sequence[Mapping[str, Any]], part: str
) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    return ((claim, row) for claim in claims for row in claim[part])


def _comparisons(
    claims: Sequence[Mapping[str, Any]], again: Mapping[str, Mapping[str, Any]], part: str
) -> list[str]:
    others = {row["text"]: row for _, row in _rows(list(again.values()), part)}
    rows = []
    for claim, row in _rows(claims, part):
        rates = f"{row['rate']:g}, {row['against_rate']:g}"
        text = row["text"].replace(row["label"], row["arm"], 1)
        own = [_effect(row["greedy"]), _effect(row["sampled"])]
        second = [_effect(others[row["text"]]["greedy"])] if row["text"] in others else []
        rows.append([claim["name"], text, rates, *own, *(second or [NONE] * bool(again))])
    headings = ["claim", "comparison", "rates", "greedy", "sampled"]
    return markdown_table([*headings, *["second seeds, greedy"] * bool(again)], rows)


def _effect(one: Mapping[str, Any]) -> str:
    p = min(one["p_holds"], one["p_fails"])
    return (
        f"**{one['outcome']}** {one['mean']:+.3f} ({interval(one['low'], one['high'])}), p {p:.2g}"
    )


def _by_rate(found: Mapping[str, Any]) -> list[str]:
    names, rows, shown = [f"{rate:g}" for rate in found["rates"]], [], set()
    for part in ("core", "extensions"):
        for claim, row in _rows(found["claims"], part):
            what = f"{row['measure']} of {row['label']} - {row['against']}, {row['regime']}"
            if row["by_rate"] and (claim["name"], what) not in shown:
                shown.add((claim["name"], what))
                texts = [
                    "; ".join(
                        f"{at[kind][0]:+.3f} ({interval(*at[kind][1:])})" for kind in sorted(at)
                    )
                    if (at := row["by_rate"].get(name))
                    else NONE
                    for name in names
                ]
                rows.append([claim["name"], what, *texts])
    return markdown_table(["claim", "greedy; sampled", *names], rows)


def _power(power: Sequence[Mapping[str, Any]]) -> list[str]:
    rows = [
        [row["claim"], row["text"], f"{row['spread']:.3f}", f"{row['pooled']:.3f}"]
        + [f"{row['visible']:.3f}", "yes" if row["asked"] else "**no**"]
        for row in power
    ]
    return markdown_table(("claim", "comparison", "spread", "pooled", "visible", "asked"), rows)


def _regime(found: Mapping[str, Any], table: Table, regime: str) -> str:
    rows = [row for row in found["headlines"] if row["regime"] == regime]
    shown = [
        {"algorithm": row["algorithm"], "regime": rate, "ends": ends}
        for row in rows
        for rate, ends in row["by_rate"].items()
    ]
    best = markdown_table(BEST, [_best(table, row) for row in rows])
    axis = cross_table(shown, lambda one: _ends(one["ends"]))
    return page(REGIME, regime=regime, best_table=best, axis_table=axis)


def _ends(ends: Mapping[str, Sequence[float]]) -> str:
    lost, (greedy, sampled) = ends["collapsed"], (np.mean(ends[kind]) for kind in CURVES)
    return f"{greedy:.3f} ({sampled:.3f}); {sum(lost)}/{len(lost)}"


def _best(table: Table, row: Mapping[str, Any]) -> list[str]:
    """An algorithm's row: at its best rate with the judged seeds, and over all rates."""
    own, rate, tuning = (row["regime"], row["algorithm"]), row["best"], table.tuning_seeds
    best, alike = table.values(*own, rate, "greedy", "final", tuning), []
    for other in table.rates if len(tuning) > 1 else ():
        behind = estimate(best - table.values(*own, other, "greedy", "final", tuning))
        alike += [f"{other:g}"] * (other != rate and behind.low <= 0 <= behind.high)
    judged, stable = row["judged"], sorted(row["largest_stable"])
    middle, low, high = (f"{stable[at]:g}" for at in ((len(stable) - 1) // 2, 0, -1))
    return [
        *(row["algorithm"], f"{rate:g}", *(_mean_of(np.array(judged[kind])) for kind in CURVES)),
        f"{sum(judged['collapsed'])}/{len(judged['collapsed'])}",
        *(_mean_of(best), ", ".join(alike) or NONE),
        f"{middle} ({low} to {high}) of {len(stable)}",
    ]


def _mean_of(values: np.ndarray) -> str:
    """A mean with its interval, which fewer than two values do not have."""
    if len(values) < 2:
        return f"{values[0]:.3f}" if len(values) else NONE
    found = estimate(values)
    return f"{found.mean:.3f} ({interval(found.low, found.high, '.3f')})"


# ---- figures


def forest(claims: Sequence[Mapping[str, Any]]) -> bytes:
    """Draws every comparison of the cores with its interval, its threshold and its outcome, by
    greedy accuracy, and below it by sampled accuracy, thinner.

    Returns:
        PNG bytes.
    """
    from matplotlib.figure import Figure

    count = sum(1 + len(claim["core"]) for claim in claims)
    figure = Figure(figsize=(13, 1.2 + 0.26 * count), layout="constrained")
    axis = figure.add_subplot()
    height, names = 0, {}
    bold = {"fontsize": 9, "fontweight": "bold", "va": "center"}
    for claim in claims:
        heading = f"{claim['name']}: {claim['verdict']['greedy']}"
        axis.text(0, height, heading, **bold, transform=axis.get_yaxis_transform())
        for row in claim["core"]:
            height += 1
            for kind, offset, width in (("greedy", 0.0, 2.4), ("sampled", 0.28, 1.0)):
                one = row[kind]
                at, look = height + offset, {"color": COLOURS[one["outcome"]]}
                axis.plot([one["low"], one["high"]], [at, at], **look, linewidth=width)
                axis.plot(one["mean"], at, "o", **look, markersize=1.6 * width)
            limit = row["greedy"]["limit"]
            for x in (limit, -limit) if row["relation"] == "within" else (limit,):
                axis.plot([x, x], [height - 0.4, height + 0.4], color="black", linewidth=1)
            names[height] = row["text"]
        height += 1
    axis.set_yticks(list(names), list(names.values()), fontsize=7)
    axis.set_ylim(height, -1)
    axis.grid(axis="x", alpha=0.3)
    axis.set_xlabel(
        "mean difference over seeds with its 95% interval, greedy and (thin) sampled\n"
        "the black mark is the threshold",
        fontsize=8,
    )
    axis.set_title(
        "The paper's comparisons on a tiny model (green holds, red fails, grey is open)",
        fontsize=10,
        loc="left",
    )
    return png(figure)


def axes(found: Mapping[str, Any]) -> bytes:
    """Draws final greedy accuracy by learning rate, a panel a regime: the mean of the tuning seeds
    with its standard error.

    Returns:
        PNG bytes.
    """
    from matplotlib.figure import Figure

    rows = found["headlines"]
    regimes = list(dict.fromkeys(row["regime"] for row in rows))
    lines = styles(list(dict.fromkeys(row["algorithm"] for row in rows)))
    figure = Figure(figsize=(5.2 * min(3, len(regimes)), 5.0 * -(-len(regimes) // 3)))
    figure.set_layout_engine("constrained")
    for number, regime in enumerate(regimes, start=1):
        axis = figure.add_subplot(-(-len(regimes) // 3), min(3, len(regimes)), number)
        for row in (row for row in rows if row["regime"] == regime):
            ends = [np.array(one["greedy"]) for one in row["by_rate"].values()]
            error = [x.std(ddof=1) / np.sqrt(x.size) if x.size > 1 else 0.0 for x in ends]
            look = {"linewidth": 1.3, "markersize": 3, "marker": "o", "elinewidth": 0.8}
            where = found["rates"], [x.mean() for x in ends]
            label = row["algorithm"]
            axis.errorbar(*where, error, **look, **lines[label], label=label)
        axis.set(title=regime, xlabel="learning rate", xscale="log", ylim=(0, 1.02))
        axis.grid(alpha=0.3)
    figure.axes[0].set_ylabel("final greedy accuracy (mean ± standard error)")
    legends = (one.get_legend_handles_labels() for one in figure.axes)
    known = {name: handle for pair in legends for handle, name in zip(*pair, strict=True)}
    figure.legend(known.values(), known, loc="outside lower center", ncols=4, fontsize=8)
    return png(figure)
