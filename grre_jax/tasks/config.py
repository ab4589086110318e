"""The configuration's `task` section."""

from __future__ import annotations

import dataclasses
from typing import Any


@dataclasses.dataclass(frozen=True)
class TaskConfig:
    """What is asked and how answers are verified.

    Args:
        name: a built-in task or `module:function`.
        options: the task's own, by keyword.
        verify_processes: processes that judge completions; 0 judges in the run's own. -1 does so for tasks that say `trusted_verifier = True` (the built-in ones but math, guru_math and reasoning_gym),
            and takes a process a core, 8 at most, for others. Rewards that a task computes on the device need none.
        verify_timeout: seconds a completion may take in such a process. One without a verdict (it hangs, crashes, raises, or returns what is none) has reward 0.
    """

    name: str = "arithmetic"
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    verify_processes: int = -1
    verify_timeout: float = 10.0

    def __post_init__(self):
        if self.verify_processes < -1:
            raise ValueError(f"verify_processes must be at least -1, got {self.verify_processes}")
        if not 0 < self.verify_timeout < float("inf"):
            raise ValueError(f"verify_timeout must be above 0 and finite, got {self.verify_timeout}")
