"""95% intervals of proportions and of means."""

import math
from statistics import NormalDist

import numpy as np
from jaxtyping import Float

# Bootstrap samples: the ends of a 95% interval then vary by a few percent of its width.
RESAMPLES = 4000


def wilson_interval(successes: float, n: int) -> tuple[float, float]:
    """Returns the 95% score interval of a proportion.

    E. B. Wilson, JASA 22 (1927), https://doi.org/10.1080/01621459.1927.10502953. It holds for
    independent trials, and is too narrow for several samples of one question.

    Args:
        successes: number of trials that succeeded, 0 ≤ successes ≤ n; fractions count.
        n: number of trials; the interval of 0 trials is (0, 1).

    Examples:
        >>> from grre_jax import reporting
        >>> [round(bound, 3) for bound in reporting.wilson_interval(45, 60)]
        [0.628, 0.842]
    """
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
    """Computes the mean of figures in [0, 1] as "value", with its 95% interval over questions "low"
    and "high": Wilson's if every figure is 0 or 1, else the bootstrap's, always of the same draws.
    """
    from scipy.stats import bootstrap

    mean = float(values.mean())
    if ((values == 0) | (values == 1)).all():
        low, high = wilson_interval(float(values.sum()), values.size)
    elif values.size == 1:
        low = high = mean
    else:
        result = bootstrap(
            (values,), np.mean, n_resamples=RESAMPLES, method="percentile", batch=100, rng=0
        )
        low, high = result.confidence_interval
    # Sums in another order are rounded differently, which must not put the mean outside.
    return {"value": mean, "low": min(float(low), mean), "high": max(float(high), mean)}
