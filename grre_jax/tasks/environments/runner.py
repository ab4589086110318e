"""Environments run in the caller's process, or in processes with a time limit for each step."""

from __future__ import annotations

import dataclasses
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from grre_jax.tasks.environments.environment import Environments
from grre_jax.tasks.judging import Failure
from grre_jax.tasks.pool import TaskSpec, VerifierPool, process_count
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
        observation, reward, done, info: of `environment.Step`.
        called: the action was taken as calls of tools.
    """

    observation: str
    reward: float
    done: bool
    info: dict[str, Any]
    called: bool


@dataclasses.dataclass(frozen=True)
class Trace:
    """The address of a trajectory.

    Attributes:
        key: names it among those under way.
        question, seed: its environment's.
    """

    key: tuple[int, ...]
    question: Question
    seed: int


class InProcessEnvironments:
    """Runs environments in the caller's own process and thread.

    Args:
        task: makes the environments.
        failed_reward: as of `judging.Report`.
    """

    def __init__(self, task: Any, failed_reward: float | None = None):
        self._environments = Environments(task)
        self.failed_reward = failed_reward

    def open(self, question: Question, seed: int) -> Opening | Failure:
        """Returns the beginning of all trajectories of a question and seed, or a failure."""
        return _made(Opening, self._environments("open", question, seed))

    def step(
        self, trace: Trace, before: list[tuple[str, str]], action: str
    ) -> Future[Reply | Failure]:
        """Answers a trajectory's action, after the actions and observations before it; a failure is
        returned, not raised.
        """
        asked = (trace.key, trace.question, trace.seed, before, action)
        future: Future[Reply | Failure] = Future()
        future.set_result(_made(Reply, self._environments("step", *asked)))
        return future

    def end(self, trace: Trace) -> None:
        """Closes the environment of a trajectory that was ended by a limit."""
        self._environments("close", trace.key)

    def close(self) -> None:
        """There is nothing to let go of."""


class EnvironmentPool:
    """Runs environments in several processes, each of which serves its own trajectories in turn.

    A process that ends under one trajectory is replaced, and the environments of its others are
    made again by their actions.

    Args:
        spec: the task.
        processes: how many.
        timeout: seconds that a step may take; then its process is killed.
        failed_reward: as of `judging.Report`.
    """

    def __init__(
        self, spec: TaskSpec, processes: int, timeout: float, failed_reward: float | None = None
    ):
        self._lanes = [_Lane(spec, timeout) for _ in range(processes)]
        self.failed_reward = failed_reward

    def open(self, question: Question, seed: int) -> Opening | Failure:
        """Returns the beginning of all trajectories of a question and seed, or a failure."""
        lane = self._lanes[seed % len(self._lanes)]
        return _made(Opening, lane.ask(("open", question, seed)).result())

    def step(
        self, trace: Trace, before: list[tuple[str, str]], action: str
    ) -> Future[Reply | Failure]:
        """Answers a trajectory's action, after the actions and observations before it; a failure is
        returned, not raised.
        """
        asked = ("step", trace.key, trace.question, trace.seed, before, action)
        done: Future[Reply | Failure] = Future()

        def forward(answered: Future) -> None:
            if error := answered.exception():
                done.set_exception(error)
            else:
                done.set_result(_made(Reply, answered.result()))

        self._lane(trace).ask(asked, 1 + len(before)).add_done_callback(forward)
        return done

    def end(self, trace: Trace) -> None:
        """Closes the environment of a trajectory that was ended by a limit."""
        self._lane(trace).ask(("close", trace.key))

    def close(self) -> None:
        """Ends the processes; they are started again when needed."""
        for lane in self._lanes:
            lane.thread.submit(lane.pool.close).result()

    def _lane(self, trace: Trace) -> _Lane:
        return self._lanes[hash(trace.key) % len(self._lanes)]


Runner = InProcessEnvironments | EnvironmentPool


def make_runner(
    task: Any,
    spec: TaskSpec,
    *,
    processes: int = -1,
    timeout: float = 10.0,
    failed_reward: float | None = None,
) -> Runner:
    """Returns the runner of a task's environments; arguments as of `pool.make_judge`."""
    count = process_count(task, processes)
    if not count:
        return InProcessEnvironments(task, failed_reward)
    return EnvironmentPool(spec, count, timeout, failed_reward)


class _Lane:
    """One process, asked by one thread, so that a trajectory's steps all go to it."""

    def __init__(self, spec: TaskSpec, timeout: float):
        self.pool, self._timeout = VerifierPool(spec, 1, timeout), timeout
        self.thread = ThreadPoolExecutor(1, "environments")
        self._known: tuple[list[int], set] = ([], set())  # its process, and trajectories there

    def ask(self, asked: tuple, steps: int = 1) -> Future:
        """Asks the process; `steps` are computed where the trajectory is not there yet."""
        return self.thread.submit(self._ask, asked, steps)

    def _ask(self, asked: tuple, steps: int) -> dict[str, Any] | Failure:
        pids, keys = self._known
        if pids != self.pool.pids:
            keys.clear()
        limit = self._timeout * (1 if asked[0] != "step" or asked[1] in keys else steps)
        (answer,) = self.pool.answers([(asked, f"a step of {asked[0]}")], limit)
        if asked[0] == "step":
            on = isinstance(answer, dict) and not answer["done"]
            (keys.add if on else keys.discard)(asked[1])
        self._known = (self.pool.pids, keys)
        return answer


def _made(kind: type, answer: dict[str, Any] | Failure) -> Any:
    return answer if isinstance(answer, Failure) else kind(**answer)
