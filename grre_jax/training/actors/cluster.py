"""Explorers on a Ray cluster: actors that sample the learner's calls, restarted and placed by Ray.

A thread of the learner's process serves each explorer: it takes the next call of a common list.
Draws are addressed (seed, position, attempt), so who samples a call changes no number. The learner
seals what the explorers return: a rollout folder has one writer.
"""

import collections
import dataclasses
import logging
import math
import statistics
import threading
import time
from collections.abc import Sequence
from concurrent.futures import CancelledError, Future
from typing import Any

import jax

import grre_jax
from grre_jax.errors import DataError, UsageError
from grre_jax.machine import keep_compiled
from grre_jax.parallel.mesh import MeshConfig
from grre_jax.rollouts import Group, encoding
from grre_jax.training import build
from grre_jax.training.actors.explorer import make_explorer
from grre_jax.training.config.run import Config

_log = logging.getLogger(__name__)

STRAGGLER = 4.0  # times the median seconds of a call, after which an idle explorer repeats it
LEAST_TIMED = 5  # calls before the median counts
MOST_TIMED = 100  # last calls that the median is of
POLL_SECONDS = 0.2  # between two looks of an idle explorer at calls that take too long


def identity(parts: build.Parts) -> dict[str, Any]:
    """Returns what an explorer must have as its learner has it."""
    return {
        "grre_jax": grre_jax.__version__,
        "tokenizer": parts.tokenizer.fingerprint,
        "parameters": parts.model.config.num_parameters,
    }


class Worker:
    """An explorer in a process of its own; Ray makes it an actor.

    Args:
        config: from which the actor builds model and task.
        judges: actors that judge what it samples; by itself if empty.
    """

    def __init__(self, config: Config, judges: Sequence[Any] = ()) -> None:
        keep_compiled(config.compiled)
        # On all devices that Ray gave the process.
        self._parts = build.build(dataclasses.replace(config, mesh=MeshConfig()))
        self._parts.use_judges(judges)
        encoding.import_libraries()  # before there are threads, which trace or write
        self._explorer = make_explorer(self._parts)
        self._layout = jax.tree.map(lambda array: array.sharding, self._parts.trained)
        self._version = -1
        self._policy: Any = None

    def ready(self) -> dict[str, Any]:
        """Returns what must agree with the learner's, once it can sample."""
        return identity(self._parts)

    def sample(self, params: Any, version: int, positions: list[int], size: int) -> list[bytes]:
        """Samples and judges a call; returns its groups as records.

        Args:
            params: trained parameters of the policy, on the host.
            version: of the policy.
            positions: of the call, in the prompt stream.
            size: shape of the call, in questions.
        """
        if version != self._version:
            self._policy = None  # freed before the next one is laid out
            trained = jax.device_put(params, self._layout)
            self._policy = self._explorer.policy(self._parts.full(trained))
            self._version = version
        groups = self._explorer.sample(self._policy, version, positions, size).result()
        return list(map(encoding.encode, groups))


@dataclasses.dataclass(eq=False)
class _Call:
    """A call that an explorer is to sample; how many sample it, and since when."""

    arguments: tuple[Any, ...]
    result: Future[list[Group]] = dataclasses.field(default_factory=Future)
    begun: float = 0.0
    samplers: int = 0


class Explorers:
    """The explorers of a run on a Ray cluster, with the methods of `Explorer` that a supply calls.

    Args:
        ray: the module, connected to the cluster.
        parts: of the run; `config.cluster.explorers` has number and resources of explorers.
        judges: as of `Worker`.
    """

    def __init__(self, ray: Any, parts: build.Parts, judges: Sequence[Any] = ()) -> None:
        from ray.util.metrics import Gauge

        self._ray = ray
        needed = parts.config.cluster.explorers
        actor = ray.remote(
            num_cpus=needed.cpus,
            num_gpus=needed.accelerators,
            resources=needed.resources,
            # Ray's -1 is without a limit: nodes may be lost any number of times.
            max_restarts=-1,
            # Not in the placement group of a learner that Ray started.
            scheduling_strategy="DEFAULT",
        )(Worker)
        self._actors = [actor.remote(parts.config, judges) for _ in range(needed.most)]
        self._identity = identity(parts)
        self._calls: list[_Call] = []  # that have no result, in order
        self._seconds: collections.deque[float] = collections.deque(maxlen=MOST_TIMED)
        self._error: BaseException | None = None  # that ended all explorers
        self._changed = threading.Condition()
        # By the metric that they become: tokens, and seconds without a call, since the last row.
        self._amounts = {
            f"{figure}_explorer_{number}": 0.0
            for figure in ("tokens_per_second", "time_idle")
            for number in range(needed.most)
        }
        self._row = time.monotonic()
        self._gauge = Gauge("grre_explorers", tag_keys=("figure",))
        self._threads = [
            threading.Thread(target=self._serve, args=pair, daemon=True, name="explorer")
            for pair in enumerate(self._actors)
        ]
        for thread in self._threads:
            thread.start()

    def policy(self, params: Any) -> Any:
        """Returns the reference to a policy in Ray's object store, one copy a node.

        Args:
            params: its trained parameters, on the host.
        """
        return self._ray.put(params)

    def sample(
        self, policy: Any, version: int, positions: Sequence[int], size: int
    ) -> Future[list[Group]]:
        """Has a call sampled and judged; see `Explorer.sample`."""
        call = _Call((policy, version, list(positions), size))
        with self._changed:
            if self._error:
                call.result.set_exception(self._error)
            else:
                self._calls.append(call)
                self._changed.notify()
        return call.result

    def scalars(self) -> dict[str, float]:
        """Returns figures of each explorer since the last call, for a row of the log. Ray's
        dashboard has them too, with the number of calls that wait, beside the actors' restarts.
        """
        with self._changed:
            now = time.monotonic()
            figures = {name: x / (now - self._row) for name, x in self._amounts.items()}
            self._amounts = dict.fromkeys(figures, 0.0)
            self._row = now
            waiting = sum(not call.samplers for call in self._calls)
        for name, value in (figures | {"waiting_calls": waiting}).items():
            self._gauge.set(value, {"figure": name})
        return figures

    def close(self) -> None:
        """Ends the explorers; open calls are cancelled."""
        # First, so that the threads do not take the end of an actor for a loss.
        self._fail(CancelledError())
        for actor in self._actors:
            self._ray.kill(actor)
        for thread in self._threads:
            thread.join()

    def _serve(self, number: int, actor: Any) -> None:
        """Has one explorer sample calls, one after the other."""
        errors = self._ray.exceptions
        ready = False
        while not self._error:
            call = None
            try:
                if not ready:
                    remote = self._ray.get(actor.ready.remote())
                    if remote != self._identity:
                        raise UsageError(
                            f"an explorer has {remote}, and the learner {self._identity}"
                        )
                    ready = True
                call = self._next(number)
                if call:
                    records = self._ray.get(actor.sample.remote(*call.arguments))
                    self._end(call, list(map(encoding.decode, records)), number)
            except errors.RayTaskError as error:
                # Raised by the code of the explorer, which would raise it again after a restart.
                self._fail(error.cause)
            except errors.RayError as error:  # the explorer, its node or its result is gone
                if getattr(error, "actor_init_failed", False):
                    self._fail(DataError(f"an explorer cannot start: {error}"))
                elif not self._error:
                    _log.warning("an explorer was lost; Ray restarts it")
                # What Ray starts in its place is compared with the learner again.
                ready = False
                if call:
                    # Another explorer may take it, or this one once it is restarted.
                    with self._changed:
                        call.samplers -= 1
            except Exception as error:
                self._fail(error)

    def _next(self, number: int) -> _Call | None:
        """Returns the next call without an explorer, or one that runs over STRAGGLER medians; None
        after POLL_SECONDS without either.
        """
        with self._changed:
            late = -math.inf
            if len(self._seconds) >= LEAST_TIMED:
                late = time.monotonic() - STRAGGLER * statistics.median(self._seconds)
            due = [c for c in self._calls if not c.samplers or (c.samplers == 1 and c.begun < late)]
            if not due:
                begun = time.monotonic()
                self._changed.wait(POLL_SECONDS)
                self._amounts[f"time_idle_explorer_{number}"] += time.monotonic() - begun
                return None
            # Calls without a sampler come first, in their order: `min` takes the first of equals.
            call = min(due, key=lambda call: call.samplers)
            call.samplers += 1
            call.begun = time.monotonic()
            return call

    def _end(self, call: _Call, groups: list[Group], number: int) -> None:
        """Takes the first result of a call."""
        tokens = sum(len(group.tokens) for group in groups)
        with self._changed:
            self._amounts[f"tokens_per_second_explorer_{number}"] += tokens
            # Of a call that was repeated the second result is dropped: both are the same.
            if call in self._calls:
                self._calls.remove(call)
                self._seconds.append(time.monotonic() - call.begun)
                call.result.set_result(groups)

    def _fail(self, error: BaseException) -> None:
        """Ends all calls, later ones too."""
        with self._changed:
            self._error = self._error or error
            for call in self._calls:
                call.result.set_exception(self._error)
            self._calls.clear()
            self._changed.notify_all()
