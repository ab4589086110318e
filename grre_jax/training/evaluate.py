"""Evaluation: sampled accuracy on held-out questions, with KL to the start."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from grre_jax.errors import UsageError
from grre_jax.reporting import wilson_interval
from grre_jax.tasks import Question
from grre_jax.training.explore import Explorer
from grre_jax.training.score import score_groups


def evaluate(explorer: Explorer, params: Any, start_params: Any, questions: Sequence[Question], *, step: int) -> dict[str, float]:
    """Samples the held-out questions and scores the answers; the processes of a run share the questions, and each has the figures of all.

    Args:
        explorer: with the evaluation's own purpose and settings.
        params: to evaluate.
        start_params: of the policy before training, for the KL.
        questions: held-out questions; always the same, with fresh draws at each step.
        step: the training step, for the address of the draws.

    Returns:
        accuracy (mean reward of the completions), its 95% Wilson interval accuracy_low and accuracy_high (over completions; rewards count as fractions of a
        success), response_length (tokens), entropy-free kl_to_start: the k3 estimate of KL(policy || start), nats per token.
    """
    groups = explorer.all_groups(params, questions, range(len(questions)), policy_version=step, attempt=step)
    rewards = np.concatenate([g.rewards for g in groups])
    low, high = wilson_interval(float(rewards.sum()), len(rewards))
    start = np.concatenate(score_groups(explorer.graph, start_params, groups, explorer.mesh))
    log_ratio = start - np.concatenate([g.policy_logprobs for g in groups])  # log start/policy
    return {
        "accuracy": float(rewards.mean()),
        "accuracy_low": low,
        "accuracy_high": high,
        "response_length": float(np.concatenate([g.lengths for g in groups]).mean()),
        "kl_to_start": float(np.mean(np.expm1(log_ratio) - log_ratio)),
    }


def refuse_contaminated(contains: Sequence[str], split: str, *, allowed: bool) -> None:
    """Refuses to evaluate on a benchmark split that the training data holds.

    Raises:
        UsageError: `split` is among `contains` and it was not allowed.
    """
    if split in contains and not allowed:
        raise UsageError(
            f"the training data contains questions of {split}, so evaluating on it would report memory as skill: choose other questions, or pass --evaluation.allow-contaminated true"
        )
