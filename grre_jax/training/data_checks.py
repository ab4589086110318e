"""Whether an objective can learn from a stored group: what it requires is there, and its ratio compares like with like."""

from __future__ import annotations

from pathlib import Path

from grre_jax import objectives
from grre_jax.errors import DataError
from grre_jax.objectives import Objective
from grre_jax.rollouts import Group
from grre_jax.rollouts.logprobs import ROUNDING
from grre_jax.training.objective_config import STORED_FIELDS


def demonstrates(group: Group, objective: Objective) -> bool:
    """Whether the whole group is an expert's, under an objective that treats an expert's completions apart: it then needs neither log-probs nor a signal."""
    return "expert" in objective.requires and bool(group.is_expert.all())


def check_stored(group: Group, name: str) -> None:
    """Refuses a group that lacks the log-probs of a field, ref_logprobs or prox_logprobs, which `objective.stored` takes from the data.

    Raises:
        DataError: naming the group.
    """
    if getattr(group, name) is None:
        role = next(role for role, field in STORED_FIELDS.items() if field == name)
        raise DataError(
            f"group {group.group_id} has no {role} log-probs, and field objective.stored takes them from the data: compute them with `grre rollouts rescore --as {role}`"
        )


def check_group(objective: Objective, temperature: float, group: Group, folder: Path | str) -> None:
    """Refuses a stored group that the objective cannot learn from.

    A ratio compares the policy with the stored behaviour log-probs, both at the sampling temperature and over the full vocabulary: whatever top-k, top-p or min-p
    the data was drawn with, the two are like. What is refused are log-probs that are not what they should be.

    Args:
        objective: which learns.
        temperature: at which training takes its log-probs.
        group: stored.
        folder: where, for messages.

    Raises:
        DataError: the objective needs behaviour log-probs and the group has none, or they are of another temperature, or of a truncated distribution.
    """
    if "old_logprobs" not in objective.requires or demonstrates(group, objective):
        return
    who = f"group {group.group_id} of {folder}"
    rescore = f"`grre rollouts rescore {folder}` computes them under a checkpoint"
    if group.behavior_logprobs is None:
        free = [row.name for row in objectives.algorithm_table() if not row.requires]
        raise DataError(
            f"{who} has no behaviour log-probs, and objective {objective.name} needs them: {rescore}; "
            f"or choose an objective that does without ({', '.join(free)}) with --objective.name"
        )
    if group.temperature != temperature:
        fix = f"set --sampling.temperature {group.temperature:g}, or take new ones: {rescore}" if group.temperature else rescore
        raise DataError(
            f"{who} was sampled at temperature {group.temperature:g} and sampling.temperature is {temperature:g}: a ratio would compare two distributions; {fix}"
        )
    if group.sampling_logprobs is not None:
        generated = group.mask != 0
        over = (group.behavior_logprobs - group.sampling_logprobs)[generated]
        if over.size and over.max() > ROUNDING:
            cut = f"top_k {group.top_k}, top_p {group.top_p:g}, min_p {group.min_p:g}"
            raise DataError(
                f"{who} was drawn with {cut} and has a token whose behaviour log-prob is {over.max():.3g} above that of the distribution it was drawn from, "
                f"as if truncation made it less likely: they are not log-probs over the full vocabulary, which a ratio compares; {rescore}"
            )
