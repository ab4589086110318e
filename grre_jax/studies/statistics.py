"""Intervals and power for differences that are paired over seeds."""

from __future__ import annotations

import dataclasses

import numpy as np
from jaxtyping import Float
from scipy import stats

RESAMPLES = 10_000
LEVEL = 0.95
# Of a two-sided test at 5% with power 80%: an effect of so many standard errors is found four times in five.
VISIBLE = float(stats.norm.ppf(0.975) + stats.norm.ppf(0.8))


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A mean over seeds.

    Attributes:
        mean: of the values.
        low, high: ends of its 95% bootstrap interval.
        visible: the smallest effect that so many seeds with this spread find with probability 0.8.
        count: seeds.
    """

    mean: float
    low: float
    high: float
    visible: float
    count: int


def estimate(values: Float[np.ndarray, " seeds"]) -> Estimate:
    """The mean of one value a seed with its percentile bootstrap interval (Efron, 1979); the same values give the same interval.

    The percentile interval of a few values is too short: it is widened as Student's t at n - 1 degrees of freedom is wider than the normal distribution, and by
    sqrt(n / (n - 1)) for the spread of resampled values.

    Args:
        values: one a seed, at least two; all finite.

    Raises:
        ValueError: for fewer than two values.
    """
    values = np.asarray(values, float)
    if values.size < 2:
        raise ValueError(f"an interval needs at least two seeds, got {values.size}")
    draws = np.random.default_rng(0).integers(0, values.size, (RESAMPLES, values.size))
    mean = float(values.mean())
    low, high = np.quantile(values[draws].mean(1), [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    wider = stats.t.ppf((1 + LEVEL) / 2, values.size - 1) / stats.norm.ppf((1 + LEVEL) / 2) * np.sqrt(values.size / (values.size - 1))
    error = float(values.std(ddof=1) / np.sqrt(values.size))
    return Estimate(mean, float(mean + (low - mean) * wider), float(mean + (high - mean) * wider), VISIBLE * error, values.size)
