"""The tasks of the in-graph studies, with the demonstrations that their warm starts imitate.

A start is decided by what is demonstrated, never by how long it was imitated: the time to reach an
accuracy differs by a factor of three between initial weights.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any


@dataclasses.dataclass(frozen=True)
class StudyTask:
    """A task of the studies.

    Args:
        task: its name, as of `tasks.build`.
        options: of the task, those of its demonstrations among them.
        bounds: by measure, the largest value that a warm start may have: a task that the start
            solves shows nothing about learning.
    """

    task: str
    options: Mapping[str, Any]
    bounds: Mapping[str, float]


STUDY_TASKS = {
    "arithmetic": StudyTask(
        "arithmetic",
        {"operands": 5, "answers": "full", "corruption": 0.0, "flaw": 0.6},
        {"greedy_accuracy": 0.4},
    ),
    "precedence": StudyTask(
        "research.in_graph.precedence:Precedence",
        {"operands": 5, "answers": "full", "corruption": 0.0, "flaw": 0.7},
        {"greedy_accuracy": 0.4},
    ),
    "sharpening": StudyTask(
        "arithmetic",
        {"operands": 4, "answers": "short", "corruption": 0.35},
        {"accuracy": 0.5},
    ),
}
