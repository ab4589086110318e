"""Ranking of correct above incorrect answers by likelihood, before and after training."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from grre_jax import rollouts
from grre_jax.errors import DataError, UsageError
from grre_jax.rollouts import Group
from grre_jax.rollouts.views import check_limits, read_tokenised, within_limits
from grre_jax.storage import files
from grre_jax.training import build
from grre_jax.training.data.config import parse_range
from grre_jax.training.data.sources import limits
from grre_jax.training.evaluation.completion_logprobs import score_groups

RESAMPLES = 10_000  # of the bootstrap


def ranking(
    graph: Any, params: Any, groups: Sequence[Group], mesh: Any
) -> Float[np.ndarray, " groups"]:
    """Computes how often a correct completion's mean token log-prob exceeds an incorrect one's.

    A group's figure is the share of its (correct, incorrect) pairs in the right order, a tie
    counting one half: the area under the ROC curve within the question.

    Args:
        graph, params: the two halves of a model.
        groups: tokenised groups.
        mesh: as for `score_groups`.

    Returns:
        [groups] shares in [0, 1].

    Raises:
        DataError: a group has no such pair, or no correctness.
    """
    scores = score_groups(graph, params, groups, mesh)
    shares = np.zeros(len(groups))
    for i, (group, logprobs) in enumerate(zip(groups, scores, strict=True)):
        cuts = group.offsets[1:-1]
        parts = zip(np.split(logprobs, cuts), np.split(group.mask != 0, cuts), strict=True)
        means = np.array([row[generated].mean() for row, generated in parts])
        correct = _correct(group)
        right, wrong = means[correct], means[~correct]
        if not len(right) or not len(wrong):
            raise DataError(
                f"group {group.group_id} has no pair of a correct and an incorrect completion to"
                " rank"
            )
        margin = right[:, None] - wrong[None, :]
        shares[i] = np.mean((margin > 0) + 0.5 * (margin == 0))
    return shares


def _correct(group: Group) -> Bool[np.ndarray, " completions"]:
    if group.correct is None:
        raise DataError(
            f"group {group.group_id} has no correctness, and evaluation.ranking_questions ranks"
            " correct above incorrect completions: store the component 'correct' (`grre rollouts"
            " reverify`), or leave that field empty"
        )
    return group.correct[group.judged]


def paired_bootstrap(
    before: Float[np.ndarray, " n"], after: Float[np.ndarray, " n"]
) -> dict[str, float]:
    """Computes the percentile bootstrap of mean(after - before), resampling the pairs.

    Returns:
        before, after, difference: means.
        low, high: ends of the 95% interval of the difference.
        pairs: their number.
    """
    difference, count = after - before, len(before)
    draws = np.random.default_rng(0).integers(0, count, (RESAMPLES, count))
    low, high = np.quantile(difference[draws].mean(axis=1), [0.025, 0.975])
    means = {"before": before, "after": after, "difference": difference}
    found = {name: float(values.mean()) for name, values in means.items()}
    return found | {"low": float(low), "high": float(high), "pairs": count}


def held_out_groups(parts: build.Parts) -> list[Group]:
    """Returns the groups of evaluation.ranking_questions that have a pair to rank.

    Raises:
        UsageError: the run has no stored rollouts.
        DataError: no group has a pair, or one has no correctness.
    """
    config = parts.config
    if not config.evaluation.ranking_questions:
        return []
    if not config.data.path:
        raise UsageError("evaluation.ranking_questions needs stored rollouts: set data.path")
    reader = rollouts.read(config.data.path)
    indices = parse_range(
        config.evaluation.ranking_questions, "evaluation.ranking_questions", len(reader)
    )
    groups = [
        group
        for group in (read_tokenised(reader, index, parts.tokenizer) for index in indices)
        if np.unique(_correct(group)).size > 1
    ]
    if config.data.drop_over_limit:
        groups = [group for group in groups if within_limits(group, *limits(config))]
    for group in groups:
        check_limits(group, *limits(config))
    if not groups:
        raise DataError(
            f"no group of evaluation.ranking_questions = {config.evaluation.ranking_questions} has"
            " both a correct and an incorrect completion"
        )
    return groups


def save_ranking(
    folder: Path, before: np.ndarray, after: np.ndarray, groups: Sequence[Group], console: Any
) -> None:
    """Writes ranking.json, the ranking of each held-out question before and after training, and
    prints the paired difference.
    """
    result = paired_bootstrap(before, after)
    record = result | {
        "measure": (
            "share of (correct, incorrect) pairs of a question whose mean token log-prob is ranked"
            " right; paired bootstrap over questions, 95%"
        ),
        "questions": [
            {"group_id": g.group_id, "before": b, "after": a}
            for g, b, a in zip(groups, before.tolist(), after.tolist(), strict=True)
        ],
    }
    files.replace(folder / "ranking.json", json.dumps(record, indent=2) + "\n")
    console.print(
        "Ranking correct above incorrect on {pairs} held-out questions: {before:.4f} before,"
        " {after:.4f} after, difference {difference:+.4f} (95% interval {low:+.4f} to"
        " {high:+.4f})".format(**result)
    )
