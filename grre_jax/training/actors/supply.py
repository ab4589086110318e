"""The supply of a run's own samples: sampled in this process by the policy that trains, or by
explorers on a cluster, and sealed in the run's rollout folder.

One thread verifies calls (the explorer's), another seals data sets, in the order of the draws, so
that the sampler waits for neither.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any, NamedTuple

import jax

from grre_jax import rollouts
from grre_jax.errors import DataError, UsageError
from grre_jax.parallel import processes
from grre_jax.training import build
from grre_jax.training.actors.calls import MOST_PROMPTS, call_of
from grre_jax.training.actors.cluster import Explorers
from grre_jax.training.actors.explorer import Explorer
from grre_jax.training.checkpoints import integrity
from grre_jax.training.checkpoints.folder import Checkpoints, listed
from grre_jax.training.config.run import Config
from grre_jax.training.data import plan
from grre_jax.training.data.choose import Chooser
from grre_jax.training.data.sources import Source
from grre_jax.training.runtime.metrics import Stopwatch
from grre_jax.training.state import TrainState

# Prompts from which on a call that has fewer is sampled in a quarter of its shape.
LEAST_PROMPTS = 64
WRITER = "explorer"  # of the data sets
VERSIONS_AT_ONCE = 2  # policies that explorers sample with, or are to sample with next
PAUSE = 0.25  # seconds between two calls of `between` while nothing is sealed
TURN_SECONDS = 0.5  # after which the processes of a learner agree whether to wait on
# A network file system may show a new file only after its caches have expired.
SHARED_FOLDER_SECONDS = 90

Calls = Sequence[Sequence[int]]  # positions in the prompt stream of each
Judged = Future[list[rollouts.Group]]  # of a call


class Policy(NamedTuple):
    """A policy that samples.

    Attributes:
        version: of the policy.
        weights: as the explorer takes them; None in a process that has no explorers.
        metadata: of the data sets that it samples.
    """

    version: int
    weights: Any
    metadata: dict[str, Any]


class Supply:
    """Seals the run's own samples before each step: the policy of a step samples all positions that
    the schedule assigns to it. The learner waits for those that it trains on next.

    With explorers on a cluster threads of the first process hand out their calls beside the
    learner, and the others follow what that process finds.

    Args:
        parts, checkpoints: of the run.
        explorer: samples for training, in this process or on a cluster.
        source: the run's rollout folder.
        writers: data sets that may wait for their calls side by side.

    Attributes:
        watch: seconds by phase, for the metrics of a step.
    """

    def __init__(
        self,
        parts: build.Parts,
        explorer: Explorer | Explorers,
        source: Source,
        checkpoints: Checkpoints,
        writers: int = 1,
    ) -> None:
        self.parts = parts
        self.explorer = explorer
        self.source = source
        self.checkpoints = checkpoints
        self.apart = parts.config.cluster.samples
        self.watch = Stopwatch() if self.apart else explorer.watch
        self._together = processes.many() and not self.apart  # the processes sample together
        self._threads = ThreadPoolExecutor(VERSIONS_AT_ONCE)  # each hands out a version's calls
        self._sealer = ThreadPoolExecutor(writers)
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
        earlier: list[int] = []
        if not self._begun:
            self._wait(between=between)
            earlier = [version for version in self.checkpoints.steps if version < step]
        self._begun = True
        config = self.parts.config
        for version in sorted({step, *earlier}):
            wanted = config.schedule.sampled(version, config.training.steps, since=step)
            missing = self._missing((position, version) for position in wanted)
            count = int(processes.gather_ints(len(missing.get(version, ())))[0])
            if not count:
                continue
            bar.phase(f"sampling {count} groups")
            params = state.params
            if version != step:
                params = self.checkpoints.restore_params(params, version)
            self._sample(version, params, frozenset(wanted), between)
        this_step = config.schedule(step).samples

        def sealed() -> bool:
            return not self._missing(this_step)

        self._wait(sealed, between)
        if self.apart and processes.many():
            refresh_until(self.source.reader, sealed)
        bar.phase("")

    def settle(self, step: int) -> None:
        """Returns once a run that is continued from a checkpoint of `step` lacks nothing: all that
        earlier policies sample is sealed, or they have checkpoints of their own, which are kept.
        """
        kept = {*self.checkpoints.steps} if self.apart else set()
        config = self.parts.config

        def settled() -> bool:
            self._sampled = {v for v in self._sampled if needs_checkpoint(config, self.source, v)}
            return not {v for v in self._sampled if v < step} - kept

        self._wait(settled)

    def close(self) -> None:
        """Ends the threads, once what was drawn is sealed."""
        self.explorer.close()
        self._threads.shutdown(cancel_futures=True)
        self._sealer.shutdown()

    def _missing(self, samples: Any) -> dict[int, list[int]]:
        rounds = self.parts.config.data.dynamic_sampling
        return plan.missing(self.source, samples, rounds)

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

        found = processes.on_first(ended)
        return bool(processes.gather_ints(int(found or 0))[0])

    # ---- sampling

    def _sample(
        self, version: int, params: Any, wanted: frozenset[int], between: Callable[[], None]
    ) -> None:
        """Samples the calls of a version that have positions of `wanted`, or has a thread do it as
        soon as one is free.
        """
        config = self.parts.config
        positions = config.schedule.sampled(version, config.training.steps)
        size = call_of(config.sampling, len(positions)).prompts
        calls = [call for call in calls_of(positions, size) if not wanted.isdisjoint(call)]
        self._sampled.add(version)
        if not self.apart:
            policy = self._published(version, params)
            self._sample_calls(policy, calls, size, between)
            if self._together:
                self._wait()
                refresh_together(self.source.reader)
            return

        def room() -> bool:
            self._asked = [work for work in self._asked if not work.done()]
            return len(self._asked) < VERSIONS_AT_ONCE

        self._wait(room, between)
        policy = self._published(version, params)
        if processes.is_first():  # which has the explorers
            work = self._threads.submit(self._sample_calls, policy, calls, size, lambda: None)
            self._asked.append(work)
            self._open.add(work)

    def _published(self, version: int, params: Any) -> Policy:
        """Returns a policy for the explorer, from its trained parameters."""
        full = jax.block_until_ready(self.parts.full(params))  # of a step that still computes
        with self.watch("weights"):
            digest = integrity.digest(full)
        weights = processes.fetch(params) if self.apart else full
        follows = self.apart and not processes.is_first()
        checkpoint = f"checkpoints/{version}" if version in self.checkpoints.steps else ""
        return Policy(
            version,
            None if follows else self.explorer.policy(weights),
            self.parts.provenance() | {"checkpoint": checkpoint, "weights": digest},
        )

    def _sample_calls(
        self, policy: Policy, calls: Calls, size: int, between: Callable[[], None]
    ) -> None:
        """Samples the groups that are missing from the rollout folder, and the refills of groups of
        zero variance (`training.data.plan`). On a cluster all are sealed when it
        returns; else the last are being verified and sealed.

        Draws are addressed, so groups that a killed run had sealed are kept. Each process of a run
        seals the missing groups that it sampled; the reader of each then finds those of all.

        Args:
            policy: samples.
            calls: positions in the prompt stream of each call, from `calls_of`.
            size: positions per call.
            between: called after the calls of each data set; it may raise to stop.
        """
        rounds = self.parts.config.data.dynamic_sampling
        reader = self.source.reader
        at_once = max(MOST_PROMPTS * jax.process_count() // size, 1)
        sealed: list[Future] = []
        for start in range(0, len(calls), at_once):
            left = calls[start : start + at_once]
            for round_ in range(rounds + 1):
                refills = [
                    [plan.refill_position(position, round_) for position in call] for call in left
                ]
                sealed += self._sample_missing(policy, refills, size, between)
                if round_ == rounds:
                    break
                for data_set in sealed:
                    data_set.result()
                if self._together:
                    refresh_together(reader)
                flat = [
                    [
                        position
                        for position, refill in zip(call, refilled, strict=True)
                        if not reader.at(refill, policy.version).has_reward_variance
                    ]
                    for call, refilled in zip(left, refills, strict=True)
                ]
                left = list(filter(None, flat))
        if self.apart:
            wait(sealed)

    def _sample_missing(
        self, policy: Policy, calls: Calls, size: int, between: Callable[[], None]
    ) -> list[Future]:
        """Samples the calls of which a group is missing, whole, so that every bit of it is the
        same; returns the data sets that are being sealed. On a cluster each call becomes one.
        """
        find = self.source.reader.find
        absent = {p for call in calls for p in call if find(p, policy.version) is None}
        due = [call for call in calls if not absent.isdisjoint(call)]
        # Few prompts, such as refills, are sampled in a smaller shape, one of a few.
        most = max(map(len, due), default=0)
        while size >= LEAST_PROMPTS and 4 * most <= size:
            size = -(-size // 4)
        sealed: list[Future] = []
        judged: list[Judged] = []
        for number, call in enumerate(due, 1):
            judged.append(self.explorer.sample(policy.weights, policy.version, call, size))
            if self.apart or number == len(due):
                sealed.append(self._seal(policy, judged, absent))
                if self._together:  # each seals its own rows before the next call
                    self._wait()
                judged = []
                between()
        return sealed

    def _seal(self, policy: Policy, judged: Sequence[Judged], absent: set[int]) -> Future:
        """Seals the absent groups of calls as a data set, once they are judged."""
        work = self._sealer.submit(self._write, policy, judged, absent)
        self._open.add(work)
        return work

    def _write(self, policy: Policy, judged: Sequence[Judged], absent: set[int]) -> None:
        groups = [group for call in judged for group in call.result() if group.position in absent]
        if not groups:
            return
        reader = self.source.reader
        writer = f"{WRITER}-{jax.process_index()}" if self._together else WRITER
        with self._sealing:
            name = rollouts.write(
                reader.folder,
                groups,
                writer=writer,
                policy_version=policy.version,
                metadata=policy.metadata,
            )
            reader.keep(name, groups)
            if not self._together:  # they look at the folder together
                reader.refresh()


class NewestSupply(Supply):
    """Has explorers on a cluster sample with the newest policy (`regime.newest`).

    A call begins only under a version that may sample the step which trains on it, so no group is
    discarded as too old, however long it takes.

    Args:
        parts, explorer, source, checkpoints: as of `Supply`.
        choose: of the run.
    """

    def __init__(
        self,
        parts: build.Parts,
        explorer: Explorers,
        source: Source,
        checkpoints: Checkpoints,
        choose: Chooser,
    ) -> None:
        self._most = 2 * parts.config.cluster.explorers.most  # calls under way
        super().__init__(parts, explorer, source, checkpoints, writers=self._most)
        self._choose = choose
        self._calls: dict[int, Future] = {}  # their data sets, by their first position
        self._policy: Policy | None = None  # the newest

    def ensure(self, step: int, state: TrainState, bar: Any, between: Callable[[], None]) -> None:
        """Returns once the samples of `step` are sealed; see `Supply.ensure`."""
        bar.phase("waiting for explorers")

        def ready() -> bool:
            self._admit(step, state)
            return not self._choose.missing(step)

        while not ready():
            self._wait(ready, between)
            if not ready() and not self._busy:
                raise DataError(
                    f"{self.source.reader.folder} lacks groups of step {step} that no newer policy"
                    f" may sample: {self._choose.missing(step)}; restore them from a copy"
                )
        bar.phase("")

    def settle(self, step: int) -> None:
        """Does nothing: what a resumed run lacks is sampled by a newer policy."""

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
            if step < window.start:
                return
            if step not in window:
                continue
            positions = config.schedule(ahead).fresh
            size = call_of(config.sampling, len(positions)).prompts
            for call in calls_of(positions, size):
                if self._busy >= self._most:
                    return
                lacks = any(self._choose.own.index(position, ahead) is None for position in call)
                if lacks and call[0] not in self._calls:
                    if self._policy is None or self._policy.version != step:
                        self._policy = self._published(step, state.params)
                    judged = self.explorer.sample(self._policy.weights, step, call, size)
                    self._calls[call[0]] = self._seal(self._policy, [judged], set(call))


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
        seen = processes.gather_ints(len(reader))
        if processes.gather_ints(int(time.monotonic() > end)).any():
            raise DataError(
                f"the processes see {', '.join(map(str, seen))} groups in {reader.folder}: the run"
                " folder must lie on storage that all of them share; choose another with --run-dir"
            )
        time.sleep(PAUSE)
        reader.refresh()


def needs_checkpoint(config: Config, source: Source, version: int) -> bool:
    """True if explorers still have to sample with a policy version: a position that it samples has
    not got its group yet, so that its checkpoint is kept.

    Args:
        config: of the run.
        source: the run's rollout folder.
        version: of the policy.
    """
    positions = config.schedule.sampled(version, config.training.steps)
    samples = ((position, version) for position in positions)
    return bool(plan.missing(source, samples, config.data.dynamic_sampling))


def refuse_lost(config: Config, former: int) -> None:
    """Checks that what a resumed run lacks of its own samples can still be sampled: by the newest
    policy and later ones, or by earlier ones that have a checkpoint.

    Args:
        config: of the run.
        former: number of steps that it had.

    Raises:
        UsageError: training.steps was raised, and a policy that is gone did not sample for that.
        DataError: sealed groups are lost, and the checkpoint of the policy that sampled them too.
    """
    steps = config.training.steps
    folder = config.folder / "rollouts"
    saved = listed(config.folder / "checkpoints")
    if not saved or not saved[-1]:
        return
    folder.mkdir(exist_ok=True)
    source = Source(rollouts.read(folder))
    samples = (
        (position, version)
        for version in sorted({*range(saved[-1])} - {*saved})
        for position in config.schedule.sampled(version, steps, since=saved[-1])
    )
    rounds = config.data.dynamic_sampling
    lost = plan.missing(source, samples, rounds)
    if not lost:
        return
    version = min(lost)
    problem = (
        f"{folder} lacks {len(lost[version])} groups of policy version {version}, and that"
        " version's checkpoint is gone: restore one of the two from a copy, or move the last"
        " checkpoints away, so that the run continues from an earlier step"
    )
    if steps <= former:
        raise DataError(problem)
    raise UsageError(f"training.steps: expected at most {former}, got {steps}; for more: {problem}")
