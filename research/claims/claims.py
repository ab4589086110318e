"""The paper's claims (arXiv 2509.24203) as differences between two algorithms, and the runs that
they are read from.

A claim is asked twice: with every algorithm at one learning rate, as the paper does, and with each
at its own best rate.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from grre_jax.config import Regime
from research.entrants import (
    ASYMRE,
    ASYMRE_STRONG,
    DROP,
    ENTRIES,
    GRPO,
    IS,
    KNOWN,
    LATER,
    NARROW,
    NARROW_STD,
    OPMD,
    REINFORCE,
    RING,
    RING_IS,
    TWO_SIDE,
    TWO_SIDE_IS,
    WEIGHT,
    WEIGHTED,
    WIDE,
    WIDE_IS,
    WIDE_STD,
)
from research.in_graph.batch import Scale
from research.runs import Entry, Run

ON_POLICY, SYNC, OFFSET = "on-policy", "sync 20", "offset 10"
ONE_PASS, FINITE, REUSED = "one pass", "finite", "4 updates a batch"
STALE = (SYNC, OFFSET)
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
# The rate at which all algorithms of a regime are compared.
COMMON = {
    ON_POLICY: 2.5e-4,
    SYNC: 2.5e-4,
    OFFSET: 2.5e-4,
    ONE_PASS: 2e-3,
    FINITE: 2.5e-4,
    REUSED: 1.25e-4,
}
# Further rates at which an algorithm has all seeds: those that the scan puts first or beside it.
FURTHER: dict[str, dict[str, tuple[float, ...]]] = {
    ON_POLICY: {GRPO: (5e-4,), WEIGHT: (5e-4,)},
    SYNC: dict.fromkeys((REINFORCE, DROP, TWO_SIDE, RING), (1.25e-4,))
    | dict.fromkeys((NARROW, NARROW_STD, WIDE_STD), (5e-4,)),
    OFFSET: {REINFORCE: (1.25e-4, 5e-4), DROP: (1.25e-4,), NARROW: (5e-4,), WIDE: (5e-4,)},
    ONE_PASS: {WIDE: (2.5e-4,)},
    FINITE: {WIDE: (6.25e-5,)},
}
_STALE_ARMS = tuple(entry.label for entry in (*ENTRIES, *WEIGHTED))
ARMS: dict[str, tuple[str, ...]] = {
    ON_POLICY: (REINFORCE, GRPO, DROP, WEIGHT),
    SYNC: (*_STALE_ARMS, ASYMRE_STRONG, *(entry.label for entry in LATER)),
    OFFSET: _STALE_ARMS,
    ONE_PASS: (NARROW, WIDE),
    FINITE: (NARROW, WIDE),
    REUSED: (NARROW, WIDE),
}
FIRST_TASK = "arithmetic"
# Of another task, with samples that are some updates old and at the common rate alone.
TEN = (REINFORCE, GRPO, NARROW, WIDE, TWO_SIDE, RING, OPMD, ASYMRE, DROP, WEIGHT)
SEEDS, SECOND_SEEDS, SCAN_SEEDS = 18, 6, 3
SCAN_FROM = 20_000  # added to the first seed, for the runs at every rate
Cell = tuple[str, str, float]  # regime, algorithm, learning rate


@dataclasses.dataclass(frozen=True)
class Claim:
    """A claim of the paper.

    Args:
        name: "C1" to "C7".
        statement: of the paper, in our words.
        measure: of a run, from `curve_statistics.MEASURES`.
        expected: 1 if the first algorithm is to be above the second, -1 if below, 0 if the two are
            to be equal.
        regimes: in which it is asked.
        pairs: the first algorithm and the second, as the paper compares them.
        lost: if the share of the best accuracy that a run loses belongs to the claim, the sign that
            its difference is to have; else 0.
        further: pairs of ours.
    """

    name: str
    statement: str
    measure: str
    expected: int
    regimes: tuple[str, ...]
    pairs: tuple[tuple[str, str], ...]
    lost: int = 0
    further: tuple[tuple[str, str], ...] = ()


CLIPPED = (NARROW, WIDE, IS, GRPO, TWO_SIDE, RING)
CLAIMS: tuple[Claim, ...] = (
    Claim(
        "C1",
        "Importance sampling on or off gives the same curve once clipped",
        "mean",
        0,
        STALE,
        ((NARROW, IS), (NARROW_STD, GRPO)),
        further=((WIDE, WIDE_IS), (TWO_SIDE, TWO_SIDE_IS), (RING, RING_IS)),
    ),
    Claim(
        "C2",
        "REINFORCE without clipping collapses off-policy; every clipped variant does not",
        "final",
        1,
        STALE,
        tuple((label, REINFORCE) for label in CLIPPED),
        lost=-1,
    ),
    Claim(
        "C3",
        "The wide range learns faster than the narrow one off-policy",
        "early",
        1,
        STALE,
        ((WIDE, NARROW), (WIDE_STD, NARROW_STD)),
    ),
    Claim(
        "C4",
        "Offline, the wide range trades stability for speed",
        "early",
        1,
        (FINITE, ONE_PASS),
        ((WIDE, NARROW),),
        lost=1,
    ),
    Claim(
        "C5",
        "RED-Drop and RED-Weight beat REINFORCE and GRPO on- and off-policy",
        "final",
        1,
        (ON_POLICY, *STALE),
        tuple((label, other) for label in (WEIGHT, DROP) for other in (REINFORCE, GRPO)),
    ),
    Claim(
        "C6",
        "OPMD and AsymRE are stable off-policy as regularised REINFORCE",
        "final",
        1,
        STALE,
        ((OPMD, REINFORCE), (ASYMRE, REINFORCE)),
        lost=-1,
        further=((ASYMRE_STRONG, REINFORCE),),
    ),
    Claim(
        "C7",
        "Ring clipping lies between two-side and one-side clipping in speed, and does not collapse",
        "mean",
        1,
        STALE,
        ((NARROW, RING), (RING, TWO_SIDE)),
    ),
)


@dataclasses.dataclass(frozen=True)
class Design:
    """The runs of a study.

    Args:
        scale: of the runs, with their task.
        cells: regimes, algorithms and rates that all seeds run in.
        seeds: each has a warm start of its own.
        scanned: cells that the scan's seeds run in.
        scan: those seeds.
        steps: of a run.
        extra: entries of further algorithms.
    """

    scale: Scale
    cells: tuple[Cell, ...]
    seeds: tuple[int, ...]
    scanned: tuple[Cell, ...] = ()
    scan: tuple[int, ...] = ()
    steps: int = 240
    extra: tuple[Entry, ...] = ()

    @property
    def entries(self) -> tuple[Entry, ...]:
        """The algorithms of the cells."""
        labels = {label for _, label, _ in (*self.cells, *self.scanned)}
        return tuple(entry for entry in (*KNOWN, *self.extra) if entry.label in labels)

    def run(self, cell: Cell, seed: int) -> Run:
        """Returns one run of a cell."""
        regime, label, rate = cell
        stored = STORED if regime == FINITE else 0
        return Run(label, REGIMES[regime], rate, seed, self.steps, stored=stored)

    def runs(self) -> list[Run]:
        """Returns all runs, those of the scan first."""
        found = [self.run(cell, seed) for cell in self.scanned for seed in self.scan]
        return found + [self.run(cell, seed) for seed in self.seeds for cell in self.cells]


def rates_of(regime: str, label: str) -> tuple[float, ...]:
    """Returns the rates at which all seeds run: the common one first."""
    return (COMMON[regime], *FURTHER.get(regime, {}).get(label, ()))


def full(scale: Scale, count: int | None, first: int, extra: Sequence[Entry]) -> Design:
    """Returns the whole study of a task.

    Args:
        scale: of the runs.
        count: number of seeds; that of the task if None.
        first: the first seed.
        extra: entries that take part with samples refreshed every 20 steps.
    """
    more = tuple(entry.label for entry in extra)
    if scale.task_name == FIRST_TASK:
        arms: Mapping[str, tuple[str, ...]] = ARMS | {SYNC: ARMS[SYNC] + more}
    else:
        arms = {SYNC: TEN + more, OFFSET: TEN}
    pairs = [(regime, label) for regime, labels in arms.items() for label in labels]
    if scale.task_name == FIRST_TASK:
        cells = [(*pair, rate) for pair in pairs for rate in rates_of(*pair)]
        later = {entry.label for entry in (*LATER, *extra)}
        scanned = [(*pair, rate) for pair in pairs for rate in RATES if pair[1] not in later]
        default, scan = SEEDS, range(SCAN_FROM + first, SCAN_FROM + first + SCAN_SEEDS)
    else:
        cells = [(regime, label, COMMON[regime]) for regime, label in pairs]
        default, scan, scanned = SECOND_SEEDS, range(0), []
    seeds = range(first, first + (count or default))
    return Design(
        scale, tuple(cells), tuple(seeds), tuple(scanned), tuple(scan), extra=tuple(extra)
    )


def quick(scale: Scale, count: int, first: int, extra: Sequence[Entry]) -> Design:
    """Returns a study of minutes: REINFORCE, the narrow range and further entries with samples
    refreshed every 20 steps, at the common rate and the next larger one.
    """
    labels = (REINFORCE, NARROW, *(entry.label for entry in extra))
    cells = [(SYNC, label, rate) for label in labels for rate in (COMMON[SYNC], 5e-4)]
    seeds = range(first, first + count)
    return Design(scale, tuple(cells), tuple(seeds), steps=140, extra=tuple(extra))
