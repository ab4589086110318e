"""From finished runs to the numbers of the tables: means, differences and their intervals.

A difference is taken seed by seed, with every algorithm at the common rate, or each at its own best
rate. The best rate of an algorithm is chosen from those that all seeds ran at, by final greedy
accuracy, on one half of the seeds for the other half, and the other way round: no run takes part in
the choice of the rate that it is counted for.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import Float

from grre_jax.config import Regime
from research.claims.claims import (
    COMMON,
    FINITE,
    REGIMES,
    SCAN_FROM,
    SEEDS,
    STORED,
    Cell,
    Claim,
)
from research.curve_statistics import COLLAPSED, CURVES, MEASURES, Kind
from research.statistics import Estimate, estimate

Result = Mapping[str, list[float]]
Values = Float[np.ndarray, " seeds"]
At = Literal["common", "own"]


@dataclasses.dataclass(frozen=True)
class Difference:
    """One algorithm less another.

    Attributes:
        regime, first, second: what is compared.
        rates: at which the two ran; several if the halves of the seeds choose differently.
        seeds: number of pairs.
        values: difference of the measure with its interval, by kind of accuracy.
        lost: difference of the share of its best greedy accuracy that a run lost.
        collapsed: runs of each that lost over half of it.
    """

    regime: str
    first: str
    second: str
    rates: tuple[tuple[float, ...], tuple[float, ...]]
    seeds: int
    values: Mapping[Kind, Estimate]
    lost: Estimate
    collapsed: tuple[int, int]


@dataclasses.dataclass(frozen=True)
class Level:
    """Where an algorithm ends in a regime.

    Attributes:
        regime, label: what ran.
        rates: at which it ran.
        seeds: number of runs.
        final: accuracy at the end with its interval, by kind.
        lost: share of its best greedy accuracy that a run lost.
        collapsed: runs that lost over half of it.
    """

    regime: str
    label: str
    rates: tuple[float, ...]
    seeds: int
    final: Mapping[Kind, Estimate]
    lost: Estimate
    collapsed: int


class Results:
    """Finished runs by regime, algorithm and rate.

    Args:
        records: lines of runs.jsonl.

    Attributes:
        cells: results by cell and seed.
        every: steps between two evaluations.
    """

    def __init__(self, records: Sequence[Mapping[str, Any]]):
        names = {
            (regime, STORED if name == FINITE else 0): name for name, regime in REGIMES.items()
        }
        self.cells: dict[Cell, dict[int, Result]] = {}
        for record in records:
            run = record["run"]
            regime = names[Regime(**run["regime"]), run["stored"]]
            cell = (regime, run["algorithm"], run["learning_rate"])
            self.cells.setdefault(cell, {})[run["seed"]] = record["result"]
            self.every = run["steps"] // (len(record["result"]["accuracy"]) - 1)

    @classmethod
    def read(cls, path: Path) -> Results:
        """Reads a runs.jsonl."""
        return cls([json.loads(line) for line in path.read_text().splitlines()])

    def seeds(self, *cells: Cell) -> list[int]:
        """Returns the seeds that ran in all of the cells, without those of the scan."""
        common = set.intersection(*({*self.cells.get(cell, ())} for cell in cells))
        return sorted(seed for seed in common if seed < SCAN_FROM)

    def rates(self, regime: str, label: str) -> list[float]:
        """Returns the rates that may be an algorithm's own: those that all seeds ran at."""
        cells = [cell for cell in self.cells if cell[:2] == (regime, label)]
        counts = {rate: len(self.seeds((regime, label, rate))) for _, _, rate in cells}
        least = max(2, min(SEEDS, max(counts.values(), default=0)))
        return sorted(rate for rate, count in counts.items() if count >= least)

    def measured(self, cell: Cell, seeds: Sequence[int], kind: Kind, measure: str) -> Values:
        """Returns a measure of a cell's runs, a value per seed."""
        return np.array([MEASURES[measure](self.cells[cell][seed], kind) for seed in seeds])

    def chosen(self, regime: str, label: str, at: At, seeds: Sequence[int]) -> dict[int, float]:
        """Returns the rate of each seed's run: the common one, or the best of the seeds of the
        other half, of which one half has every second seed.
        """
        if at == "common":
            return dict.fromkeys(seeds, COMMON[regime])
        rates = {}
        for half in (0, 1):
            others = seeds[1 - half :: 2]
            means = {
                rate: self.measured((regime, label, rate), others, "greedy", "final").mean()
                for rate in self.rates(regime, label)
            }
            rates |= dict.fromkeys(seeds[half::2], max(means, key=means.__getitem__))
        return rates

    def paired(self, regime: str, labels: Sequence[str], at: At) -> list[int]:
        """Returns the seeds that ran at every rate that `chosen` may choose for the algorithms."""
        cells: list[Cell] = []
        for label in labels:
            rates = [COMMON[regime]] if at == "common" else self.rates(regime, label)
            if not rates:
                return []
            cells += [(regime, label, rate) for rate in rates]
        return self.seeds(*cells)

    def runs(self, regime: str, label: str, at: At, seeds: Sequence[int]) -> list[Result]:
        """Returns the results of the seeds at their chosen rates."""
        rates = self.chosen(regime, label, at, seeds)
        return [self.cells[regime, label, rates[seed]][seed] for seed in seeds]

    def level(self, regime: str, label: str, at: At) -> Level | None:
        """Returns where an algorithm ends; None without two runs."""
        seeds = self.paired(regime, (label,), at)
        if len(seeds) < 2:
            return None
        runs = self.runs(regime, label, at, seeds)
        rates = sorted({*self.chosen(regime, label, at, seeds).values()})
        lost = _each(runs, "greedy", "drawdown")
        final = {kind: estimate(_each(runs, kind, "final")) for kind in CURVES}
        collapsed = int((lost > COLLAPSED).sum())
        return Level(regime, label, tuple(rates), len(seeds), final, estimate(lost), collapsed)

    def difference(
        self, regime: str, first: str, second: str, measure: str, at: At
    ) -> Difference | None:
        """Returns the first algorithm less the second; None without two pairs of runs."""
        seeds = self.paired(regime, (first, second), at)
        if len(seeds) < 2:
            return None
        sides = [self.runs(regime, label, at, seeds) for label in (first, second)]
        rates = [
            tuple(sorted({*self.chosen(regime, label, at, seeds).values()}))
            for label in (first, second)
        ]
        values = {
            kind: estimate(_each(sides[0], kind, measure) - _each(sides[1], kind, measure))
            for kind in CURVES
        }
        lost = [_each(runs, "greedy", "drawdown") for runs in sides]
        collapsed = [int((share > COLLAPSED).sum()) for share in lost]
        return Difference(
            regime=regime,
            first=first,
            second=second,
            rates=(rates[0], rates[1]),
            seeds=len(seeds),
            values=values,
            lost=estimate(lost[0] - lost[1]),
            collapsed=(collapsed[0], collapsed[1]),
        )


def _each(runs: Sequence[Result], kind: Kind, measure: str) -> Values:
    return np.array([MEASURES[measure](run, kind) for run in runs])


def side(value: Estimate) -> int:
    """Returns 1 if an interval lies above 0, -1 if below, and 0 if it holds 0."""
    return int(value.low > 0) - int(value.high < 0)


def verdict(claim: Claim, found: Sequence[Difference]) -> str:
    """Returns "supported", "not supported" or "mixed", by the intervals of the paper's pairs.

    Of a claim that one algorithm is above another it is supported if every interval, greedy and
    sampled, lies on the claimed side of 0, and not supported if none does. Of a claim that two are
    equal it is supported if every interval holds 0, and else mixed: with enough seeds the smallest
    difference leaves 0 out. Where a claim speaks of accuracy that is lost, the intervals of that
    count as well.
    """
    held = [side(one.values[kind]) == claim.expected for one in found for kind in CURVES]
    if claim.lost:
        held += [side(one.lost) == claim.lost for one in found]
    if all(held):
        return "supported"
    return "mixed" if any(held) or not claim.expected else "not supported"
