"""Comparison of a run's last policy with its first and its best, and the diagnostics to look at."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from grre_jax.reporting.metrics import Metrics, Row, not_finite_rows, series

BETTER, WORSE, UNCLEAR = "better", "worse", "no clear change"
POINTS = " points"  # of percent


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
        difference, low, high: last minus first, with its 95% interval.
        drawdown: best minus last, at least 0.
        fell: whether the drawdown is more than sampling explains.
        signs: diagnostics to look at, a phrase each; none unless the run got worse or fell.
        greedy: accuracies of the greedy completions at the first and the last evaluation; () if
            the run recorded none.
    """

    measure: str
    change: str
    first: Evaluation
    last: Evaluation
    best: Evaluation
    difference: float
    low: float
    high: float
    drawdown: float
    fell: bool
    signs: tuple[str, ...] = ()
    greedy: tuple[float, ...] = ()


def outcome(
    measure: str,
    evaluations: Sequence[Evaluation],
    metrics: Metrics,
    greedy: Sequence[Evaluation] = (),
) -> Outcome | None:
    """Compares a run's last evaluation with its first and its best.

    The best is the highest of several, by chance too, so that its drawdown is judged by an interval
    widened for as many comparisons (Bonferroni).

    Args:
        measure: of the evaluations, "accuracy" or "reward".
        evaluations: in the order of their steps.
        metrics: of the run, for `Outcome.signs`.
        greedy: greedy accuracy at the same steps, if it is known.

    Returns:
        None for fewer than two evaluations, or without intervals of the first and the last.
    """
    if len(evaluations) < 2:
        return None
    first, last = evaluations[0], evaluations[-1]
    best = max(evaluations, key=lambda evaluation: evaluation.value)
    low, high = difference_interval(first, last)
    if not (math.isfinite(low) and math.isfinite(high)):
        return None
    change = BETTER if low > 0 else WORSE if high < 0 else UNCLEAR
    wider = NormalDist().inv_cdf(1 - 0.025 / (len(evaluations) - 1)) / NormalDist().inv_cdf(0.975)
    fell = best.step < last.step and difference_interval(best, last, wider)[1] < 0
    signs = _signs(metrics, best.step, last.step) if fell or change == WORSE else ()
    drawdown = best.value - last.value
    gained = last.value - first.value
    ends = (greedy[0].value, greedy[-1].value) if greedy else ()
    return Outcome(
        measure, change, first, last, best, gained, low, high, drawdown, fell, signs, ends
    )


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


def sentences(found: Outcome) -> list[str]:
    """Returns the outcome as sentences: the change; a clear drawdown; the diagnostics."""
    words = {BETTER: "better than at the start", WORSE: "WORSE than at the start"}
    change = words.get(found.change, found.change)
    low, high = _amount(found, found.low).removesuffix(POINTS), _amount(found, found.high)
    greedy = "; greedy accuracy from {:.1%} to {:.1%}".format(*found.greedy) if found.greedy else ""
    lines = [
        f"{change}: held-out {found.measure} from {_value(found, found.first)} at step"
        f" {found.first.step:,} to {_value(found, found.last)} at step {found.last.step:,}"
        f" ({_amount(found, found.difference)}, 95% interval {low} to {high}){greedy}"
    ]
    if found.fell:
        lines.append(
            f"{_amount(found, -found.drawdown)} since its best, {_value(found, found.best)} at step"
            f" {found.best.step:,}: --checkpoint.best 1 keeps that policy"
        )
    if found.signs:
        lines.append(f"look at: {'; '.join(found.signs)}")
    return lines


def _value(found: Outcome, evaluation: Evaluation) -> str:
    return f"{evaluation.value:.1%}" if found.measure == "accuracy" else f"{evaluation.value:.3g}"


def _amount(found: Outcome, value: float) -> str:
    return f"{100 * value:+.1f}{POINTS}" if found.measure == "accuracy" else f"{value:+.3g}"


def _signs(metrics: Metrics, best: int, last: int) -> tuple[str, ...]:
    """Figures that usually move when a policy is lost, around the best step and at the end."""
    train, found = metrics.get("train", []), []
    for name, label, form in (
        ("kl_to_start", "KL to the start (nats/token)", "{:.3g}"),
        ("clip_fraction", "clipped share of tokens", "{:.1%}"),
        ("response_length", "response length (tokens)", "{:.1f}"),
        ("entropy", "entropy (nats/token)", "{:.3g}"),
        ("reward", "training reward", "{:.3g}"),
    ):
        rows = metrics.get("eval", []) if name == "kl_to_start" else train
        then, now = _near(rows, name, best, last), _near(rows, name, last, last)
        if then is not None and now is not None:
            found.append(
                f"{label} {form.format(then)} around step {best:,}, {form.format(now)} at the end"
            )
    if lost := not_finite_rows(train):
        found.append(f"{lost} steps with NaN or infinity")
    return tuple(found)


def _near(rows: Sequence[Row], name: str, step: int, last: int) -> float | None:
    """The mean over the steps within a twentieth of the run of `step`, or the nearest value."""
    steps, values = series(list(rows), name)
    finite = np.isfinite(values)
    steps, values = steps[finite], values[finite]
    if not steps.size:
        return None
    distance = np.abs(steps - step)
    return float(values[distance <= max(distance.min(), last / 20)].mean())
