"""pass@k and maj@k with intervals over questions. Pure NumPy."""

import collections
import math
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool

from grre_jax.reporting.intervals import over_questions
from grre_jax.rollouts import Group, correctness
from grre_jax.tasks import Task


def pass_at_k(n: int, correct: int, k: int) -> float:
    """Computes the probability that k of a question's n completions, drawn without replacement,
    include a correct one: 1 - C(n - c, k) / C(n, k).

    It is an unbiased estimate of the probability that k new completions include one (Chen et al.,
    "Evaluating Large Language Models Trained on Code", arXiv 2107.03374, eq. 1).

    Args:
        n: completions of the question.
        correct: correct ones (c), 0 to n.
        k: 1 to n.
    """
    # In Python's integers: binomials would overflow floating point.
    return 1 - math.comb(n - correct, k) / math.comb(n, k)


def majority(answers: Sequence[Hashable | None]) -> int | None:
    """Returns the index of the first completion with the most frequent answer, the first seen of
    equally frequent ones; None without any answer.

    Args:
        answers: of a question's completions; None for a completion without one, which does not
            vote.
    """
    votes = collections.Counter(answer for answer in answers if answer is not None)
    # A Counter returns equally frequent ones in the order in which they were first seen.
    return answers.index(votes.most_common(1)[0][0]) if votes else None


def majority_at_k(
    answers: Sequence[Hashable | None], right: Bool[np.ndarray, " samples"], k: int
) -> float:
    """Computes the share of correct majority votes among the n // k disjoint runs of k consecutive
    completions of a question.

    Completions are drawn independently from one distribution, so each run is a vote of k new ones,
    and the mean is unbiased. A run without any answer is a wrong vote.

    Args:
        answers: as for `majority`.
        right: [samples] True for correct completions.
        k: voters, 1 to n.
    """
    starts = range(0, len(right) - k + 1, k)
    votes = [(start, majority(answers[start : start + k])) for start in starts]
    return float(np.mean([vote is not None and bool(right[start + vote]) for start, vote in votes]))


def pass_metrics(groups: Sequence[Group], task: Task) -> dict[str, Any]:
    """Computes pass@k and maj@k for k = 1, 2, 4, ... up to the completions per question, with 95%
    intervals over questions.

    Args:
        groups: one per question, with the same number of completions.
        task: the task that judged them. Its `final_answer`, if it has one, returns a completion's
            answer.

    Returns:
        JSON values: {"num_samples": n, "pass_at_k": {"1": {"value", "low", "high"}, ...},
        "maj_at_k": likewise, "left_out": {name: reason}}. A metric in "left_out" is absent.
        Completions without a verdict are left out; a question with fewer than k others does not
        count in the figure of k, which is absent without any question.
    """
    left_out: dict[str, str] = {}
    result = {"num_samples": len(groups[0].texts), "left_out": left_out}
    right = correctness(groups)
    if right is None:
        reason = (
            f"verdicts of task {task.name} have no correctness, and rewards are not all 0 or 1:"
            " return Verdict(reward, correct=...)"
        )
        left_out |= {"pass_at_k": reason, "maj_at_k": reason}
        return result
    result["pass_at_k"] = _for_each_k(
        right, lambda row, _, k: pass_at_k(len(row), int(row.sum()), k)
    )
    answer = getattr(task, "final_answer", None)
    if answer is None:
        reason = f"task {task.name} has no final_answer(completion), which returns its vote"
        left_out["maj_at_k"] = reason
        return result
    votes = [
        [answer(text) for text, judged in zip(group.texts, group.judged, strict=True) if judged]
        for group in groups
    ]
    result["maj_at_k"] = _for_each_k(
        right, lambda row, question, k: majority_at_k(votes[question], row, k)
    )
    return result


def _for_each_k(
    right: Sequence[Bool[np.ndarray, " judged"]],
    value: Callable[[Bool[np.ndarray, " judged"], int, int], float],
) -> dict[str, dict[str, float]]:
    """Returns the figures for k = 1, 2, 4, ... of questions with at least k completions."""
    figures = {}
    for k in (1 << i for i in range(max(map(len, right)).bit_length())):
        values = [value(row, i, k) for i, row in enumerate(right) if len(row) >= k]
        if values:
            figures[str(k)] = over_questions(np.array(values))
    return figures
