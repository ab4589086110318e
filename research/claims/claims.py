"""The paper's claims (arXiv 2509.24203) as comparisons with thresholds, written down before any
run.

A claim's *core* is what the paper compares, in its regimes; its *extensions* are ours, and are
judged apart. Every comparison is a difference of two algorithms, taken seed by seed. The paper has
one learning rate for all. Here the rate is an axis, and a comparison says at which of its points it
is judged; all others are reported beside it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Literal

from research.entrants import (
    ASYMRE,
    DROP,
    GRPO,
    IS,
    NARROW,
    NARROW_STD,
    OPMD,
    REINFORCE,
    RING,
    RING_IS,
    TWO_SIDE,
    TWO_SIDE_IS,
    VARIANTS,
    WEIGHT,
    WIDE,
    WIDE_IS,
    WIDE_STD,
)

# Fixed before the runs that are judged; of accuracy, but for LOSES and MORE.
MARGIN = 0.04  # differences below it do not count
FASTER = 0.02  # a lead in the first quarter that counts
CEILING = 0.98  # where both end above it, no lead is asked for
LOSES = 0.05  # a larger share lost that counts
MORE = 0.25  # a much larger share lost: half of what a collapse is
# How far from its threshold the truth must be for a comparison to be worth asking: where the
# seeds do not find that four times in five, it is not asked.
DISTANCE = {"final": 0.06, "mean": 0.04, "early": 0.04, "drawdown": 0.4}

ON_POLICY, SYNC, OFFSET = "on-policy", "sync 20", "offset 10"
ONE_PASS, FINITE, REUSED = "one pass", "finite", "4 updates a batch"
STALE, OFFLINE = (SYNC, OFFSET), (ONE_PASS, FINITE)

Relation = Literal["above", "within", "beats"]
Point = Literal["same", "own", "fastest", "coefficient"]
POINTS: dict[Point, str] = {
    "same": "both at the best rate of the second",
    "own": "each at its best rate",
    "fastest": "the first at the best rate of the second, the second at its fastest",
    "coefficient": "the first at its best rate and coefficient, the second at its best rate",
}


@dataclasses.dataclass(frozen=True)
class Comparison:
    """A statement about a difference between two algorithms.

    Args:
        regime: of the runs.
        measure: a key of `DISTANCE`.
        label, against: the algorithms; the second's value is subtracted, seed by seed.
        at: the learning rates, see `POINTS`.
        relation: "above" the threshold, "within" it on both sides, or "beats": above 0, and above
            -`MARGIN` where both end above `CEILING`.
        threshold: in the measure's units.
    """

    regime: str
    measure: str
    label: str
    against: str
    at: Point
    relation: Relation
    threshold: float

    @property
    def text(self) -> str:
        """The comparison in words."""
        signs = {"above": f"> {self.threshold:g}", "within": f"within ±{self.threshold:g}"}
        sign = signs.get(self.relation, "> 0, or at the ceiling")
        return (
            f"{self.measure} of {self.label} - {self.against}, {self.regime},"
            f" {POINTS[self.at]}: {sign}"
        )


@dataclasses.dataclass(frozen=True)
class Claim:
    """A claim of the paper.

    Args:
        name: "C1" to "C7".
        statement: of the paper, in our words.
        core: what the paper compares; the verdict goes by it alone.
        extensions: ours.
    """

    name: str
    statement: str
    core: tuple[Comparison, ...]
    extensions: tuple[Comparison, ...] = ()


def arms(label: str) -> tuple[str, ...]:
    """Returns the labels of an algorithm with each of its coefficients, its own first."""
    return (label, *(entry.label for entry in VARIANTS if entry.label.startswith(f"{label}, ")))


def _each(
    regimes: Sequence[str],
    measure: str,
    at: Point,
    relation: Relation,
    threshold: float,
    *pairs: tuple[str, str],
) -> tuple[Comparison, ...]:
    return tuple(
        Comparison(regime, measure, *pair, at, relation, threshold)
        for regime in regimes
        for pair in pairs
    )


def _steadier(regimes: Sequence[str], *labels: str) -> tuple[Comparison, ...]:
    """REINFORCE loses much more than each of the algorithms, at their own best rate."""
    pairs = [(REINFORCE, label) for label in labels]
    return _each(regimes, "drawdown", "same", "above", MORE, *pairs)


CLAIMS: tuple[Claim, ...] = (
    Claim(
        "C1",
        "Importance sampling on or off gives the same curve once clipped",
        _each(STALE, "mean", "same", "within", MARGIN, (NARROW, IS), (NARROW_STD, GRPO)),
        _each(
            *(STALE, "mean", "same", "within", MARGIN),
            *((WIDE, WIDE_IS), (TWO_SIDE, TWO_SIDE_IS), (RING, RING_IS)),
        ),
    ),
    Claim(
        "C2",
        "REINFORCE without clipping collapses off-policy; every clipped variant does not",
        _steadier(STALE, NARROW, WIDE, IS, GRPO, TWO_SIDE, RING),
    ),
    Claim(
        "C3",
        "The wide range learns faster than the narrow one off-policy, with and without std, and a"
        " larger learning rate does not buy the same",
        _each(*(STALE, "early", "same", "above", FASTER), (WIDE, NARROW), (WIDE_STD, NARROW_STD))
        + _each(STALE, "early", "fastest", "above", 0.0, (WIDE, NARROW)),
        _each((REUSED,), "early", "same", "above", FASTER, (WIDE, NARROW))
        + _each(STALE, "final", "own", "beats", 0.0, (WIDE, NARROW)),
    ),
    Claim(
        "C4",
        "Offline, the wide range trades speed for stability",
        _each(OFFLINE, "early", "same", "above", FASTER, (WIDE, NARROW))
        + _each(OFFLINE, "drawdown", "same", "above", LOSES, (WIDE, NARROW)),
    ),
    Claim(
        "C5",
        "RED-Drop and RED-Weight beat REINFORCE and GRPO on- and off-policy",
        _each(
            *((ON_POLICY, *STALE), "final", "own", "beats", 0.0),
            *((label, other) for label in (DROP, WEIGHT) for other in (REINFORCE, GRPO)),
        ),
        _each(
            *((ON_POLICY, *STALE), "mean", "own", "above", 0.0),
            *((label, other) for label in (DROP, WEIGHT) for other in (REINFORCE, GRPO)),
        ),
    ),
    Claim(
        "C6",
        "OPMD and AsymRE, with a tuned coefficient, are stable off-policy as regularised REINFORCE",
        _steadier(STALE, OPMD, ASYMRE)
        + _each(*(STALE, "final", "own", "above", -MARGIN), (OPMD, REINFORCE), (ASYMRE, REINFORCE)),
        _each(
            *((SYNC,), "final", "coefficient", "above", -MARGIN),
            *((OPMD, REINFORCE), (ASYMRE, REINFORCE)),
        ),
    ),
    Claim(
        "C7",
        "Ring clipping lies between one-side and two-side in speed, and does not collapse",
        _each(STALE, "mean", "same", "above", -MARGIN, (NARROW, RING), (RING, TWO_SIDE))
        + _steadier(STALE, RING),
        _each(STALE, "mean", "same", "above", -MARGIN, (IS, RING_IS), (RING_IS, TWO_SIDE_IS)),
    ),
)
