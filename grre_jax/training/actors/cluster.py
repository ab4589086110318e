"""Explorers on a Ray cluster: actors that sample the learner's calls, restarted and placed by Ray.

The learner's process keeps the queue of calls; an idle explorer takes the next. Draws are addressed
(seed, position, attempt), so who samples a call changes no number. The learner seals what the
explorers return: a rollout folder has one writer.
"""

from __future__ import annotations

import collections
import dataclasses
import statistics
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError, Future
from importlib import metadata
from typing import Any

import jax
import optax

from grre_jax import ray_cluster
from grre_jax.errors import DataError, UsageError
from grre_jax.machine import keep_compiled
from grre_jax.parallel import processes
from grre_jax.parallel.mesh import MeshConfig
from grre_jax.rollouts import Group, encoding
from grre_jax.tasks import Question
from grre_jax.training import build
from grre_jax.training import state as states
from grre_jax.training.actors.explorer import Explorer, make_explorer
from grre_jax.training.config.run import Config
from grre_jax.training.runtime.stopwatch import Stopwatch

STRAGGLER = 4.0  # times the median seconds of a call, after which an idle explorer repeats it
LEAST_TIMED = 5  # calls before the median counts
POLL_SECONDS = 0.05


def identity(parts: build.Parts) -> dict[str, Any]:
    """Returns what an explorer must have as its learner has it."""
    return {
        "grre_jax": metadata.version("grre-jax"),
        "tokenizer": parts.tokenizer.fingerprint,
        "parameters": parts.model.config.num_parameters,
    }


class Worker:
    """An explorer in a process of its own; Ray makes it an actor.

    Args:
        config: of the run.
        judges: actors that judge what it samples; by itself if empty.
    """

    def __init__(self, config: Config, judges: Sequence[Any] = ()) -> None:
        keep_compiled(config.compiled)
        # On all devices that Ray gave the process.
        self._parts = build.build(dataclasses.replace(config, mesh=MeshConfig()))
        self._parts.use_judges(judges)
        graph, state = states.create(self._parts.model, optax.identity(), self._parts.mesh)
        self._explorer = make_explorer(self._parts, graph)
        self._like = state.params
        self._policy: tuple[int, Any] = (-1, None)

    def ready(self) -> dict[str, Any]:
        """Returns what must agree with the learner's, once it can sample."""
        return identity(self._parts)

    def sample(
        self, params: Any, version: int, positions: list[int], size: int, attempt: int
    ) -> list[bytes]:
        """Samples and judges a call; returns its groups as records.

        Args:
            params: trained parameters of the policy, on the host.
            version: of the policy.
            positions: of the call, in the prompt stream.
            size: shape of the call, in questions.
            attempt: of the draws.
        """
        if self._policy[0] != version:
            self._policy = (-1, None)  # frees the one before
            layout = jax.tree.map(lambda array: array.sharding, self._like)
            self._policy = (version, self._parts.full(jax.device_put(params, layout)))
        call = (self._explorer.questions(positions), positions)
        (drawn,) = self._explorer.draw(self._policy[1], [call], size, attempt, version)
        return list(map(encoding.encode, self._explorer.judged(drawn)))


@dataclasses.dataclass
class _Call:
    """A call that an explorer is to sample, and who samples it."""

    arguments: tuple[Any, ...]
    result: Future[list[Group]] = dataclasses.field(default_factory=Future)
    begun: float = 0.0
    samplers: int = 0


class Explorers:
    """The explorers of a run on a Ray cluster, with the methods of `Explorer` that a supply calls.

    Args:
        ray: the module, connected to the cluster.
        parts: of the run; `config.cluster.explorers` has number and resources of explorers.
        local: samples nothing; it finds the questions.
        judges: as of `Worker`.

    Raises:
        UsageError: the cluster lacks the resources for the least number of explorers.
    """

    remote = True

    def __init__(
        self, ray: Any, parts: build.Parts, local: Explorer, judges: Sequence[Any] = ()
    ) -> None:
        if processes.many():
            raise UsageError(
                "cluster.explorers.most: expected 0 for a learner of several processes, got"
                f" {parts.config.cluster.explorers.most}"
            )
        self.watch = Stopwatch()
        self._local = local
        self._ray = ray
        needed = parts.config.cluster.explorers
        ray_cluster.require(self._ray, "cluster.explorers.least", needed.least, needed.each)
        actor = self._ray.remote(
            num_cpus=needed.cpus,
            num_gpus=needed.accelerators,
            resources=needed.resources,
            max_restarts=-1,
            # Not in the placement group of a learner that Ray started.
            scheduling_strategy="DEFAULT",
        )(Worker)
        self._actors = [actor.remote(parts.config, judges) for _ in range(needed.most)]
        self._identity = identity(parts)
        self._policy: tuple[int, Any] = (-1, None)
        self._calls: collections.deque[_Call] = collections.deque()
        self._seconds: list[float] = []
        self._closing = threading.Event()
        self._wanted = threading.Event()  # there may be calls to hand out
        # What Ray works on: of each result the explorer, and the call; None while it starts.
        self._work: dict[Any, tuple[Any, _Call | None]] = {}
        for explorer in self._actors:
            self._work[explorer.ready.remote()] = (explorer, None)
        self._idle: list[Any] = []
        self._thread = threading.Thread(target=self._dispatch, daemon=True, name="explorers")
        self._thread.start()

    def questions(self, positions: Sequence[int]) -> list[Question]:
        """Returns the questions of positions of the prompt stream."""
        return self._local.questions(positions)

    def draw(
        self,
        params: Any,
        calls: Sequence[tuple[Sequence[Question], Sequence[int]]],
        size: int,
        attempt: int = 0,
        version: int = 0,
    ) -> Iterator[Future[list[Group]]]:
        """Has calls sampled, all at once; see `Explorer.draw`.

        Args:
            params: trained parameters, on the host.
            calls: questions and positions of each.
            size: shape of every call.
            attempt: of the draws.
            version: of the policy.

        Yields:
            The judged groups of each call, once they are there.
        """
        if self._policy[0] != version:
            self._policy = (version, self._ray.put(params))  # one copy a node
        policy = self._policy[1]
        asked = [_Call((policy, version, list(places), size, attempt)) for _, places in calls]
        self._calls.extend(asked)
        self._wanted.set()
        for call in asked:
            yield call.result

    def judged(self, drawn: Future[list[Group]]) -> list[Group]:
        """Returns the groups of a call, which its explorer has judged."""
        return drawn.result()

    def close(self) -> None:
        """Ends the explorers."""
        self._closing.set()
        self._wanted.set()
        self._thread.join()
        for actor in self._actors:
            self._ray.kill(actor)

    def _dispatch(self) -> None:
        error: Exception = CancelledError()
        try:
            while not self._closing.is_set():
                self._wanted.clear()
                self._hand_out()
                if not self._work:
                    self._wanted.wait()
                    continue
                done, _ = self._ray.wait(list(self._work), timeout=POLL_SECONDS)
                for ref in done:
                    self._take(ref)
        except Exception as found:  # an explorer that cannot start, or Ray itself
            error = found
        while True:
            self._fail(error)
            if self._closing.wait(POLL_SECONDS):
                break
        self._fail(error)

    def _fail(self, error: Exception) -> None:
        open_ = [call for _, call in self._work.values() if call]
        self._work.clear()
        while self._calls:
            open_.append(self._calls.popleft())
        for call in open_:
            if not call.result.done():
                call.result.set_exception(error)

    def _hand_out(self) -> None:
        """Gives each idle explorer the next call, or one that takes another far too long."""
        while self._idle:
            call = self._calls.popleft() if self._calls else self._straggler()
            if call is None:
                return
            actor = self._idle.pop()
            call.begun = time.monotonic()
            call.samplers += 1
            self._work[actor.sample.remote(*call.arguments)] = (actor, call)

    def _straggler(self) -> _Call | None:
        if len(self._seconds) < LEAST_TIMED:
            return None
        latest = time.monotonic() - STRAGGLER * statistics.median(self._seconds)
        late = [c for _, c in self._work.values() if c and c.samplers == 1 and c.begun < latest]
        return min(late, key=lambda call: call.begun, default=None)

    def _take(self, ref: Any) -> None:
        """Takes the result of a call; one whose explorer died is sampled by another."""
        errors = self._ray.exceptions
        explorer, call = self._work.pop(ref)
        waits = call is not None and not call.result.done()
        try:
            result = self._ray.get(ref)
        except errors.RayTaskError as error:
            if waits:
                call.result.set_exception(error.as_instanceof_cause())
            result = None
        except errors.RayError as error:  # the explorer, its node or its result is gone
            if getattr(error, "actor_init_failed", False):
                raise DataError(f"an explorer cannot start: {error}") from error
            if waits:
                call.samplers -= 1
                if not call.samplers:
                    self._calls.appendleft(call)
            self._work[explorer.ready.remote()] = (explorer, None)  # once Ray has restarted it
            return
        self._idle.append(explorer)
        if call is None and result != self._identity:
            raise UsageError(f"an explorer has {result}, and the learner {self._identity}")
        if waits and result is not None:
            self._seconds.append(time.monotonic() - call.begun)
            call.result.set_result(list(map(encoding.decode, result)))
