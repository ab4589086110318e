"""The supply of a run's own samples: sampled in this process by the policy that trains, or by
explorers on a cluster, and sealed in the run's rollout folder.

One thread verifies calls (the explorer's), another seals data sets, in the order of the draws, so
that the sampler waits for neither.
"""

import dataclasses
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any

import jax

from grre_jax import rollouts
from grre_jax.errors import DataError
from grre_jax.parallel import processes
from grre_jax.training import build
from grre_jax.training.actors.calls import call_of
from grre_jax.training.actors.cluster import Explorers
from grre_jax.training.actors.explorer import Explorer
from grre_jax.training.actors.weight_sync import Policy, publish
from grre_jax.training.checkpoints import Checkpoints
from grre_jax.training.data import plan
from grre_jax.training.data.plan import Samples
from grre_jax.training.metrics import Stopwatch
from grre_jax.training.step import TrainState

# Prompts from which on a call that has fewer is sampled in a quarter of its shape.
LEAST_PROMPTS = 64
WRITER = "explorer"  # of the data sets
VERSIONS_AT_ONCE = 2  # policies that explorers sample with, or are to sample with next
PAUSE = 0.25  # seconds between two calls of `between` while nothing is sealed
TURN_SECONDS = 0.5  # after which the processes of a learner agree whether to wait on
# A network file system may show a new file only after its caches have expired.
SHARED_FOLDER_SECONDS = 90


@dataclasses.dataclass(eq=False)
class Supply:
    """Seals the run's own samples before each step: the policy of a step samples all positions that
    the schedule assigns to it. The learner waits for those that it trains on next.

    With explorers on a cluster threads of the first process hand out their calls beside the
    learner, and the others follow what that process finds.

    Args:
        parts: configuration, mesh and provenance.
        checkpoints: of earlier policies, which a resumed run may sample with.
        explorer: samples for training, in this process or on a cluster.
        own: the samples of the run's schedule, and the folder where they are sealed.
        writers: calls whose data sets are waited for side by side.

    Attributes:
        watch: seconds by phase, for the metrics of a step.
    """

    parts: build.Parts
    explorer: Explorer | Explorers
    own: Samples
    checkpoints: Checkpoints
    writers: int = 1

    def __post_init__(self) -> None:
        self.reader = self.own.source.reader
        self.apart = self.parts.config.cluster.samples
        self.watch = Stopwatch() if self.apart else self.explorer.watch
        self._together = processes.many() and not self.apart  # the processes sample together
        self._threads = ThreadPoolExecutor(VERSIONS_AT_ONCE)  # each hands out a version's calls
        self._sealer = ThreadPoolExecutor(self.writers)
        # A rollout folder has one writer at a time, and there may be several threads.
        self._sealing = threading.Lock()
        self._open: set[Future] = set()  # what `_wait` waits for
        self._asked: list[Future] = []  # versions of the threads
        self._begun = False
        self._sampled: set[int] = set()  # versions that may not be sealed yet

    def ensure(self, step: int, state: TrainState, bar: Any, between: Callable[[], None]) -> None:
        """Returns once the samples of `step` are sealed.

        Args:
            step: the next training step.
            state: after `step` updates.
            bar: shows the phase.
            between: called while samples are missing; it may raise to stop.

        Raises:
            DataError: the samples cannot be sealed.
        """
        # A resumed run may lack batches that earlier policies were to sample (explorers were
        # stopped, a shard was lost): they can be drawn as long as those policies' checkpoints
        # exist.
        versions = {step}
        if not self._begun:
            versions |= {version for version in self.checkpoints.steps if version < step}
        self._begun = True
        for version in sorted(versions):
            missing = self.own.unsampled(version, since=step)
            # Publishing a policy takes all processes, so they all go by the count of the first.
            count = int(processes.gather_ints(len(missing))[0])
            if not count:
                continue
            bar.phase(f"sampling {count} groups")
            params = state.params
            if version != step:
                params = self.checkpoints.restore_params(params, version)
            self._sample_version(version, params, step, between)

        def sealed() -> bool:
            return not self.own.missing(step)

        self._wait(sealed, between)
        # The first process has seen them sealed; a shared file system may show them later to
        # others.
        if self.apart and processes.many():
            refresh_until(self.reader, sealed)
        bar.phase("")

    def settle(self, step: int) -> None:
        """Returns once a run that is continued from a checkpoint of `step` lacks nothing: all that
        earlier policies sample is sealed, or they have checkpoints of their own, which are kept.
        """
        kept = {*self.checkpoints.steps} if self.apart else set()

        def settled() -> bool:
            self._sampled = set(filter(self.own.needs, self._sampled))
            return not {v for v in self._sampled if v < step} - kept

        self._wait(settled)

    def close(self) -> None:
        """Ends the threads, once what was drawn is sealed."""
        self.explorer.close()
        self._threads.shutdown(cancel_futures=True)
        self._sealer.shutdown()

    # ---- waiting

    def _wait(
        self, until: Callable[[], bool] = lambda: False, between: Callable[[], None] = lambda: None
    ) -> None:
        """Returns once a condition holds or nothing is under way.

        Args:
            until: the condition; looked at again whenever something is sealed.
            between: called whenever something is sealed, and now and then; it may raise to stop.

        Raises:
            Exception: of what failed, in a call or a data set.
        """
        with self.watch("waiting" if self.apart else "verification"):
            if not (self.apart and processes.many()):
                self._wait_here(until, between)
                return
            while not self._ended_together(until):
                between()  # in all processes at once

    def _wait_here(self, until: Callable[[], bool], between: Callable[[], None]) -> None:
        done = False
        while self._open and not done:
            done = until()
            # What has ended is looked at even if the condition holds, so that its error is raised.
            ended, _ = wait(self._open, 0 if done else PAUSE, FIRST_COMPLETED)
            self._open -= ended
            for work in ended:
                work.result()
            between()

    def _ended_together(self, until: Callable[[], bool]) -> bool:
        """Waits for some time; True, in all processes, if in the first one a condition holds or
        nothing is under way.
        """

        def ended() -> bool:
            end = time.monotonic() + TURN_SECONDS
            self._wait_here(lambda: until() or time.monotonic() > end, lambda: None)
            return until() or not self._open

        value = processes.on_first(ended)
        return bool(processes.gather_ints(int(value or 0))[0])

    # ---- sampling

    def sample(self, policy: Policy, positions: Sequence[int], size: int) -> Future[None]:
        """Samples a call and seals those of its groups that the rollout folder lacks, as a data
        set of their own.

        Draws are addressed, so groups that a killed run had sealed are kept. A call is sampled
        whole, so that missing groups come out with the same bits.

        Args:
            policy: samples.
            positions: of the call, in the prompt stream.
            size: shape of the call, in questions.

        Returns:
            A future that ends once they are sealed.
        """
        judged = self.explorer.sample(policy.weights, policy.version, positions, size)
        sealed = self._sealer.submit(self._seal, policy, judged)
        self._open.add(sealed)
        return sealed

    def _seal(self, policy: Policy, judged: Future[list[rollouts.Group]]) -> None:
        """Seals the groups of a call once they are judged; of a run of several processes each
        seals those that it has judged.
        """
        groups = [
            group
            for group in judged.result()
            if self.reader.find(group.position, policy.version) is None
        ]
        if not groups:
            return
        with self._sealing:
            name = rollouts.write(
                self.reader.folder,
                groups,
                writer=f"{WRITER}-{jax.process_index()}" if self._together else WRITER,
                policy_version=policy.version,
                metadata=policy.metadata,
            )
            # The learner takes them from memory, in place of decoding what was just written.
            self.reader.keep(name, groups)
            if not self._together:  # they look at the folder together
                self.reader.refresh()

    def _sample_version(
        self, version: int, params: Any, since: int, between: Callable[[], None]
    ) -> None:
        """Samples what a version is to sample for the steps from `since`, or has a thread do it as
        soon as one is free.
        """
        config = self.parts.config
        positions = config.schedule.sampled(version, config.training.steps)
        size = call_of(config.sampling, len(positions)).prompts
        targets = {*config.schedule.sampled(version, config.training.steps, since)}
        # All positions are cut before calls are chosen, so that a resumed run makes the same calls.
        calls = [call for call in calls_of(positions, size) if not targets.isdisjoint(call)]
        self._sampled.add(version)
        if not self.apart:
            self._sample_calls(self._publish(version, params), calls, size, between)
            if self._together:
                self._wait()
                refresh_together(self.reader)
            return

        def room() -> bool:
            self._asked = [work for work in self._asked if not work.done()]
            return len(self._asked) < VERSIONS_AT_ONCE

        self._wait(room, between)
        policy = self._publish(version, params)
        if processes.is_first():  # which has the explorers
            work = self._threads.submit(self._sample_calls, policy, calls, size, lambda: None)
            self._asked.append(work)
            self._open.add(work)

    def _publish(self, version: int, params: Any) -> Policy:
        return publish(version, params, self.parts, self.explorer, self.checkpoints, self.watch)

    def _sample_calls(
        self,
        policy: Policy,
        calls: list[list[int]],
        size: int,
        between: Callable[[], None],
    ) -> None:
        """Samples the calls of which a group is missing, and the refills of groups without signal
        (`training.data.plan`). On a cluster all are sealed when it returns; else the last are
        being verified and sealed.

        Args:
            policy: samples.
            calls: positions of each call, from `calls_of`.
            size: positions per call.
            between: called after each call; it may raise to stop.
        """
        rounds = self.own.rounds
        sealed: list[Future[None]] = []
        for round_ in range(rounds + 1):
            refills = [[plan.refill_position(p, round_) for p in call] for call in calls]
            # Few prompts, such as refills, are sampled in a smaller shape, one of a few.
            most = max(map(len, refills), default=0)
            while size >= LEAST_PROMPTS and 4 * most <= size:
                size = -(-size // 4)
            for call in refills:
                if any(self.reader.find(place, policy.version) is None for place in call):
                    sealed.append(self.sample(policy, call, size))
                    between()
            if round_ < rounds:
                for work in sealed:
                    work.result()
                if self._together:
                    refresh_together(self.reader)
                calls = [
                    [
                        position
                        for position, refill in zip(call, refilled, strict=True)
                        if not self.reader.at(refill, policy.version).has_reward_variance
                    ]
                    for call, refilled in zip(calls, refills, strict=True)
                ]
                calls = list(filter(None, calls))
        if self.apart:
            wait(sealed)


class NewestSupply(Supply):
    """Has explorers on a cluster sample with the newest policy (`regime.newest`).

    A call begins only under a version that may sample the step which trains on it, so no group is
    discarded as too old, however long it takes.

    Args:
        parts, explorer, own, checkpoints: as of `Supply`.
    """

    def __post_init__(self) -> None:
        self.writers = 2 * self.parts.config.cluster.explorers.most  # calls under way
        super().__post_init__()
        self._calls: dict[int, Future[None]] = {}  # by their first position
        self._policy: Policy | None = None  # the newest

    def ensure(self, step: int, state: TrainState, bar: Any, between: Callable[[], None]) -> None:
        """Returns once the samples of `step` are sealed; see `Supply.ensure`."""
        bar.phase("waiting for explorers")

        def ready() -> bool:
            self._admit(step, state)
            return not self.own.missing(step)

        while not ready():
            self._wait(ready, between)
            if not ready() and not self._busy:
                raise DataError(
                    f"{self.reader.folder} lacks groups of step {step} that no newer policy"
                    f" may sample, at positions {self.own.missing(step)}: restore them from a copy"
                )
        bar.phase("")

    @property
    def _busy(self) -> int:
        return sum(not call.done() for call in self._calls.values())

    def _admit(self, step: int, state: TrainState) -> None:
        """Begins calls with the policy of `step`, in the order of the steps that train on them, as
        long as there is room.
        """
        config = self.parts.config
        steps = config.training.steps
        reuse = config.regime.reuse
        for ahead in range(step // reuse * reuse, steps, reuse):
            window = config.regime.window(ahead, steps)
            # Windows of later batches begin no earlier: none of them may have this policy yet.
            if step < window.start:
                return
            # Training on the batch has begun: it was complete by then.
            if step not in window:
                continue
            missing = {*self.own.missing(ahead)}
            positions = config.schedule(ahead).fresh
            size = call_of(config.sampling, len(positions)).prompts
            for call in calls_of(positions, size):
                if self._busy >= self.writers:
                    return
                if not missing.isdisjoint(call) and call[0] not in self._calls:
                    if self._policy is None or self._policy.version != step:
                        self._policy = self._publish(step, state.params)
                    self._calls[call[0]] = self.sample(self._policy, call, size)


def calls_of(positions: Sequence[int], size: int) -> list[list[int]]:
    """Returns the calls into which the positions that a policy version samples are cut."""
    return [list(positions[start : start + size]) for start in range(0, len(positions), size)]


def refresh_together(reader: rollouts.RolloutReader) -> None:
    """Refreshes the reader of every process of a run once all have sealed; afterwards each finds
    the same groups.

    Raises:
        DataError: the processes do not find the same groups: their folder is not shared.
    """
    processes.wait_for_all("rollouts sealed")
    reader.refresh()
    most = int(processes.gather_ints(len(reader)).max())
    refresh_until(reader, lambda: len(reader) >= most)


def refresh_until(reader: rollouts.RolloutReader, complete: Callable[[], bool]) -> None:
    """Refreshes the reader of every process of a run until a condition holds in all of them.

    Raises:
        DataError: it does not hold: their folder is not shared.
    """
    end = time.monotonic() + SHARED_FOLDER_SECONDS
    while not processes.gather_ints(int(complete())).all():
        # By agreement, since clocks differ: one that raised alone would leave the others waiting.
        if processes.gather_ints(int(time.monotonic() > end)).any():
            raise DataError(
                f"the processes do not see the same groups in {reader.folder}: the run folder must"
                " lie on storage that all of them share; choose another with --run-dir"
            )
        time.sleep(PAUSE)
        reader.refresh()
