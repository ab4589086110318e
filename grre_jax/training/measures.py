"""What sampled and judged groups say of a policy: pass@k and maj@k."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from grre_jax.reporting.pass_at_k import majority_at_k, over_questions, pass_at_k, powers_up_to
from grre_jax.rollouts import Group, correctness
from grre_jax.tasks import Task


def measures(groups: Sequence[Group], task: Task) -> dict[str, Any]:
    """pass@k and maj@k for k = 1, 2, 4, ... up to the number of completions a question, with 95% intervals over questions.

    Args:
        groups: of one number of completions each; the questions.
        task: which judged them. Its `final_answer`, where it has one, says what a completion answers.

    Returns:
        What JSON can hold: {"num_samples": n, "pass_at_k": {"1": {"value", "low", "high"}, ...}, "maj_at_k": likewise, "left_out": {name: reason}}; what is left out
        is absent above.
    """
    n, left_out = len(groups[0].texts), {}
    result: dict[str, Any] = {"num_samples": n}
    known = correctness(groups)
    right = None if known is None else np.stack(known)
    answers = getattr(task, "final_answer", None)
    if right is None:
        left_out["pass_at_k"] = left_out["maj_at_k"] = (
            f"verdicts of task {task.name} have no correctness, and rewards are not all 0 or 1: return Verdict(reward, correct=...)"
        )
    else:
        counts = right.sum(axis=1)
        result["pass_at_k"] = _for_each_k(n, lambda k: pass_at_k(n, counts, k))
    if right is not None and answers is None:
        left_out["maj_at_k"] = f"task {task.name} has no final_answer(completion), which says what a completion votes for"
    elif right is not None:
        given = [[answers(text) for text in group.texts] for group in groups]
        result["maj_at_k"] = _for_each_k(n, lambda k: np.array([majority_at_k(*of, k) for of in zip(given, right, strict=True)]))
    return result | {"left_out": left_out}


def _for_each_k(n: int, values: Any) -> dict[str, dict[str, float]]:
    return {str(k): dataclasses.asdict(over_questions(values(k))) for k in powers_up_to(n)}
