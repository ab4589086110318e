"""Verifiers and environments on processors of a Ray cluster.

Each judge is an actor with a process of its own (`pool.VerifierPool`), so that time limits and
failures are those of processes on one machine. Ray restarts a judge whose node or process is lost,
and repeats what it was asked.
"""

import uuid
from collections.abc import Sequence
from typing import Any

from grre_jax.tasks.config import TaskConfig
from grre_jax.tasks.judging import Failure
from grre_jax.tasks.pool import VerifierPool

CHUNKS = 4  # that each judge gets of what is judged together, so that all end at about one time


class Judge:
    """An actor that judges completions, or steps environments.

    Args:
        config, seed: as of `VerifierPool`.
    """

    def __init__(self, config: TaskConfig, seed: int) -> None:
        self._pool = VerifierPool(config, seed, 1)

    def answers(self, asked: Sequence[tuple]) -> list[dict[str, Any] | Failure]:
        """Returns the answers of `VerifierPool.answers`."""
        return self._pool.answers(asked)


def start(ray: Any, config: TaskConfig, seed: int, count: int) -> list[Any]:
    """Starts judges; returns them.

    Args:
        ray: the module, connected to the cluster.
        config, seed: as of `VerifierPool`.
        count: number of judges, a processor each.
    """
    actor = ray.remote(
        num_cpus=1,
        max_restarts=-1,
        max_task_retries=-1,
        scheduling_strategy="SPREAD",
    )(Judge)
    return [actor.remote(config, seed) for _ in range(count)]


class ClusterJudges(VerifierPool):
    """Judges completions by actors that `start` returned.

    Args:
        config, seed: as of `VerifierPool`.
        judges: the actors.
    """

    def __init__(self, config: TaskConfig, seed: int, judges: Sequence[Any]) -> None:
        super().__init__(config, seed, 1)  # whose own process never starts
        self._judges = judges
        self.prefix = (uuid.uuid4().int,)

    def answers(self, asked: Sequence[tuple]) -> list[dict[str, Any] | Failure]:
        """Returns the judges' answers; see `VerifierPool.answers`."""
        from ray.exceptions import RayTaskError
        from ray.util import ActorPool

        size = -(-len(asked) // (CHUNKS * len(self._judges))) or 1
        chunks = [asked[start : start + size] for start in range(0, len(asked), size)]
        answers = []
        found = ActorPool(self._judges).map(
            lambda judge, chunk: judge.answers.remote(chunk), chunks
        )
        try:
            for part in found:
                answers += part
        except RayTaskError as error:
            raise error.cause from None
        return answers
