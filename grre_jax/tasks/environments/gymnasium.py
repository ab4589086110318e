"""Environments of Gymnasium's interface that observe and take text, and TextArena's games for one
player.

    grre train CONFIG --task.name gymnasium --task.options.env maze:Maze-v0
    grre train CONFIG --task.name gymnasium --task.options.env maze.py:make
    grre train CONFIG --task.name textarena --task.options.env GuessTheNumber-v0

The packages are imported where they are used. What follows the reset of a group's environment is
decided by the question and the group's seed.
"""

from __future__ import annotations

import contextlib
import functools
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from grre_jax.tasks.environments.environment import Step
from grre_jax.tasks.environments.seeded_worlds import SeededWorlds, world_seed
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
            self._make = functools.partial(self._maker(self.env), **self.arguments)
            with contextlib.closing(self.environment()) as world:
                world.reset(Question("", "", ""), seed=0)

    @property
    def world(self) -> str:
        """The environment's name."""
        return self.env

    def environment(self) -> World:
        """An environment that has not begun."""
        return World(self._make(), self)

    def _maker(self, env: str) -> Callable:
        if ".py:" in env:
            return factory(env)
        import gymnasium

        return functools.partial(gymnasium.make, env)


class TextArena(Gymnasium):
    """The task of a game of TextArena (Guertler et al., arXiv 2504.11442) for one player; `env` is
    the game's name, such as "GuessTheNumber-v0". The reward is the game's, at its end.
    """

    name = "textarena"

    def _maker(self, env: str) -> Callable:
        # Without the wrappers that repeat earlier messages in each observation.
        import textarena

        return functools.partial(Arena, textarena, f"{env}-raw")


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


class Arena:
    """A game of TextArena with Gymnasium's interface.

    The games draw from Python's own generator, so each has a state of it to itself.

    Args:
        textarena: the package.
        env: the game's name.
        arguments: the game's.
    """

    def __init__(self, textarena: Any, env: str, **arguments: Any):
        self._arena = textarena
        self._draws = random.Random(0)
        self._game = textarena.make(env, **arguments)

    def reset(self, seed: int) -> tuple[str, dict]:
        """Begins a game of one player; returns its rules."""
        self._draws.seed(seed)
        with self._drawing():
            self._game.reset(num_players=1, seed=seed)
            return self._said(), {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict]:
        """Takes a move; returns the game's response."""
        with self._drawing():
            done, _ = self._game.step(action)
            if not done:
                return self._said(), 0.0, False, False, {}
            rewards, _ = self._game.close()
            return "", rewards[0], True, False, {}

    def close(self) -> None:
        """There is nothing to let go of."""

    def _said(self) -> str:
        own = self._arena.ObservationType.PLAYER_ACTION
        _, messages = self._game.get_observation()
        return "\n".join(text for _, text, kind in messages if kind is not own)

    @contextlib.contextmanager
    def _drawing(self) -> Iterator[None]:
        outer = random.getstate()
        random.setstate(self._draws.getstate())
        try:
            yield
        finally:
            self._draws.setstate(random.getstate())
            random.setstate(outer)
