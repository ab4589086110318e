"""From a study's cells to its tuning, its power and its verdicts: functions of the content of
verdicts.json alone.

Tuning and power use the tuning seeds, which are never judged. A comparison holds, or fails, if the
t test on one side says so with the number of its claim's comparisons accounted for (Holm, 1979):
those of the core among themselves, and the extensions among themselves. The verdict of a claim goes
by its core.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Float

from research.claims.claims import (
    CEILING,
    DISTANCE,
    MARGIN,
    Claim,
    Comparison,
    arms,
)
from research.curve_statistics import COLLAPSED, CURVES, Kind, stable_rates
from research.statistics import POWER, SIDE, chance, estimate, holm, visible

HOLDS, FAILS, OPEN, NOT_ASKED = "holds", "fails", "open", "not asked"
REPRODUCES, PARTLY, DOES_NOT = "reproduces", "in part", "does not"
Values = Float[np.ndarray, " seeds"]
Sides = tuple[tuple[str, float], tuple[str, float]]  # algorithm and rate, twice


@dataclasses.dataclass(frozen=True)
class Table:
    """The cells of a study, with the choices that tuning makes from them.

    Args:
        cells: as verdicts.json has them: regime, algorithm, rate, seeds and, by kind of accuracy
            and measure, a value per seed.
        rates: the axis of learning rates, rising.
        tuning_seeds: the seeds that tuning goes by.
    """

    cells: Sequence[Mapping[str, Any]]
    rates: Sequence[float]
    tuning_seeds: Sequence[int]

    @cached_property
    def _index(self) -> dict[tuple[str, str, float], Mapping[str, Any]]:
        return {(cell["regime"], cell["algorithm"], cell["rate"]): cell for cell in self.cells}

    def cell(self, regime: str, label: str, rate: float) -> Mapping[str, Any]:
        """Returns a cell; one without runs has no seeds."""
        return self._index.get((regime, label, rate), {"seeds": []})

    def values(
        self, regime: str, label: str, rate: float, kind: Kind, measure: str, seeds: Sequence[int]
    ) -> Values:
        """Returns a measure of the cell's runs with these seeds.

        Raises:
            KeyError: one of the runs is missing.
        """
        cell = self.cell(regime, label, rate)
        known = dict(zip(cell["seeds"], cell[kind][measure] if seeds else (), strict=False))
        return np.array([known[seed] for seed in seeds], float)

    def best(self, regime: str, labels: Sequence[str], measure: str = "final") -> tuple[str, float]:
        """Returns the algorithm, of several, and the learning rate with the highest mean of a
        measure of greedy accuracy over the tuning seeds; of equals the first, with the smallest
        rate.
        """
        pairs = [(label, rate) for label in labels for rate in self.rates]
        seeds = self.tuning_seeds
        return max(
            pairs, key=lambda pair: self.values(regime, *pair, "greedy", measure, seeds).mean()
        )

    def points(self, comparison: Comparison) -> Sides:
        """Returns for both sides of a comparison the algorithm and the rate it is judged at."""
        one, regime = comparison, comparison.regime
        first = self.best(regime, arms(one.label) if one.at == "coefficient" else (one.label,))
        second = self.best(regime, (one.against,))
        if one.at in ("same", "fastest"):
            first = (one.label, second[1])
        if one.at == "fastest":
            second = self.best(regime, (one.against,), "early")
        return first, second

    def both(
        self, comparison: Comparison, sides: Sides, kind: Kind, measure: str, seeds: Sequence[int]
    ) -> tuple[Values, Values]:
        """Returns a measure of both sides of a comparison, each with a value per seed."""
        return (
            self.values(comparison.regime, *sides[0], kind, measure, seeds),
            self.values(comparison.regime, *sides[1], kind, measure, seeds),
        )

    def difference(
        self, comparison: Comparison, sides: Sides, kind: Kind, seeds: Sequence[int]
    ) -> Values:
        """Returns the comparison's difference for each seed."""
        first, second = self.both(comparison, sides, kind, comparison.measure, seeds)
        return first - second


def tuned(table: Table) -> list[dict[str, Any]]:
    """Returns of every algorithm in every regime the best rate, by the final greedy accuracy of the
    tuning seeds, with its mean and interval (of two seeds or more), and the fastest, by that of the
    first quarter.
    """
    rows, seeds = [], table.tuning_seeds
    for regime, label in dict.fromkeys((one["regime"], one["algorithm"]) for one in table.cells):
        best, fastest = (table.best(regime, (label,), name)[1] for name in ("final", "early"))
        values = table.values(regime, label, best, "greedy", "final", seeds)
        found = dataclasses.astuple(estimate(values))[:3] if len(seeds) > 1 else (values.mean(),)
        row = {"regime": regime, "algorithm": label, "best": best, "fastest": fastest}
        rows.append(row | {"final": [round(float(x), 6) for x in found]})
    return rows


def headlines(table: Table, seeds: Sequence[int]) -> list[dict[str, Any]]:
    """Returns of every algorithm in every regime its runs at its best rate with the judged seeds,
    its runs at each rate with the tuning seeds, and of each of these the largest stable rate: the
    last before the first at which a run collapses, 0 if there is none.

    Runs are given by final accuracy, greedy and sampled, and 1 or 0 for a collapse, with a value
    per seed; without any where not all judged seeds ran at the best rate.
    """
    rows = []
    for regime, label in dict.fromkeys((one["regime"], one["algorithm"]) for one in table.cells):
        best = table.best(regime, (label,))[1]
        ran = set(seeds) <= set(table.cell(regime, label, best)["seeds"])
        tuning = [_ends(table, regime, label, rate, table.tuning_seeds) for rate in table.rates]
        stable = map(stable_rates, zip(*(one["collapsed"] for one in tuning), strict=True))
        rows.append(
            {"regime": regime, "algorithm": label, "best": best}
            | {"judged": _ends(table, regime, label, best, seeds if ran else ())}
            | {"by_rate": {f"{r:g}": one for r, one in zip(table.rates, tuning, strict=True)}}
            | {"largest_stable": [(0.0, *table.rates)[count] for count in stable]}
        )
    return rows


def _ends(
    table: Table, regime: str, label: str, rate: float, seeds: Sequence[int]
) -> dict[str, list[float]]:
    cell = regime, label, rate
    lost = table.values(*cell, "greedy", "drawdown", seeds)
    ends = {kind: table.values(*cell, kind, "final", seeds).tolist() for kind in CURVES}
    return ends | {"collapsed": [int(share > COLLAPSED) for share in lost]}


def power(table: Table, claims: Sequence[Claim], count: int) -> list[dict[str, Any]]:
    """Returns for every comparison, from the spreads of the tuning seeds, the distance from its
    threshold that the judged seeds find four times in five, and if it is asked: where that is no
    farther than `DISTANCE`.

    The spread is that of the paired differences in greedy accuracy, pooled over the comparisons of
    a claim's core (or extensions) with the same measure; the level is that of the first step of
    Holm's correction. "Within" needs both of its sides at once, each nine times in ten.

    Args:
        table: with the runs of the tuning seeds, two or more.
        claims: with the comparisons.
        count: seeds that are judged.
    """
    rows = []
    for claim in claims:
        for part in (claim.core, claim.extensions):
            spreads = {one: _spread(table, one) for one in part}
            for one in part:
                alike = [spreads[other] for other in part if other.measure == one.measure]
                pooled = float(np.sqrt(np.mean(np.square(alike))))
                found = (POWER + 1) / 2 if one.relation == "within" else POWER
                distance = visible(pooled, count, SIDE / len(part), found)
                rows.append(
                    {"claim": claim.name, "text": one.text}
                    | {"spread": round(spreads[one], 6), "pooled": round(pooled, 6)}
                    | {"visible": round(distance, 6), "asked": distance <= DISTANCE[one.measure]}
                )
    return rows


def _spread(table: Table, comparison: Comparison) -> float:
    sides = table.points(comparison)
    return float(table.difference(comparison, sides, "greedy", table.tuning_seeds).std(ddof=1))


def judge(
    table: Table, claim: Claim, seeds: Sequence[int], not_asked: Sequence[str] = ()
) -> dict[str, Any]:
    """Returns a claim with its verdicts and comparisons, as verdicts.json has it.

    Args:
        table: with all runs.
        claim: with its comparisons.
        seeds: two or more, with runs of every comparison.
        not_asked: texts of comparisons that are measured and not judged.

    Raises:
        KeyError: a run is missing.
        ValueError: for fewer than two seeds, or a value that is not finite.
    """
    parts = {
        name: [_measured(table, one, seeds) for one in part]
        for name, part in (("core", claim.core), ("extensions", claim.extensions))
    }
    for rows in parts.values():
        asked = [row for row in rows if row["text"] not in not_asked]
        for kind in CURVES:
            holds = holm([row[kind]["p_holds"] for row in asked])
            fails = holm([row[kind]["p_fails"] for row in asked])
            for row in rows:
                row[kind]["outcome"] = NOT_ASKED
            for row, right, wrong in zip(asked, holds, fails, strict=True):
                row[kind]["outcome"] = HOLDS if right else FAILS if wrong else OPEN
    verdicts = {kind: verdict([row[kind]["outcome"] for row in parts["core"]]) for kind in CURVES}
    return {"name": claim.name, "statement": claim.statement, "verdict": verdicts} | parts


def verdict(outcomes: Sequence[str]) -> str:
    """Returns a claim's verdict from the outcomes of its core: it reproduces where all that is
    asked holds, does in part where something holds and something fails, does not where something
    fails and nothing holds, and is open otherwise.
    """
    asked = [one for one in outcomes if one != NOT_ASKED]
    if not asked:
        return NOT_ASKED
    if FAILS in asked:
        return PARTLY if HOLDS in asked else DOES_NOT
    return REPRODUCES if set(asked) == {HOLDS} else OPEN


def chances(
    comparison: Comparison, values: Values, ends: Sequence[Values]
) -> tuple[float, float, float]:
    """Returns the threshold, the chance of such a result if the truth is on its wrong side, and
    that if it is on the right side.

    Args:
        comparison: with the relation.
        values: the difference for each seed.
        ends: the final accuracy of each side, for "beats".
    """
    limit = comparison.threshold
    if comparison.relation == "within":
        above, below = chance(values, -limit), chance(-values, -limit)
        outside = min(chance(values, limit), chance(-values, limit))
        return limit, max(above, below), min(1.0, 2 * outside)
    if comparison.relation == "beats" and min(end.mean() for end in ends) >= CEILING:
        limit = -MARGIN
    return limit, chance(values, limit), chance(-values, -limit)


def _measured(table: Table, comparison: Comparison, seeds: Sequence[int]) -> dict[str, Any]:
    """A comparison with its figures for both kinds of accuracy: where it is judged, and by the
    tuning seeds with both sides at each rate.
    """
    one, sides = comparison, table.points(comparison)
    row = dataclasses.asdict(one) | {"text": one.text}
    row |= {"arm": sides[0][0], "rate": sides[0][1], "against_rate": sides[1][1]}
    for kind in CURVES:
        values = table.difference(one, sides, kind, seeds)
        ends = table.both(one, sides, kind, "final", seeds) if one.relation == "beats" else ()
        limit, p_holds, p_fails = chances(one, values, ends)
        row[kind] = dataclasses.asdict(estimate(values)) | {"limit": limit}
        row[kind] |= {"p_holds": p_holds, "p_fails": p_fails}
    row["by_rate"] = {}
    tuning = table.tuning_seeds
    for rate in table.rates if len(tuning) > 1 else ():
        pair = (one.label, rate), (one.against, rate)
        found = {kind: estimate(table.difference(one, pair, kind, tuning)) for kind in CURVES}
        row["by_rate"][f"{rate:g}"] = {
            kind: [own.mean, own.low, own.high] for kind, own in found.items()
        }
    return row
