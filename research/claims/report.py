"""Tables and figures of `python -m research.claims`, from its finished runs alone."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from research.claims.analysis import (
    At,
    Difference,
    Level,
    Result,
    Results,
    side,
    verdict,
)
from research.claims.claims import ARMS, CLAIMS, RATES, SCAN_FROM, STALE, Claim
from research.curve_statistics import COLLAPSED, CURVES, drawdown, final
from research.entrants import ASYMRE, GRPO, KNOWN, NARROW, REINFORCE, WEIGHT, WIDE
from research.report_parts import interval, markdown_table, png, styles, write_files
from research.statistics import Estimate, estimate

AT: dict[At, str] = {"common": "one learning rate", "own": "own best rate"}
MEASURED = {
    "final": "accuracy at the end (last four evaluations)",
    "mean": "mean accuracy over the run",
    "early": "mean accuracy over the first quarter",
}
LINES = styles([entry.label for entry in KNOWN])
# Panels of the curves: heading, name in a result, evaluated or the mean between evaluations.
CURVE_PANELS = (
    ("greedy accuracy", "greedy_accuracy", True),
    ("sampled accuracy", "accuracy", True),
    ("KL to the start, nats", "kl", True),
    ("clipped tokens", "clip_fraction", False),
)


def write(output: Path, results: Results) -> None:
    """Writes claims.md and its figures into the folder."""
    texts = [
        *("# The paper's claims, measured", block("summary", results), block("start", results)),
        *(f"## {claim.name}\n\n{claim_text(claim, results)}" for claim in _asked(results)),
        *(f"## {regime}\n\n{block(f'levels {regime}', results)}" for regime in _regimes(results)),
    ]
    pictures = {f"{name}.png": draw() for name, draw in figures(results).items()}
    write_files(output, {"claims.md": "\n\n".join(texts) + "\n"} | pictures)


def _asked(results: Results) -> list[Claim]:
    """Returns the claims that have runs."""
    return [claim for claim in CLAIMS if any(differences(claim, results, at) for at in AT)]


def _regimes(results: Results) -> dict[str, None]:
    return dict.fromkeys(regime for regime, _, _ in results.cells)


def block(name: str, results: Results) -> str:
    """Returns a part of a page in Markdown.

    Args:
        name: "summary", "start", "claim C1" to "claim C7", or "levels" or "rates" and a regime.
        results: of the study.
    """
    kind, _, of = name.partition(" ")
    if kind == "claim":
        (claim,) = (one for one in CLAIMS if one.name == of)
        return claim_text(claim, results)
    lines = {"summary": summary, "start": start}.get(kind)
    if lines is not None:
        return "\n".join(lines(results))
    return "\n".join({"levels": levels, "rates": rates}[kind](of, results))


# ---- tables


def summary(results: Results) -> list[str]:
    """Returns the table of all claims."""
    rows = []
    for claim in CLAIMS:
        verdicts = [_verdict(claim, results, at) for at in AT]
        rows.append([f"{claim.name} {claim.statement}", *verdicts])
    return markdown_table(["claim", *(f"at {text}" for text in AT.values())], rows)


def _verdict(claim: Claim, results: Results, at: At) -> str:
    found = differences(claim, results, at)
    if not found:
        return "not run"
    counts = [sum(side(one.values[kind]) == claim.expected for one in found) for kind in CURVES]
    greedy, sampled = counts
    return f"{verdict(claim, found)}: {greedy} of {len(found)} greedy, {sampled} sampled"


def start(results: Results) -> list[str]:
    """Returns the table of the warm starts."""
    first = {}
    for runs in results.cells.values():
        first |= {seed: result for seed, result in runs.items() if seed < SCAN_FROM}
    names = {"greedy_accuracy": "greedy accuracy", "accuracy": "sampled accuracy"}
    rows = []
    for key, name in (names | {"pass_at_8": "pass@8"}).items():
        values = [result[key][0] for result in first.values()]
        shown = (np.mean(values), min(values), max(values))
        rows.append([name, *(f"{value:.3f}" for value in shown)])
    return markdown_table((f"{len(first)} warm starts", "mean", "least", "largest"), rows)


def differences(
    claim: Claim, results: Results, at: At, pairs: Sequence[tuple[str, str]] | None = None
) -> list[Difference]:
    """Returns the differences of a claim's pairs, the paper's if none are given, in its regimes."""
    chosen = claim.pairs if pairs is None else pairs
    found = [
        results.difference(regime, *pair, claim.measure, at)
        for regime in claim.regimes
        for pair in chosen
    ]
    return [one for one in found if one is not None]


def claim_text(claim: Claim, results: Results) -> str:
    """Returns a claim's sentence and tables."""
    parts = [sentence(claim, results)]
    for at, text in AT.items():
        found = differences(claim, results, at, (*claim.pairs, *claim.further))
        heading = f"Difference of the {MEASURED[claim.measure]}, {text}:"
        parts.append("\n".join([heading, "", *difference_table(found)]))
    return "\n\n".join(parts)


def sentence(claim: Claim, results: Results) -> str:
    """Returns in words how many of the paper's comparisons lie where the claim has them."""
    place = {1: "above zero", 0: "around zero", -1: "below zero"}
    parts = []
    for at, text in AT.items():
        found = differences(claim, results, at)
        if not found:
            continue
        counts = [
            f"{sum(side(one.values[kind]) == claim.expected for one in found)} {kind}"
            for kind in CURVES
        ]
        means = [one.values[kind].mean for one in found for kind in CURVES]
        part = (
            f"at {text} **{verdict(claim, found)}**: of {len(found)} intervals"
            f" {' and '.join(counts)} are {place[claim.expected]} (means {min(means):+.3f} to"
            f" {max(means):+.3f})"
        )
        if claim.lost:
            lost = sum(side(one.lost) == claim.lost for one in found)
            part += f", and of those of the accuracy lost {lost} are {place[claim.lost]}"
        parts.append(part)
    text = f"*{claim.statement}*: {'; '.join(parts)}."
    return textwrap.fill(text, 100, break_on_hyphens=False)


def difference_table(found: Iterable[Difference]) -> list[str]:
    """Returns a table of differences."""
    rows = [
        [
            one.regime,
            f"{one.first} − {one.second}",
            ", ".join(dict.fromkeys(_rates(rates) for rates in one.rates)),
            *(_effect(one.values[kind]) for kind in CURVES),
            _effect(one.lost),
            f"{one.collapsed[0]}, {one.collapsed[1]} of {one.seeds}",
        ]
        for one in found
    ]
    headings = ("regime", "difference", "rates", *CURVES, "share lost", "collapsed")
    return markdown_table(headings, rows)


def levels(regime: str, results: Results) -> list[str]:
    """Returns the table of where each algorithm of a regime ends, at the common rate and at its
    own, the best at its own rate first.
    """
    labels = list(dict.fromkeys(label for of, label, _ in results.cells if of == regime))
    known = {label: [results.level(regime, label, at) for at in AT] for label in labels}

    def rank(label: str) -> float:
        own = known[label][1]
        return -own.final["greedy"].mean if own else 0.0

    rows = [
        [label, *(cell for level in known[label] for cell in _level(level))]
        for label in sorted(labels, key=rank)
        if any(known[label])
    ]
    columns = ("rate", "greedy", "sampled", "collapsed")
    if all(own == common for common, own in known.values()):
        return markdown_table(["algorithm", *columns], [row[:5] for row in rows])
    return markdown_table(["algorithm", *columns, *(f"own {name}" for name in columns)], rows)


def _level(level: Level | None) -> list[str]:
    if level is None:
        return [""] * 4
    ends = [_mean(level.final[kind]) for kind in CURVES]
    return [_rates(level.rates), *ends, f"{level.collapsed} of {level.seeds}"]


def rates(regime: str, results: Results) -> list[str]:
    """Returns the table of final accuracy by rate: of the scan's seeds, greedy and in brackets
    sampled, and how many of the runs collapsed.
    """
    labels = [label for label in ARMS[regime] if _scanned(results, regime, label)]
    rows = []
    for label in labels:
        scanned = _scanned(results, regime, label)
        rows.append([label, *(_ends(scanned[rate]) for rate in RATES)])
    return markdown_table(["algorithm", *(_rates((rate,)) for rate in RATES)], rows)


def _scanned(results: Results, regime: str, label: str) -> dict[float, list[Result]]:
    cells = {rate: results.cells.get((regime, label, rate), {}) for rate in RATES}
    found = {
        rate: [result for seed, result in runs.items() if seed >= SCAN_FROM]
        for rate, runs in cells.items()
    }
    return found if all(found.values()) else {}


def _ends(runs: Sequence[Result]) -> str:
    greedy, sampled = (np.mean([final(run, kind) for run in runs]) for kind in CURVES)
    lost = sum(drawdown(run, "greedy") > COLLAPSED for run in runs)
    return f"{greedy:.3f} ({sampled:.3f}); {lost}/{len(runs)}"


def _rates(values: Sequence[float]) -> str:
    exponents = [math.floor(math.log10(value)) for value in values]
    pairs = zip(values, exponents, strict=True)
    return " or ".join(f"{value / 10.0**exponent:g}e{exponent}" for value, exponent in pairs)


def _effect(one: Estimate) -> str:
    mark = "**" if side(one) else ""
    return f"{mark}{one.mean:+.3f}{mark} ({interval(one.low, one.high)})"


def _mean(one: Estimate) -> str:
    return f"{one.mean:.3f} ({interval(one.low, one.high, '.3f')})"


# ---- figures


def figures(results: Results) -> dict[str, Callable[[], bytes]]:
    """Returns by name what draws each figure, as PNG bytes."""
    drawn: dict[str, Callable[[], bytes]] = {"overview": lambda: overview(results)}
    if any(seed >= SCAN_FROM for runs in results.cells.values() for seed in runs):
        drawn["rates"] = lambda: rate_panels(results)
    for claim in _asked(results):
        drawn[claim.name.lower()] = lambda claim=claim: claim_curves(claim, results)
    return drawn


def claim_curves(claim: Claim, results: Results) -> bytes:
    """Draws the algorithms of a claim: a row a regime and choice of rates, a column a curve."""
    labels = list(dict.fromkeys(label for pair in claim.pairs for label in pair))
    rows = [(regime, at) for regime in claim.regimes for at in AT]
    figure = _figure(len(rows), len(CURVE_PANELS), 2.5)
    panels = np.reshape(figure.axes, (len(rows), len(CURVE_PANELS)))
    for (regime, at), axes in zip(rows, panels, strict=True):
        for axis, (heading, name, evaluated) in zip(axes, CURVE_PANELS, strict=True):
            _curves(axis, results, regime, labels, at, name, evaluated)
            if axis in panels[0]:
                axis.set_title(heading, fontsize=11)
            if axis in panels[-1]:
                axis.set_xlabel("step")
        axes[0].set_ylabel(f"{regime}\n{AT[at]}", fontsize=11)
    return _finished(figure)


def overview(results: Results) -> bytes:
    """Draws greedy accuracy with stale samples: a row a regime, a column a choice of rates."""
    labels = (REINFORCE, GRPO, NARROW, WIDE, ASYMRE, WEIGHT)
    figure = _figure(1, 2 * len(STALE), 3.2)
    places = [(regime, at) for regime in STALE for at in AT]
    for axis, (regime, at) in zip(figure.axes, places, strict=True):
        _curves(axis, results, regime, labels, at, "greedy_accuracy", True)
        axis.set_title(f"{regime}, {AT[at]}", fontsize=10)
    figure.axes[0].set_ylabel("greedy accuracy", fontsize=11)
    return _finished(figure)


def _curves(
    axis: Any,
    results: Results,
    regime: str,
    labels: Sequence[str],
    at: At,
    name: str,
    evaluated: bool,
) -> None:
    """Draws the mean of each algorithm's curve with its 95% interval over seeds."""
    for label in labels:
        seeds = results.paired(regime, (label,), at)
        if len(seeds) < 2:
            continue
        curves = np.array([run[name] for run in results.runs(regime, label, at, seeds)], float)
        points = [estimate(column) for column in curves.T]
        steps = (np.arange(len(points)) + (0 if evaluated else 0.5)) * results.every
        axis.plot(steps, [one.mean for one in points], linewidth=1.4, **LINES[label], label=label)
        low = [one.low for one in points]
        high = [one.high for one in points]
        axis.fill_between(steps, low, high, color=LINES[label]["color"], alpha=0.15, linewidth=0)
    axis.set_ylim(0, 1 if "accuracy" in name else None)


def rate_panels(results: Results) -> bytes:
    """Draws final greedy accuracy by learning rate, of the scan's seeds: a panel a regime, two with
    stale samples.
    """
    panels = []
    for regime, labels in ARMS.items():
        scanned = [label for label in labels if _scanned(results, regime, label)]
        half = -(-len(scanned) // 2) if regime in STALE else len(scanned)
        panels += [(regime, part) for part in (scanned[:half], scanned[half:]) if part]
    figure = _figure(-(-len(panels) // 4), 4, 2.9)
    for axis, (regime, labels) in zip(figure.axes, panels, strict=False):
        for label in labels:
            runs = _scanned(results, regime, label).values()
            means = [np.mean([final(run, "greedy") for run in at_rate]) for at_rate in runs]
            look = {"marker": "o", "markersize": 3, "linewidth": 1.3} | LINES[label]
            axis.plot(RATES, means, **look, label=label)
        axis.set(xscale="log", ylim=(0, 1), xlabel="learning rate")
        axis.set_title(regime, fontsize=11)
    for axis in figure.axes[::4]:
        axis.set_ylabel("final greedy accuracy", fontsize=11)
    for axis in figure.axes[len(panels) :]:
        axis.set_axis_off()
    return _finished(figure)


def _figure(rows: int, columns: int, height: float) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 0.9 + height * rows), layout="constrained")
    figure.subplots(rows, columns)
    for axis in figure.axes:
        axis.grid(alpha=0.3)
        axis.tick_params(labelsize=9)
    return figure


def _finished(figure: Any) -> bytes:
    """Adds the legend of all panels; returns PNG bytes."""
    known = {}
    for axis in figure.axes:
        handles, labels = axis.get_legend_handles_labels()
        known |= dict(zip(labels, handles, strict=True))
    figure.legend(known.values(), known, loc="outside upper center", ncols=4, fontsize=10)
    return png(figure, dpi=90)
