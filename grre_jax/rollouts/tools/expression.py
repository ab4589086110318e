"""Python expressions that select groups, such as `reward_mean > 0.2 and length_max < 512`."""

from collections.abc import Callable
from typing import Any

import numpy as np

from grre_jax.errors import UsageError
from grre_jax.rollouts.schema import Group

_FIELDS = (
    *("group_id", "task", "question_id", "prompt", "answer", "engine", "position", "attempt"),
    *("temperature", "top_k", "top_p", "min_p", "seed", "has_reward_variance"),
)


def values(group: Group) -> dict[str, Any]:
    """Returns the names of an expression with their values for a group."""
    judged = group.judged_rewards if group.judged.any() else np.array([np.nan], np.float32)
    has_accuracy = group.correct is not None and bool(group.judged.any())
    return {name: getattr(group, name) for name in _FIELDS} | {
        "rewards": group.rewards.tolist(),
        "reward_mean": float(judged.mean(dtype=np.float64)),
        "reward_std": float(judged.std(dtype=np.float64)),
        "reward_min": float(judged.min()),
        "reward_max": float(judged.max()),
        "has_accuracy": has_accuracy,
        "accuracy": float(group.correct[group.judged].mean()) if has_accuracy else np.nan,
        "completions": group.num_completions,
        "failures": int((~group.judged).sum()),
        "tokens": len(group.tokens),
        "prompt_tokens": len(group.prompt_tokens),
        "lengths": group.lengths.tolist(),
        "length_min": int(group.lengths.min()),
        "length_mean": float(group.lengths.mean()),
        "length_max": int(group.lengths.max()),
        "version_min": int(group.policy_version.min()),
        "version_max": int(group.policy_version.max()),
        "stopped": group.finish_reasons.count("stop") / group.num_completions,
        "expert": float(group.is_expert.mean()),
        "has_logprobs": group.behavior_logprobs is not None,
    }


def predicate(text: str) -> Callable[[Group], bool]:
    """Returns the function that evaluates an expression for a group.

    Args:
        text: a Python expression of the names of `values`; it is run as it stands.

    Raises:
        UsageError: it is not an expression. The function raises it for an expression that fails,
            as with a name that `values` does not have; the message names expression and group.
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
            return bool(eval(code, dict(names)))
        except Exception as error:
            raise UsageError(
                f"--where: {text!r} fails for group {group.group_id!r}: {error}. Its names are"
                f" {', '.join(names)}."
            ) from error

    return holds
