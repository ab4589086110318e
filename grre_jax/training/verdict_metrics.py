"""Metrics of completions' verdicts, of training and of evaluation."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from grre_jax.reporting.metrics import COMPONENT
from grre_jax.rollouts import Group, correctness
from grre_jax.tasks.judging import count_failures
from grre_jax.tasks.task import CORRECT


def verdict_scalars(groups: Sequence[Group]) -> dict[str, float]:
    """Computes the figures of a training row from its groups' verdicts, besides the reward.

    Returns:
        accuracy if known, component_NAME, and verify_failures if there are any.
    """
    known = correctness(groups)
    judged = known and np.concatenate(known)
    accuracy = {} if judged is None or not len(judged) else {"accuracy": float(judged.mean())}
    return accuracy | component_means(groups) | failure_scalars(groups)


def component_means(groups: Sequence[Group]) -> dict[str, float]:
    """Computes component_NAME, the mean of each reward component over the completions that have it,
    without correctness, which is accuracy.
    """
    rows: dict[str, list[Float[np.ndarray, " completions"]]] = {}
    for group in groups:
        for name, row in group.components.items():
            if name != CORRECT or group.correct is None:
                rows.setdefault(name, []).append(row[group.judged & ~np.isnan(row)])
    means = {name: np.concatenate(of) for name, of in rows.items()}
    return {
        COMPONENT + name: float(row.mean(dtype=np.float64))
        for name, row in means.items()
        if len(row)
    }


def failure_scalars(groups: Sequence[Group]) -> dict[str, float]:
    """Counts completions without a verdict: verify_failures, and by kind
    (`tasks.judging.FAILURES`); {} if there are none.
    """
    return {
        name: float(count)
        for name, count in count_failures(group.extra for group in groups).items()
    }
