"""The groups and responses that a run leaves out, in words: of its header and of `grre explain`."""

from __future__ import annotations

from collections.abc import Iterator

from grre_jax.objectives import Objective
from grre_jax.training.config.run import Config


def moves_without_reward_variance(objective: Objective) -> bool:
    """Returns True if a group whose rewards are all equal still moves the policy."""
    parts = (*objective.penalties, objective.returns)
    return objective.advantage.acts_without_variance or any(parts)


def stored_data(config: Config) -> bool:
    """Returns True if a step has groups whose age is unknown."""
    return bool(config.data.path or config.data.mix)


def left_out(config: Config, objective: Objective) -> Iterator[str]:
    """Lists what a run leaves out of training, or what stays without effect, a line each.

    Args:
        config: the run's.
        objective: its loss.
    """
    data = config.data
    if stored_data(config):
        if data.drop_zero_variance:
            kept = ", but an expert's" if "expert" in objective.requires else ""
            yield f"stored groups whose rewards are all equal{kept} (data.drop_zero_variance)"
        if data.drop_over_limit:
            yield "stored groups over the token limits (data.drop_over_limit)"
        if data.max_staleness >= 0:
            yield (
                f"stored groups more than {data.max_staleness} versions behind their folder's"
                " newest (data.max_staleness)"
            )
    if config.samples and data.max_staleness >= 0 and config.regime.replay_ratio:
        yield f"replay of groups more than {data.max_staleness} updates old (data.max_staleness)"
    if config.samples and data.dynamic_sampling:
        yield (
            "sampled groups whose rewards are all equal: each is refilled with another question up"
            f" to {data.dynamic_sampling} times (data.dynamic_sampling)"
        )
    elif (
        config.samples
        and not any(part.drops for part in objective.shaping)
        and not (objective.advantage.acts_without_variance or objective.returns)
        and not objective.term.differentiated
    ):
        penalties = ", ".join(part.name for part in objective.penalties)
        effect = f"acts by its penalties alone ({penalties})" if penalties else "has no effect"
        yield (
            f"no group, but one whose rewards are all equal {effect}: its advantages are 0, while"
            " its tokens count in the mean"
        )
    yield from (part.drops for part in (*objective.shaping, objective.advantage) if part.drops)
    if objective.filter:
        yield f"responses that filter={objective.filter.name} does not pass"
