"""Comparison of a run's last policy with its first and its best."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

BETTER = "better"
WORSE = "worse"
UNCLEAR = "no clear change"


@dataclass(frozen=True)
class Evaluation:
    """A figure of one evaluation.

    Attributes:
        step: the training step.
        value: accuracy in [0, 1], or mean reward.
        low, high: its 95% interval; NaN if the run recorded none.
    """

    step: int
    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Outcome:
    """The last evaluation of a run beside the first and the best.

    Attributes:
        measure: "accuracy", or "reward" if the run has no accuracy.
        change: BETTER, WORSE or UNCLEAR: the last evaluation against the first.
        first, last, best: the evaluations; the best is the earliest of the highest.
        low, high: 95% interval of last minus first.
        fell: whether best minus last is more than sampling explains.
        greedy: accuracies of the greedy completions at the first and the last evaluation; () if
            the run recorded none.
    """

    measure: str
    change: str
    first: Evaluation
    last: Evaluation
    best: Evaluation
    low: float
    high: float
    fell: bool
    greedy: tuple[float, ...] = ()


def outcome(
    measure: str, evaluations: Sequence[Evaluation], greedy: Sequence[Evaluation] = ()
) -> Outcome | None:
    """Compares a run's last evaluation with its first and its best.

    The best is the highest of several, by chance too, so the fall from it is judged by an interval
    widened for as many comparisons (Bonferroni).

    Args:
        measure: of the evaluations, "accuracy" or "reward".
        evaluations: in the order of their steps.
        greedy: greedy accuracy at the same steps, if it is known.

    Returns:
        None for fewer than two evaluations, or without intervals of the first and the last.
    """
    if len(evaluations) < 2:
        return None
    first = evaluations[0]
    last = evaluations[-1]
    best = max(evaluations, key=lambda evaluation: evaluation.value)
    low, high = difference_interval(first, last)
    if not (math.isfinite(low) and math.isfinite(high)):
        return None
    change = BETTER if low > 0 else WORSE if high < 0 else UNCLEAR
    wider = NormalDist().inv_cdf(1 - 0.025 / (len(evaluations) - 1)) / NormalDist().inv_cdf(0.975)
    fell = best.step < last.step and difference_interval(best, last, wider)[1] < 0
    ends = (greedy[0].value, greedy[-1].value) if greedy else ()
    return Outcome(measure, change, first, last, best, low, high, fell, ends)


def difference_interval(
    before: Evaluation, after: Evaluation, wider: float = 1.0
) -> tuple[float, float]:
    """Returns the 95% interval of after minus before, from the interval of each.

    R. G. Newcombe, "Interval estimation for the difference between independent proportions",
    Statistics in Medicine 17 (1998) 873-890, method 10.
    Both evaluations ask the same questions, which makes it wider than need be, not narrower.

    Args:
        before, after: two evaluations.
        wider: factor on the distances between a value and its bounds.

    Returns:
        low, high; NaN if an interval is.
    """
    difference = after.value - before.value
    down = math.hypot(after.value - after.low, before.high - before.value)
    up = math.hypot(after.high - after.value, before.value - before.low)
    return difference - wider * down, difference + wider * up


def sentences(comparison: Outcome) -> list[str]:
    """Returns the outcome as sentences: the change, and a clear fall from the best."""
    share = comparison.measure == "accuracy"

    def value(evaluation: Evaluation) -> str:
        number = f"{evaluation.value:.1%}" if share else f"{evaluation.value:.3g}"
        return f"{number} at step {evaluation.step:,}"

    def difference(number: float) -> str:
        return f"{100 * number:+.1f} points" if share else f"{number:+.3g}"

    words = {BETTER: "better than at the start", WORSE: "WORSE than at the start"}
    change = words.get(comparison.change, comparison.change)
    first = comparison.first
    last = comparison.last
    best = comparison.best
    gain = difference(last.value - first.value)
    interval = f"{difference(comparison.low)} to {difference(comparison.high)}"
    lines = [
        f"{change}: held-out {comparison.measure} from {value(first)} to {value(last)}"
        f" ({gain}, 95% interval {interval})"
    ]
    if comparison.greedy:
        lines[0] += "; greedy accuracy from {:.1%} to {:.1%}".format(*comparison.greedy)
    if comparison.fell:
        lines.append(
            f"{difference(last.value - best.value)} since its best, {value(best)}:"
            " --checkpoint.best 1 keeps that policy"
        )
    return lines
