"""Statistics of a run's curves: one number per run.

Each takes a kind of accuracy: of answers that are sampled at temperature 1, or greedy ones.
"""

from collections.abc import Callable
from typing import Literal

import numpy as np
from jaxtyping import Float

from research.runs import Result

Kind = Literal["greedy", "sampled"]
CURVES: dict[Kind, str] = {"greedy": "greedy_accuracy", "sampled": "accuracy"}
COLLAPSED = 0.5  # a run that lost more than this share of the accuracy it had, at any time
LAST = 4  # evaluations that "final" is the mean of
# Evaluations that are averaged before a loss is searched for, so that noise is none; of a curve
# with fewer than five times as many, none are: there a loss may last for one evaluation alone.
WINDOW = 3


def _accuracy(result: Result, kind: Kind) -> Float[np.ndarray, " checks"]:
    return np.asarray(result[CURVES[kind]], float)


def early(result: Result, kind: Kind = "sampled") -> float:
    """Returns the mean accuracy over the first quarter of the run, the start left out."""
    accuracy = _accuracy(result, kind)
    return float(accuracy[1 : 1 + max(1, (accuracy.size - 1) // 4)].mean())


def mean(result: Result, kind: Kind = "sampled") -> float:
    """Returns the mean accuracy over the run, the start left out."""
    return float(_accuracy(result, kind)[1:].mean())


def final(result: Result, kind: Kind = "sampled") -> float:
    """Returns the mean accuracy of the last evaluations."""
    return float(_accuracy(result, kind)[-LAST:].mean())


def drawdown(result: Result, kind: Kind = "sampled") -> float:
    """Returns the largest share of its best accuracy so far that the run lost; both are running
    means of `WINDOW` evaluations where the curve is long.
    """
    accuracy = _accuracy(result, kind)
    width = WINDOW if accuracy.size >= 5 * WINDOW else 1
    smooth = np.convolve(accuracy, np.full(width, 1 / width), mode="valid")
    best = np.maximum.accumulate(smooth)
    return float(((best - smooth) / np.maximum(best, 1e-9)).max())


# Of a cell of the claims study.
MEASURES: dict[str, Callable[[Result, Kind], float]] = {
    "final": final,
    "mean": mean,
    "early": early,
    "drawdown": drawdown,
}
