"""Intervals, tests and power for differences that are paired over seeds."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float
from scipy import optimize, stats

LEVEL = 0.95  # of intervals
SIDE = (1 - LEVEL) / 2  # of a test on one side
POWER = 0.8


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A mean over seeds.

    Attributes:
        mean: of the values.
        low, high: ends of its 95% interval.
        count: seeds.
    """

    mean: float
    low: float
    high: float
    count: int


def estimate(values: Float[np.ndarray, " seeds"]) -> Estimate:
    """Returns the mean of one value per seed with Student's t interval.

    Args:
        values: one a seed, at least two; all finite.

    Raises:
        ValueError: for fewer than two values, or one that is not finite.
    """
    values = _checked(values)
    mean, error = float(values.mean()), values.std(ddof=1) / np.sqrt(values.size)
    half = float(stats.t.ppf(1 - SIDE, values.size - 1) * error)
    return Estimate(mean, mean - half, mean + half, values.size)


def chance(values: Float[np.ndarray, " seeds"], threshold: float) -> float:
    """Returns the probability of a mean as far above a threshold as this one, or farther, if the
    true mean is at the threshold: the t test on one side.

    Where all values are equal, a t test has no error to go by: the probability is then that of the
    exact sign-flip test (Fisher, 1935), 2^-n if they lie above the threshold and 1 if not.

    Args:
        values: one a seed, at least two; all finite.
        threshold: in their units.

    Raises:
        ValueError: for fewer than two values, or one that is not finite.
    """
    values = _checked(values)
    distance, error = values.mean() - threshold, values.std(ddof=1) / np.sqrt(values.size)
    if error < 1e-12:
        return 0.5**values.size if distance > 0 else 1.0
    return float(stats.t.sf(distance / error, values.size - 1))


def holm(chances: Sequence[float]) -> list[bool]:
    """Returns True for each of several findings that stands when their number is accounted for
    (Holm, 1979): the probability that one or more of these is mere chance is at most `SIDE`, half
    of what a 95% interval leaves, for a finding lies on one side of a threshold.

    Args:
        chances: of each by itself, as `chance` gives them.
    """
    stands, left = [False] * len(chances), len(chances)
    for index in np.argsort(chances, kind="stable"):
        if chances[index] > SIDE / left:
            break
        stands[index], left = True, left - 1
    return stands


def visible(spread: float, count: int, level: float = SIDE, power: float = POWER) -> float:
    """Returns the smallest distance of a true mean from a threshold that the t test on one side
    finds with a probability: the noncentral t distribution's (Cohen, 1988, chapter 2).

    Args:
        spread: standard deviation between seeds, of the value or of the paired difference.
        count: seeds, at least two.
        level: of the test.
        power: that probability.
    """
    freedom = count - 1
    critical = stats.t.isf(level, freedom)
    errors = optimize.brentq(lambda shift: stats.nct.sf(critical, freedom, shift) - power, 0, 1000)
    return float(errors * spread / np.sqrt(count))


def _checked(values: Float[np.ndarray, " seeds"]) -> Float[np.ndarray, " seeds"]:
    values = np.asarray(values, float)
    if values.size < 2:
        raise ValueError(f"an interval needs at least two seeds, got {values.size}")
    if not np.isfinite(values).all():
        raise ValueError(f"an interval needs finite values, got {values.tolist()}")
    return values
