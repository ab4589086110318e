"""Environments run in the caller's process, or in processes with a time limit for each step."""

import dataclasses
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from grre_jax.tasks.config import TaskConfig
from grre_jax.tasks.environments.environment import Environments, is_environment
from grre_jax.tasks.judging import Failure, InProcess
from grre_jax.tasks.pool import Judge, VerifierPool, process_count
from grre_jax.tasks.task import Question


@dataclasses.dataclass(frozen=True)
class Opening:
    """The beginning of a question's trajectories.

    Attributes:
        messages: what the policy reads first.
        tools: definitions of functions for the chat template, None for none.
    """

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None


@dataclasses.dataclass(frozen=True)
class Reply:
    """An environment's answer to an action.

    Attributes:
        observation, reward, done: of `environment.Step`.
        called: the action was taken as calls of tools.
        components: of `environment.Step`, empty for none.
    """

    observation: str
    reward: float
    done: bool
    called: bool
    components: dict[str, float | None] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Trace:
    """The address of a trajectory.

    Attributes:
        key: names it among those under way.
        question, seed: its environment's.
        opening: `fingerprint` of the messages that it begins with; None if they are not known.
    """

    key: tuple[int, ...]
    question: Question
    seed: int
    opening: int | None = None


class InProcessEnvironments:
    """Runs environments in the caller's own process and thread.

    Args:
        task: makes the environments.
    """

    def __init__(self, task: Any):
        self._environments = Environments(task)

    def open(self, question: Question, seed: int) -> Opening | Failure:
        """Returns the beginning of all trajectories of a question and seed, or a failure."""
        return self._ask(Opening, (seed,), "open", question, seed).result()

    def step(
        self, trace: Trace, before: list[tuple[str, str]], action: str
    ) -> Future[Reply | Failure]:
        """Answers a trajectory's action, after the actions and observations before it; a failure is
        returned, not raised.
        """
        return self._ask(
            Reply, trace.key, "step", trace.question, trace.seed, before, action, trace.opening
        )

    def end(self, trace: Trace) -> None:
        """Closes the environment of a trajectory that was ended by a limit."""
        self._ask(dict, trace.key, "close")

    def close(self) -> None:
        """Ends the processes, if any; they are started again when needed."""

    def _ask(self, kind: type, key: tuple[int, ...], *asked: Any) -> Future[Any]:
        """Returns the answer to a request of `Environments` as an object of a class."""
        future: Future[Any] = Future()
        future.set_result(_made(kind, self._environments(key, *asked)))
        return future


Runner = InProcessEnvironments


class EnvironmentPool(InProcessEnvironments):
    """Runs environments in several processes, each of which serves its own trajectories in turn.

    A process that ends under one trajectory is replaced, and the environments of its others are
    made again by their actions, in the time of a step.

    Args:
        pools: of one process each.
    """

    def __init__(self, pools: Sequence[VerifierPool]):
        # A thread for each, so that a trajectory's steps all go to one process.
        self._lanes = [(pool, ThreadPoolExecutor(1, "environments")) for pool in pools]

    def close(self) -> None:
        """Ends the processes; they are started again when needed."""
        for pool, _ in self._lanes:
            pool.close()

    def _ask(self, kind: type, key: tuple[int, ...], *asked: Any) -> Future[Any]:
        pool, thread = self._lanes[hash(key) % len(self._lanes)]
        return thread.submit(lambda: _made(kind, *pool.answers([((*pool.prefix, *key), *asked)])))


def make_judge(task: Any, config: TaskConfig, seed: int) -> Judge | Runner:
    """Returns the judge of a task's completions, or the runner of its environments.

    Args:
        task: built from `config` and `seed`.
        config: how processes build it, how many they are, and their time limit.
        seed: of the task.
    """
    count = process_count(task, config.verify_processes)
    if is_environment(task):
        if not count:
            return InProcessEnvironments(task)
        return EnvironmentPool([VerifierPool(config, seed, 1) for _ in range(count)])
    return VerifierPool(config, seed, count) if count else InProcess(task, config.verify_timeout)


def _made(kind: type, answer: dict[str, Any] | Failure) -> Any:
    return answer if isinstance(answer, Failure) else kind(**answer)
