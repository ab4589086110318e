"""Verifiers and environments on processors of a Ray cluster.

Each judge is an actor with a process of its own (`pool.VerifierPool`), so that time limits and
failures are those of processes on one machine. Ray restarts a judge whose node or process is lost,
and repeats what it was asked.
"""

import uuid
from collections.abc import Sequence
from typing import Any

from grre_jax.tasks.judging import Failure
from grre_jax.tasks.pool import VerifierPool
from grre_jax.tasks.rewards import TaskSpec

CHUNKS = 4  # that each judge gets of what is judged together, so that all end at about one time


class Judge:
    """An actor that judges completions, or steps environments.

    Args:
        spec: the task.
        timeout: seconds that a completion may take.
    """

    def __init__(self, spec: TaskSpec, timeout: float) -> None:
        self._pool = VerifierPool(spec, 1, timeout)

    def answers(self, asked: Sequence[tuple], timeout: float) -> tuple[list[Any], list[int]]:
        """Returns the answers of `VerifierPool.answers`, and the ids of its processes."""
        return self._pool.answers(asked, timeout), self._pool.pids


def start(ray: Any, spec: TaskSpec, count: int, timeout: float) -> list[Any]:
    """Starts judges; returns them.

    Args:
        ray: the module, connected to the cluster.
        spec: the task.
        count: number of judges, a processor each.
        timeout: seconds that a completion may take.
    """
    actor = ray.remote(
        num_cpus=1,
        max_restarts=-1,
        max_task_retries=-1,
        scheduling_strategy="SPREAD",
    )(Judge)
    return [actor.remote(spec, timeout) for _ in range(count)]


class ClusterJudges(VerifierPool):
    """Judges completions by actors that `start` returned.

    Args:
        spec: the task.
        judges: the actors.
        timeout: seconds that a completion may take.
    """

    def __init__(self, spec: TaskSpec, judges: Sequence[Any], timeout: float) -> None:
        super().__init__(spec, 1, timeout)  # which is never asked
        self._judges = judges
        self._pids: list[int] = []
        self.prefix = (uuid.uuid4().int,)

    @property
    def pids(self) -> list[int]:
        """Process ids of the judge that answered last."""
        return self._pids

    def answers(self, asked: Sequence[tuple], timeout: float) -> list[dict[str, Any] | Failure]:
        """Returns the judges' answers; see `VerifierPool.answers`."""
        from ray.exceptions import RayTaskError
        from ray.util import ActorPool

        size = -(-len(asked) // (CHUNKS * len(self._judges))) or 1
        chunks = [asked[start : start + size] for start in range(0, len(asked), size)]
        answers = []
        found = ActorPool(self._judges).map(
            lambda judge, chunk: judge.answers.remote(chunk, timeout), chunks
        )
        try:
            for part, self._pids in found:
                answers += part
        except RayTaskError as error:
            raise error.cause from None
        return answers
