"""Python expressions that select groups, such as `reward_mean > 0.2 and length_max < 512`."""

from collections.abc import Callable
from typing import Any

import numpy as np

from grre_jax.errors import UsageError
from grre_jax.rollouts.schema import Group


def values(group: Group) -> dict[str, Any]:
    """Returns the names of an expression with their values for a group: its fields, and these."""
    rewards = group.judged_rewards if group.judged.any() else np.array([np.nan])
    correct = group.correct if group.judged.any() else None
    return vars(group) | {
        "has_reward_variance": group.has_reward_variance,
        "reward_mean": float(rewards.mean(dtype=np.float64)),
        "accuracy": np.nan if correct is None else float(correct[group.judged].mean()),
        "length_max": int(group.lengths.max()),
    }


def predicate(text: str) -> Callable[[Group], bool]:
    """Returns the function that evaluates an expression for a group.

    Args:
        text: a Python expression of the names of `values`; it is run as it stands.

    Raises:
        UsageError: it is not an expression. The function raises it for an expression that fails,
            as with a name that `values` does not have; the message names expression and group.

    Examples:
        >>> from grre_jax import rollouts
        >>> group = rollouts.Group(group_id="a", prompt="1+1=", texts=["2", "3"], rewards=[1, 0])
        >>> keep = rollouts.predicate("reward_mean > 0.2 and len(texts) == 2")
        >>> keep(group)
        True
    """
    try:
        code = compile(text.strip(), "<expression>", "eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise UsageError(
            f"--where: expected a Python expression, got {text!r}: {error}."
        ) from error

    def holds(group: Group) -> bool:
        names = values(group)
        try:
            return bool(eval(code, dict(names)))  # a copy, to which eval adds builtins
        except Exception as error:
            raise UsageError(
                f"--where: {text!r} fails for group {group.group_id!r}: {error}. Its names are"
                f" {', '.join(names)}."
            ) from error

    return holds
