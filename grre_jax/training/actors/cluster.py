"""Explorers on a Ray cluster: actors that sample the learner's calls, restarted and placed by Ray.

The learner's process keeps the queue of calls; an idle explorer takes the next. Draws are addressed
(seed, position, attempt), so who samples a call changes no number. The learner seals what the
explorers return: a rollout folder has one writer.
"""

from __future__ import annotations

import collections
import dataclasses
import logging
import statistics
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError, Future
from importlib import metadata
from typing import Any

import optax

from grre_jax.errors import DataError, UsageError
from grre_jax.machine import keep_compiled
from grre_jax.parallel.mesh import MeshConfig
from grre_jax.rollouts import Group, encoding
from grre_jax.tasks import Question
from grre_jax.training import build
from grre_jax.training import state as states
from grre_jax.training.actors import weight_sync
from grre_jax.training.actors.explorer import Explorer, make_explorer
from grre_jax.training.config.run import Config
from grre_jax.training.runtime.stopwatch import Stopwatch

_log = logging.getLogger(__name__)

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
        self._inbox = weight_sync.Inbox(state.params, self._parts.full)

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
        policy = self._inbox.policy(version, params)
        call = (self._explorer.questions(positions), positions)
        (drawn,) = self._explorer.draw(policy, [call], size, attempt, version)
        return list(map(encoding.encode, self._explorer.judged(drawn)))


@dataclasses.dataclass
class _Call:
    """A call that an explorer is to sample, and who samples it."""

    arguments: tuple[Any, ...]
    result: Future[list[Group]] = dataclasses.field(default_factory=Future)
    begun: float = 0.0
    samplers: int = 0


class Occupation:
    """What explorers did since the last row of the log: seconds by state, and tokens drawn.

    Args:
        count: number of explorers.
    """

    STATES = ("starting", "idle", "sampling")

    def __init__(self, count: int) -> None:
        now = time.monotonic()
        self._entered = [("starting", now)] * count
        self._seconds: collections.Counter[tuple[int, str]] = collections.Counter()
        self._tokens: collections.Counter[int] = collections.Counter()
        self._lock = threading.Lock()  # the dispatcher enters, the learner takes

    def enter(self, explorer: int, state: str, tokens: int = 0) -> None:
        """Notes a change of an explorer's state, and the tokens that it has drawn."""
        with self._lock:
            self._note(explorer, state)
            self._tokens[explorer] += tokens

    def _note(self, explorer: int, state: str) -> None:
        now = time.monotonic()
        before, since = self._entered[explorer]
        self._seconds[explorer, before] += now - since
        self._entered[explorer] = (state, now)

    def take(self) -> dict[str, float]:
        """Returns the scalars of a row, and begins anew: of each explorer its tokens per second,
        and the shares of time in which it was idle, or (re)started.
        """
        scalars = {}
        with self._lock:
            for explorer, (state, _) in enumerate(self._entered):
                self._note(explorer, state)
                total = sum(self._seconds[explorer, name] for name in self.STATES) or 1e-9
                rate = self._tokens[explorer] / total
                scalars[f"tokens_per_second_explorer_{explorer}"] = rate
                for name in ("idle", "starting"):
                    share = self._seconds[explorer, name] / total
                    scalars[f"time_{name}_explorer_{explorer}"] = share
            self._seconds.clear()
            self._tokens.clear()
        return scalars


class Explorers:
    """The explorers of a run on a Ray cluster, with the methods of `Explorer` that a supply calls.

    Args:
        ray: the module, connected to the cluster.
        parts: of the run; `config.cluster.explorers` has number and resources of explorers.
        local: samples nothing; it finds the questions.
        judges: as of `Worker`.

    """

    remote = True

    def __init__(
        self, ray: Any, parts: build.Parts, local: Explorer, judges: Sequence[Any] = ()
    ) -> None:
        self.watch = Stopwatch()
        self._local = local
        self._ray = ray
        needed = parts.config.cluster.explorers
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
        self._outbox = weight_sync.Outbox(ray)
        self._calls: collections.deque[_Call] = collections.deque()
        self._seconds: list[float] = []
        self._closing = threading.Event()
        self._wanted = threading.Event()  # there may be calls to hand out
        # What Ray works on: of each result the explorer's number, and the call; None while it
        # starts.
        self._work: dict[Any, tuple[int, _Call | None]] = {}
        for explorer, actor in enumerate(self._actors):
            self._work[actor.ready.remote()] = (explorer, None)
        self._idle: list[int] = []
        self._occupation = Occupation(len(self._actors))
        self._restarts: collections.Counter[int] = collections.Counter()
        self._gauges = _gauges()
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
        policy = self._outbox.reference(version, params)
        asked = [_Call((policy, version, list(places), size, attempt)) for _, places in calls]
        self._calls.extend(asked)
        self._wanted.set()
        for call in asked:
            yield call.result

    def scalars(self) -> dict[str, float]:
        """Returns scalars of a train row about the explorers, and sends them to Ray's dashboard."""
        scalars = self._occupation.take()
        for explorer in range(len(self._actors)):
            tags = {"explorer": str(explorer)}
            rate = scalars[f"tokens_per_second_explorer_{explorer}"]
            self._gauges["tokens_per_second"].set(rate, tags)
            self._gauges["idle_share"].set(scalars[f"time_idle_explorer_{explorer}"], tags)
            self._gauges["restarts"].set(self._restarts[explorer], tags)
        self._gauges["queued_calls"].set(len(self._calls))
        return scalars

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
            explorer = self._idle.pop()
            call.begun = time.monotonic()
            call.samplers += 1
            result = self._actors[explorer].sample.remote(*call.arguments)
            self._work[result] = (explorer, call)
            self._occupation.enter(explorer, "sampling")

    def _straggler(self) -> _Call | None:
        if len(self._seconds) < LEAST_TIMED:
            return None
        latest = time.monotonic() - STRAGGLER * statistics.median(self._seconds)
        late = [c for _, c in self._work.values() if c and c.samplers == 1 and c.begun < latest]
        return min(late, key=lambda call: call.begun, default=None)

    def _take(self, ref: Any) -> None:
        """Takes the result of a call; one whose explorer died is sampled by another."""
        errors = self._ray.exceptions
        explorer, call = self._work[ref]
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
            del self._work[ref]
            # Answered once Ray has restarted it.
            self._work[self._actors[explorer].ready.remote()] = (explorer, None)
            self._occupation.enter(explorer, "starting")
            self._restarts[explorer] += 1
            _log.warning("explorer %d was lost; Ray restarts it", explorer)
            return
        if call is None and result != self._identity:
            raise UsageError(f"an explorer has {result}, and the learner {self._identity}")
        groups = [] if call is None or result is None else list(map(encoding.decode, result))
        tokens = sum(len(group.tokens) for group in groups)
        self._occupation.enter(explorer, "idle", tokens)
        if waits and result is not None:
            self._seconds.append(time.monotonic() - call.begun)
            call.result.set_result(groups)
        del self._work[ref]
        self._idle.append(explorer)


def _gauges() -> dict[str, Any]:
    """Returns the metrics that Ray's dashboard shows, by name."""
    from ray.util.metrics import Gauge

    about = {
        "tokens_per_second": "Tokens that an explorer draws a second",
        "idle_share": "Share of time in which an explorer has no call",
        "restarts": "Times that an explorer was lost",
    }
    gauges = {
        name: Gauge(f"grre_explorer_{name}", text, ("explorer",)) for name, text in about.items()
    }
    gauges["queued_calls"] = Gauge("grre_queued_calls", "Calls that no explorer has taken")
    return gauges
