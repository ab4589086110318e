"""Names that data sets have for the task and the software that made them."""

import contextlib
import importlib.metadata

import grre_jax
from grre_jax import tasks
from grre_jax.tasks.environments.environment import is_environment


def reward_name(task: tasks.Task) -> str:
    """Name the function that gives a task's rewards, with its version.

    Data sets keep the name for good, and runs compare it, so a built-in task has one that does not
    follow its file: `grre_jax.tasks.gsm8k:GSM8K.verify`.

    Args:
        task: a task, built in or not.

    Returns:
        The name and the task's `reward_version`, or this package's version where the task has none.
    """
    kind = type(task)
    module = kind.__module__.replace("grre_jax.tasks.datasets.", "grre_jax.tasks.")
    method = "environment" if is_environment(task) else "verify"
    source = getattr(task, "reward_source", f"{module}:{kind.__qualname__}.{method}")
    return f"{source} {getattr(task, 'reward_version', grre_jax.__version__)}"


def package_version(name: str) -> str:
    """Returns the version of an installed package, "?" for any other name."""
    with contextlib.suppress(importlib.metadata.PackageNotFoundError, ValueError):
        return importlib.metadata.version(name)
    return "?"
