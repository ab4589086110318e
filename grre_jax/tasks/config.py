"""The configuration's `task` section."""

import dataclasses
from typing import Any

from grre_jax.domains import AboveZero, AtLeastMinusOne, Record, Share
from grre_jax.tasks.rewards import with_rewards
from grre_jax.tasks.task import Task, build


@dataclasses.dataclass(frozen=True)
class TaskConfig(Record):
    """The configuration's `task` section: the questions, and how answers are verified.

    Args:
        name (a task, or FILE.py:FUNCTION): a built-in task, or your own as package.module:function
            or path/to/file.py:function.
        options (the task's own, by keyword): arguments of the task's function, which the page on
            tasks lists: --task.options.path FOLDER.
        reward (FILE.py:FUNCTION, several by commas, or empty): reward functions in place of the
            task's verifier, each perhaps with =WEIGHT behind it; see `grre_jax.tasks.rewards`.
        verify_processes: processes that judge completions; 0 judges in the run's own process. -1
            does so for tasks with `trusted_verifier = True` (the built-in ones but math, guru_math
            and reasoning_gym), and takes one process per core, at most 8, for others. Rewards that
            a task computes on the device need none.
        verify_timeout: seconds that judging one completion may take in such a process.
        max_failure_share: largest share of the run's completions of 20 steps that may be without a
            verdict; the run stops at a larger one.
    """

    name: str = "arithmetic"
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    reward: tuple[str, ...] = ()
    verify_processes: AtLeastMinusOne = -1
    verify_timeout: AboveZero = 10.0
    max_failure_share: Share = 0.5

    def build(self, seed: int) -> Task:
        """Makes the task, in this process or another one.

        Args:
            seed: orders the training stream.

        Raises:
            UsageError: as of `tasks.build` and `rewards.with_rewards`.
        """
        return with_rewards(build(self.name, seed=seed, **self.options), self.reward)
