"""Completions of a run to read: whole groups of its rollout folder, at even distances over the
run.
"""

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from grre_jax.rollouts.views import pieces

COMPLETIONS = 200  # embedded of a run, unless another number is given
OF_A_GROUP = 32  # most of one group: the best and the worst


def shown_groups(
    rollout_folder: str | os.PathLike, completions: int = COMPLETIONS
) -> dict[str, Any] | None:
    """Returns groups of a run's own rollout folder: the first, the last, and between them at even
    distances.

    Args:
        rollout_folder: a folder or the URL of one.
        completions: how many to show at most, in whole groups; at least one group is shown.

    Returns:
        "groups", in the order of the run, their number of "completions", and "total_groups" and
        "total_completions" of the folder.
        A group has "name", "version" (of the policy that sampled it; NaN if unknown), "prompt",
        "answer", "total" and "completions", the best first: text, reward, advantage (the reward
        less the group's mean), length in tokens, logprob (mean over its tokens under the policy
        that sampled it, nats) and components (name and value); numbers that are unknown are NaN.
        None if the folder does not exist or holds nothing.

    Raises:
        DataError: the folder's manifest or a group is damaged; names the file.
    """
    from grre_jax import rollouts
    from grre_jax.storage.remote import is_url

    if not is_url(rollout_folder) and not Path(rollout_folder).is_dir():
        return None
    reader = rollouts.read(rollout_folder)
    if not len(reader):
        return None
    total = sum(entry.completions for entry in reader.datasets)
    each = min(max(math.ceil(total / len(reader)), 1), OF_A_GROUP)
    count = min(max(completions // each, 1), len(reader))
    chosen = np.unique(np.linspace(0, len(reader) - 1, count).round().astype(int)).tolist()
    groups = [_shown(reader[number], min(each, completions)) for number in chosen]
    shown = sum(len(group["completions"]) for group in groups)
    totals = {"total_groups": len(reader), "total_completions": total}
    return {"groups": groups, "completions": shown} | totals


def _shown(group, most: int) -> dict[str, Any]:
    version = int(group.policy_version[0]) if len(group.policy_version) else -1
    rewards = group.rewards.astype(float)
    mean = group.judged_rewards.mean() if group.judged.any() else math.nan

    def shown(number: int) -> dict[str, Any]:
        tokens = slice(*group.offsets[number : number + 2])
        generated = group.mask[tokens] != 0
        known = group.behavior_logprobs is not None and generated.any()
        components = (group.components or {}).items()
        return {
            "text": "\n".join(pieces(group, number)),
            "reward": float(rewards[number]),
            "advantage": float(rewards[number] - mean),
            "length": float(group.lengths[number]) if len(group.tokens) else math.nan,
            "logprob": float(np.mean(group.behavior_logprobs[tokens][generated]))
            if known
            else math.nan,
            "components": [(name, float(values[number])) for name, values in components],
        }

    return {
        "name": group.question_id or group.group_id,
        "version": version if version >= 0 else math.nan,
        "prompt": group.prompt,
        "answer": group.answer,
        "total": len(rewards),
        "completions": [shown(number) for number in _ends(rewards.tolist(), most)],
    }


def _ends(rewards: Sequence[float], most: int) -> list[int]:
    """Indices of the rewards, the highest first, NaN last; of many the highest and the lowest."""
    order = np.argsort(-np.asarray(rewards), kind="stable").tolist()
    low = most // 2
    return order if len(order) <= most else order[: most - low] + order[len(order) - low :]
