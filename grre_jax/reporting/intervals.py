"""95% intervals of proportions and of means."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
from jaxtyping import Float

# Bootstrap samples: the ends of a 95% interval then vary by a few percent of its width.
RESAMPLES = 4000
_SEED = 0
_AT_ONCE = 1 << 22  # drawn indices held at a time


def wilson_interval(successes: float, n: int) -> tuple[float, float]:
    """Returns the 95% score interval of a proportion.

    E. B. Wilson, "Probable inference, the law of succession, and statistical inference", JASA 22
    (1927), https://doi.org/10.1080/01621459.1927.10502953. Never leaves [0, 1] and has a width at 0
    and n successes, unlike p ± 1.96 s.e. It holds for independent trials; for several samples of
    one question the trials are not, and it is then too narrow.

    Args:
        successes: number of trials that succeeded, 0 ≤ successes ≤ n.
        n: number of trials; the interval of 0 trials is (0, 1).

    Returns:
        low, high.

    Raises:
        ValueError: the numbers are out of range.
    """
    if not 0 <= successes <= n:
        raise ValueError(f"successes must be between 0 and n, got {successes} of {n}")
    if n == 0:
        return 0.0, 1.0
    z = NormalDist().inv_cdf(0.975)
    share = successes / n
    centre = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    # At the ends the bounds are 0 and 1 exactly; rounding must not leave [0, 1] or the share
    # outside the interval.
    low = 0.0 if successes == 0 else max(0.0, centre - half)
    high = 1.0 if successes == n else min(1.0, centre + half)
    return low, high


def mean_interval(values: Float[np.ndarray, " n"]) -> tuple[float, float]:
    """Returns the 95% interval of a mean: Wilson's for values in [0, 1], treated as fractions of a
    success; else the normal one.
    """
    if values.min() >= 0 and values.max() <= 1:
        return wilson_interval(float(values.sum()), values.size)
    half = 1.96 * float(values.std()) / np.sqrt(values.size)
    return float(values.mean() - half), float(values.mean() + half)


def over_questions(values: Float[np.ndarray, " questions"]) -> dict[str, float]:
    """Computes the mean of the questions' figures with its 95% interval.

    If every figure is 0 or 1 (one completion per question, or all of them in one draw or vote) the
    mean is a proportion and the interval Wilson's. Else it is the percentile interval of the
    bootstrap over questions (B. Efron, "Bootstrap methods: another look at the jackknife", Ann.
    Statist. 7, 1979), with the same draws each time. Completions of one question are not
    independent, so both intervals are over questions.

    Args:
        values: [questions] figures in [0, 1], at least one.

    Returns:
        value, and the ends low and high of its interval.
    """
    mean = float(values.mean())
    if ((values == 0) | (values == 1)).all():
        low, high = wilson_interval(float(values.sum()), values.size)
        return {"value": mean, "low": low, "high": high}
    draw, means = np.random.default_rng(_SEED), []
    rows = max(1, _AT_ONCE // values.size)
    for start in range(0, RESAMPLES, rows):
        picked = draw.integers(values.size, size=(min(rows, RESAMPLES - start), values.size))
        means.append(values[picked].mean(axis=1))
    low, high = np.quantile(np.concatenate(means), [0.025, 0.975])
    # Sums in another order are rounded differently, which must not put the mean outside.
    return {"value": mean, "low": min(float(low), mean), "high": max(float(high), mean)}
