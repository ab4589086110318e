"""The runs that answer the claims: algorithms, regimes, seeds, learning rates; full and quick."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

from grre_jax.config import Regime
from research.claims.claims import (
    CEILING,
    CLAIMS,
    DISTANCE,
    FINITE,
    MARGIN,
    OFFSET,
    ON_POLICY,
    ONE_PASS,
    REUSED,
    SYNC,
    Claim,
    Comparison,
    arms,
)
from research.claims.judging import Table, power, tuned
from research.curve_statistics import CURVES, MEASURES
from research.entrants import ENTRIES, NARROW, REINFORCE, VARIANTS, WEIGHTED
from research.in_graph.batch import Scale
from research.runs import Entry, Ledger, Run

# With "finite" the initial policy's samples are a few batches that come round again and again; with
# "one pass" every batch is new.
REGIMES: dict[str, Regime] = {
    ON_POLICY: Regime(),
    SYNC: Regime(sync_interval=20),
    OFFSET: Regime(sync_offset=10),
    ONE_PASS: Regime(offline=True),
    FINITE: Regime(offline=True),
    REUSED: Regime(reuse=4),
}
STORED = 4  # batches of "finite"
RATES = (6.25e-5, 1.25e-4, 2.5e-4, 5e-4, 1e-3, 2e-3)  # an octave apart
# Numbers of seeds. With 18 the study of the first task sees every comparison of the cores: what the
# spreads of its tuning runs ask for (`judging.power`).
SEEDS, AGAIN, TUNING = 18, 6, 3
AGAIN_FROM, TUNING_FROM = 5_000, 20_000  # added to the first judged seed
# All claims are asked of the first task, these of another one.
FIRST_TASK, SECOND_CLAIMS = "arithmetic", ("C2", "C3")


@dataclasses.dataclass(frozen=True)
class Design:
    """A study's comparisons and sizes.

    Args:
        scale: of the runs, with their task.
        claims: those that are judged.
        seeds: numbers of the runs that are judged; each has a warm start of its own.
        again: of the second set, judged by itself.
        tuning: of the runs at every learning rate, which choose rates and give the spreads for the
            power.
        rates: the axis of learning rates, rising by octaves.
        steps: of a run.
        extra: further entries, in the tables alone.
    """

    scale: Scale
    claims: tuple[Claim, ...]
    seeds: tuple[int, ...]
    again: tuple[int, ...]
    tuning: tuple[int, ...]
    rates: tuple[float, ...] = RATES
    steps: int = 240
    extra: tuple[Entry, ...] = ()

    @property
    def entries(self) -> tuple[Entry, ...]:
        """The algorithms that are run."""
        labels = {label for _, label in self.cells}
        known = (*ENTRIES, *WEIGHTED, *VARIANTS, *self.extra)
        return tuple(entry for entry in known if entry.label in labels)

    @property
    def core(self) -> list[tuple[str, str]]:
        """(regime, algorithm) of the cores' comparisons, and of the further entries."""
        found = [side for claim in self.claims for one in claim.core for side in _cells(one)]
        regimes = dict.fromkeys(regime for regime, _ in found)
        found += [(regime, entry.label) for entry in self.extra for regime in regimes]
        return list(dict.fromkeys(found))

    @property
    def cells(self) -> list[tuple[str, str]]:
        """(regime, algorithm) of all comparisons, and of the further entries."""
        further = [one for claim in self.claims for one in claim.extensions]
        return list(dict.fromkeys([*self.core, *(s for one in further for s in _cells(one))]))

    def run(self, regime: str, label: str, rate: float, seed: int) -> Run:
        """One run of a cell."""
        stored = STORED if regime == FINITE else 0
        return Run(label, REGIMES[regime], rate, seed, self.steps, stored=stored)

    def tuning_runs(self) -> list[Run]:
        """Returns the runs of the tuning seeds: every cell at every rate."""
        every = itertools.product(self.tuning, self.cells, self.rates)
        return [self.run(*cell, rate, seed) for seed, cell, rate in every]

    def judged_runs(self, table: Table) -> list[Run]:
        """Returns the runs at the rates at which comparisons are judged, of the core with both sets
        of seeds, of the extensions with the first; and of all in the core at its own best rate.

        Args:
            table: with the runs of the tuning seeds.
        """
        points = [
            (one.regime, *side, seeds)
            for one, seeds in self._judged()
            for side in table.points(one)
        ]
        points += [
            (regime, label, table.best(regime, (label,))[1], self.seeds)
            for regime, label in self.core
        ]
        runs = [self.run(*cell, rate, seed) for *cell, rate, seeds in points for seed in seeds]
        return list(dict.fromkeys(runs))

    @property
    def most_runs(self) -> int:
        """The largest number of runs that the study can take, whatever rates tuning chooses."""
        points = {
            (cell, *chooser, seed)
            for one, seeds in self._judged()
            for cell, *chooser in _choosers(one)
            for seed in seeds
        }
        points |= {(cell, cell, False, seed) for cell in self.core for seed in self.seeds}
        return len(self.tuning_runs()) + len(points)

    def _judged(self) -> list[tuple[Comparison, tuple[int, ...]]]:
        """The comparisons with the seeds that judge them."""
        both = (*self.seeds, *self.again)
        parts = [pair for c in self.claims for pair in ((c.core, both), (c.extensions, self.seeds))]
        return [(one, seeds) for part, seeds in parts for one in part]

    def table(self, ledger: Ledger) -> Table:
        """Returns the finished runs as cells."""
        cells = [
            found
            for cell in self.cells
            for rate in self.rates
            if (found := self._cell(*cell, rate, ledger))["seeds"]
        ]
        return Table(cells, self.rates, self.tuning)

    def _cell(self, regime: str, label: str, rate: float, ledger: Ledger) -> dict[str, Any]:
        seeds = (*self.seeds, *self.again, *self.tuning)
        done = [seed for seed in seeds if self.run(regime, label, rate, seed) in ledger]
        curves = [ledger[self.run(regime, label, rate, seed)] for seed in done]
        return {"regime": regime, "algorithm": label, "rate": rate, "seeds": done} | {
            kind: {
                name: [round(measure(curve, kind), 4) for curve in curves]
                for name, measure in MEASURES.items()
            }
            for kind in CURVES
        }

    def described(self, table: Table) -> dict[str, Any]:
        """Returns what is fixed before a judged run, as design.json has it.

        Args:
            table: with the runs of the tuning seeds.
        """
        compared = {side for claim in self.claims for one in _all(claim) for side in _cells(one)}
        return {
            "task": self.scale.task_name,
            "seeds": list(self.seeds),
            "again": list(self.again),
            "tuning_seeds": list(self.tuning),
            "rates": list(self.rates),
            "steps": self.steps,
            "stored": STORED,
            "margins": {"margin": MARGIN, "ceiling": CEILING, "distance": DISTANCE},
            "comparisons": [
                {"claim": claim.name, "part": part, "text": one.text}
                for claim in self.claims
                for part in ("core", "extensions")
                for one in getattr(claim, part)
            ],
            "tuning": [
                row for row in tuned(table) if (row["regime"], row["algorithm"]) in compared
            ],
            "power": power(table, self.claims, len(self.seeds)) if len(self.tuning) > 1 else [],
        }


def _all(claim: Claim) -> tuple[Comparison, ...]:
    return (*claim.core, *claim.extensions)


def _cells(comparison: Comparison) -> list[tuple[str, str]]:
    """(regime, algorithm) of both sides of a comparison, with each coefficient if it is tuned."""
    labels = (comparison.label,)
    if comparison.at == "coefficient":
        labels = arms(comparison.label)
    own = [(comparison.regime, label) for label in labels]
    return [*own, (comparison.regime, comparison.against)]


def _choosers(comparison: Comparison) -> list[tuple[Any, ...]]:
    """(regime, algorithm) of both sides, each with what decides its rate."""
    first, second = _cells(comparison)[0], _cells(comparison)[-1]
    decides = {"own": first, "coefficient": (first, "coefficient")}.get(comparison.at, second)
    return [(first, decides, False), (second, second, comparison.at == "fastest")]


def _within(claim: Claim, labels: set[str] | None = None) -> Claim:
    """A claim in one regime, sync 20, with comparisons of these algorithms alone."""

    def kept(part: Sequence[Comparison]) -> tuple[Comparison, ...]:
        known = (one for one in part if one.regime == SYNC)
        return tuple(one for one in known if labels in (None, {one.label, one.against}))

    return dataclasses.replace(claim, core=kept(claim.core), extensions=kept(claim.extensions))


def full(
    scale: Scale, count: int, again: int, first: int, extra: Sequence[Entry], names: Sequence[str]
) -> Design:
    """Returns the whole study of a task; of another than the first, with samples refreshed every
    20 steps alone.

    Args:
        scale: of the runs.
        count, again: numbers of the seeds of both sets.
        first: the first seed.
        extra: further entries.
        names: of the claims.
    """
    chosen = tuple(claim for claim in CLAIMS if claim.name in names)
    return Design(
        scale,
        chosen if scale.task_name == FIRST_TASK else tuple(map(_within, chosen)),
        tuple(range(first, first + count)),
        tuple(range(AGAIN_FROM + first, AGAIN_FROM + first + again)),
        tuple(range(TUNING_FROM + first, TUNING_FROM + first + TUNING)),
        extra=tuple(extra),
    )


def quick(scale: Scale, count: int, first: int, extra: Sequence[Entry]) -> Design:
    """Returns a study of minutes: of C2 one comparison, with samples refreshed every 20 steps, at
    two rates, tuned by one seed.
    """
    (claim,) = (claim for claim in CLAIMS if claim.name == "C2")
    return Design(
        scale,
        (_within(claim, {REINFORCE, NARROW}),),
        tuple(range(first, first + count)),
        (),
        (TUNING_FROM + first,),
        RATES[2:6:2],
        steps=140,
        extra=tuple(extra),
    )
