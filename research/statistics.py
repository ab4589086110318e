"""Intervals of means over seeds."""

from __future__ import annotations

import dataclasses

import numpy as np
from jaxtyping import Float
from scipy import special

LEVEL = 0.95  # of intervals


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
    half = float(special.stdtrit(values.size - 1, (1 + LEVEL) / 2) * error)
    return Estimate(mean, mean - half, mean + half, values.size)


def _checked(values: Float[np.ndarray, " seeds"]) -> Float[np.ndarray, " seeds"]:
    values = np.asarray(values, float)
    if values.size < 2:
        raise ValueError(f"an interval needs at least two seeds, got {values.size}")
    if not np.isfinite(values).all():
        raise ValueError(f"an interval needs finite values, got {values.tolist()}")
    return values
