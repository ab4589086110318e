"""The tasks of the in-graph studies, with the demonstrations that their warm starts imitate.

A start is decided by what is demonstrated, never by how long it was imitated: the time to reach an
accuracy differs by a factor of three between initial weights.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from grre_jax.domains import nearest
from grre_jax.errors import UsageError


@dataclasses.dataclass(frozen=True)
class StudyTask:
    """A task of the studies.

    Args:
        task: its name in `tasks.names()`.
        options: of the task, those of its demonstrations among them.
        bounds: by measure, the largest value that a warm start may have: a task that the start
            solves shows nothing about learning.
    """

    task: str
    options: Mapping[str, Any]
    bounds: Mapping[str, float]


STUDY_TASKS: Mapping[str, StudyTask] = {
    "arithmetic": StudyTask(
        "arithmetic",
        {"operands": 5, "answers": "full", "corruption": 0.0, "flaw": 0.6},
        {"greedy_accuracy": 0.4},
    ),
    "precedence": StudyTask(
        "arithmetic",
        {"operands": 5, "answers": "full", "corruption": 0.0, "flaw": 0.7, "precedence": True},
        {"greedy_accuracy": 0.4},
    ),
    "sharpening": StudyTask(
        "arithmetic",
        {"operands": 4, "answers": "short", "corruption": 0.35},
        {"accuracy": 0.5},
    ),
}


def study_task(name: str) -> StudyTask:
    """Returns a task of the studies by its name.

    Raises:
        UsageError: there is none of that name.
    """
    if name not in STUDY_TASKS:
        raise UsageError(
            f"--task {name}: the studies have no such task{nearest(name, STUDY_TASKS)}: choose one"
            f" of {', '.join(STUDY_TASKS)}"
        )
    return STUDY_TASKS[name]
