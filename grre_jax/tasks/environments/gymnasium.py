"""Environments of Gymnasium's interface that observe and take text.

    grre train CONFIG --task.name gymnasium --task.options.env maze:Maze-v0
    grre train CONFIG --task.name gymnasium --task.options.env maze.py:make

What follows the reset of a group's environment is
decided by the question and the group's seed.
"""

from __future__ import annotations

import contextlib
import functools
from dataclasses import dataclass, field
from typing import Any

from grre_jax.tasks.environments.environment import SeededWorlds, Step, world_seed
from grre_jax.tasks.task import Question, factory, making


@dataclass(eq=False, repr=False)
class Gymnasium(SeededWorlds):
    """The task; see the module's text.

    Args:
        env: a registered environment, behind its module if importing this registers it
            ("maze:Maze-v0"), or path/to/file.py:function that returns one.
        arguments: of the environment.

    Raises:
        UsageError: the environment cannot be made, or its observation is not a text; or the
            package is not installed.
    """

    name = "gymnasium"

    env: str = ""
    arguments: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self):
        super().__post_init__()
        with making("env", self.env, self.arguments):
            if ".py:" in self.env:
                make = factory(self.env)
            else:
                import gymnasium

                make = functools.partial(gymnasium.make, self.env)
            self._make = functools.partial(make, **self.arguments)
            with contextlib.closing(self.environment()) as world:
                world.reset(Question("", "", ""), seed=0)

    @property
    def world(self) -> str:
        """The environment's name."""
        return self.env

    def environment(self) -> World:
        """An environment that has not begun."""
        return World(self._make(), self)


class World:
    """The environment of one trajectory.

    Args:
        world: has `reset`, `step` and `close` as gymnasium.Env.
        task: words the first message.
    """

    def __init__(self, world: Any, task: SeededWorlds):
        self._world = world
        self._task = task

    def reset(self, question: Question, seed: int) -> list[dict[str, str]]:
        """Begins."""
        observation, _ = self._world.reset(seed=world_seed(question, seed))
        return self._task.opening(observation)

    def step(self, action: str) -> Step:
        """Takes a turn's text."""
        observation, reward, terminated, truncated, _ = self._world.step(action)
        return Step(observation, reward, terminated or truncated)

    def close(self) -> None:
        """Closes the environment."""
        self._world.close()
