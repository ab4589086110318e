"""The supply of a run's own samples before each step: sampled in this process by the policy that
trains, or by explorers on a cluster, to which its weights go by `weight_sync`.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

from grre_jax import rollouts
from grre_jax.errors import DataError, UsageError
from grre_jax.parallel import processes
from grre_jax.training import build
from grre_jax.training.actors import weight_sync
from grre_jax.training.actors.calls import call_of
from grre_jax.training.actors.cluster import Explorers
from grre_jax.training.actors.exploration import (
    Backlog,
    begin,
    begin_each,
    calls_of,
    refresh_together,
    refresh_until,
)
from grre_jax.training.actors.explorer import Explorer
from grre_jax.training.checkpoints import integrity
from grre_jax.training.checkpoints.folder import Checkpoints, listed
from grre_jax.training.config.run import Config
from grre_jax.training.data import dynamic_sampling
from grre_jax.training.data.choose import Chooser
from grre_jax.training.data.sources import Source
from grre_jax.training.runtime.stopwatch import Stopwatch
from grre_jax.training.state import TrainState

VERSIONS_AT_ONCE = 2  # policies that explorers sample with, or are to sample with next
TURN_SECONDS = 0.5  # after which the processes of a learner agree whether to wait on


class Supply(Protocol):
    """Seals the run's own samples before each step.

    Attributes:
        watch: seconds by phase, for the metrics of a step.
    """

    watch: Stopwatch

    def ensure(
        self,
        step: int,
        state: TrainState,
        bar: Any,
        between: Callable[[], None],
    ) -> None:
        """Returns once the samples of `step` are sealed.

        Args:
            step: the next training step.
            state: after `step` updates.
            bar: shows the phase.
            between: called while samples are missing; it may raise to stop.

        Raises:
            DataError: the samples cannot be sealed.
        """

    def settle(self, step: int) -> None:
        """Returns once a run that is continued from a checkpoint of `step` lacks nothing."""

    def leave_out(self, error: rollouts.CorruptRecord | rollouts.CorruptShard, step: int) -> None:
        """Leaves a damaged data set out, so that `ensure` has its groups sampled again.

        Args:
            error: raised when the data set was read.
            step: of the state that `ensure` is called with next.

        Raises:
            CorruptRecord, CorruptShard, DataError: they cannot be sampled again.
        """

    def scalars(self) -> dict[str, float]:
        """Returns scalars of a train row about who samples."""

    def close(self) -> None:
        """Ends the threads."""


@dataclasses.dataclass
class LocalSupply:
    """Samples in this process: the policy of a step samples all positions that the schedule
    assigns to it. The learner waits for those that it trains on next.

    With explorers on a cluster a thread of the first process hands out their calls beside the
    learner, and the others follow what that process finds.

    Args:
        parts, checkpoints: of the run.
        explorer: samples for training, in this process or on a cluster.
        source: the run's rollout folder.
    """

    parts: build.Parts
    explorer: Explorer | Explorers
    source: Source
    checkpoints: Checkpoints
    _begun: bool = dataclasses.field(default=False, init=False)
    _again: set[tuple[int, int]] = dataclasses.field(default_factory=set, init=False)

    def __post_init__(self):
        self.apart = self.parts.config.cluster.samples
        self.watch = Stopwatch() if self.apart else self.explorer.watch
        self._backlog, self._thread = Backlog(), ThreadPoolExecutor(1)
        self._asked: list[Future] = []  # versions for the thread
        self._closing, self._unsure = False, PendingVersions(self.parts, self.source)
        self._sampled: set[int] = set()  # versions that may not be sealed yet

    def ensure(
        self,
        step: int,
        state: TrainState,
        bar: Any,
        between: Callable[[], None],
    ) -> None:
        """Returns once the samples of `step` are sealed; see `Supply.ensure`."""
        # A resumed run may lack batches that earlier policies were to sample (explorers were
        # stopped, a shard was lost): they can be drawn as long as those policies' checkpoints
        # exist.
        if not self._begun:
            self._wait(between=between)
        earlier = () if self._begun else (v for v in self.checkpoints.steps if v < step)
        phase = "sampling" if self._begun else "compiling, sampling"
        self._begun = True
        config, schedule = self.parts.config, self.parts.config.schedule
        steps, rounds = config.training.steps, config.data.dynamic_sampling
        for version in sorted({step, *earlier}):
            wanted = schedule.sampled(version, steps, since=step)
            missing = dynamic_sampling.missing(self.source, ((p, version) for p in wanted), rounds)
            count = int(processes.gather_ints(len(missing.get(version, ())))[0])
            if not count:
                continue
            bar.phase(f"{phase} {count} groups")
            params = state.params
            if version != step:
                params = self.checkpoints.restore_params(params, version)
            self._sample(version, params, frozenset(wanted), between)
        this_step = schedule(step).samples

        def sealed() -> bool:
            return not dynamic_sampling.missing(self.source, this_step, rounds)

        self._wait(sealed, between)
        if self.apart and processes.many():
            refresh_until(self.source.reader, sealed)
        bar.phase("")

    def settle(self, step: int) -> None:
        """Returns once a run that is continued from a checkpoint of `step` lacks nothing: all that
        earlier policies sample is sealed, or they have checkpoints of their own, which are kept.
        """
        kept = {*self.checkpoints.steps} if self.apart else set()

        def settled() -> bool:
            self._sampled = {v for v in self._sampled if self._unsure.needs_checkpoint(v)}
            return not {v for v in self._sampled if v < step} - kept

        self._wait(settled)

    def scalars(self) -> dict[str, float]:
        """Returns scalars of a train row about explorers on a cluster; {} without."""
        return self.explorer.scalars() if self.explorer.remote else {}

    def close(self) -> None:
        """Ends the threads, the sampler's after the call that it makes."""
        self._closing = True
        if self.explorer.remote:
            self.explorer.close()  # calls that are under way end
        self._thread.shutdown(cancel_futures=True)
        self._backlog.__exit__()

    def _wait(self, until: Callable[[], bool] = lambda: False, between=lambda: None) -> None:
        with self.watch("waiting" if self.apart else "verification"):
            if not (self.apart and processes.many()):
                self._backlog.wait(until, between)
                return
            while not self._ended_together(until):
                between()  # in all processes at once

    def _ended_together(self, until: Callable[[], bool]) -> bool:
        """Waits for some time; True, in all processes, if in the first one a condition holds or
        nothing is under way.
        """

        def ended() -> bool:
            end = time.monotonic() + TURN_SECONDS
            self._backlog.wait(lambda: until() or time.monotonic() > end)
            return until() or not self._backlog.busy

        found = processes.on_first(ended)
        return bool(processes.gather_ints(int(found or 0))[0])

    def _sample(
        self, version: int, params: Any, wanted: frozenset[int], between: Callable[[], None]
    ) -> None:
        """Samples the calls of a version that have positions of `wanted`, or has the thread do it
        once it has at most one version before.
        """
        config, schedule = self.parts.config, self.parts.config.schedule
        positions = schedule.sampled(version, config.training.steps)
        size = call_of(config.sampling, len(positions)).prompts
        calls = calls_of(positions, size)
        checkpoint = f"checkpoints/{version}" if version in self.checkpoints.steps else ""
        options = {
            "reader": self.source.reader,
            "calls": [call for call in calls if not wanted.isdisjoint(call)],
            "size": size,
            "policy_version": version,
            "metadata": self.parts.provenance() | {"checkpoint": checkpoint},
            "backlog": self._backlog,
            "rounds": config.data.dynamic_sampling,
            "keep": True,
            "each": self.apart,
        }
        self._sampled.add(version)
        if not self.apart:
            begin(self.explorer, self.parts.full(params), between=between, **options)
            if processes.many():
                self._wait()
                refresh_together(self.source.reader)
            return

        def room() -> bool:
            self._asked = [work for work in self._asked if not work.done()]
            return len(self._asked) < VERSIONS_AT_ONCE

        self._wait(room, between)
        options["metadata"]["weights"] = integrity.digest(self.parts.full(params))
        policy = weight_sync.on_host(params)
        if not self.explorer.remote:
            return  # the first process has the explorers
        work = self._thread.submit(begin, self.explorer, policy, between=self._go_on, **options)
        self._asked.append(self._backlog.follow(work))

    def _go_on(self) -> None:
        if self._closing:
            raise CancelledError

    def leave_out(self, error: rollouts.CorruptRecord | rollouts.CorruptShard, step: int) -> None:
        """Leaves a damaged data set out, so that `ensure` samples its groups again.

        Args:
            error: raised when the data set was read. All processes of a run have one of the same
                data set.
            step: of the state that `ensure` is called with next.

        Raises:
            CorruptRecord, CorruptShard: the same error, if the file is in another folder.
            DataError: the checkpoint of the policy that sampled the data set was removed, or the
                groups were sampled again before.
        """
        entry = self.source.reader.dataset_of(error.file)
        if entry is None:
            raise error
        if entry.policy_version not in (step, *self.checkpoints.steps):
            raise DataError(
                f"{error} Its groups cannot be sampled again: the checkpoint of policy version"
                f" {entry.policy_version} was removed."
            ) from error
        runs = (range(first, first + count) for first, count in entry.positions)
        positions = {(position, entry.policy_version) for run in runs for position in run}
        if positions & self._again:
            again = f"{error} Its groups were sampled again before: check the disk."
            raise DataError(again) from error
        self._again |= positions
        self.source.reader.leave_out(entry)
        self._begun = False  # earlier policies sample too


@dataclasses.dataclass
class NewestSupply(LocalSupply):
    """Has explorers on a cluster sample with the newest policy (`regime.newest`).

    A call begins only under a version that may sample the step which trains on it, so no group is
    discarded as too old, however long it takes.

    Args:
        choose: of the run.
    """

    choose: Chooser

    def __post_init__(self):
        super().__post_init__()
        self._calls: dict[int, Future] = {}  # by their first position
        self._policy: tuple[int, Any, dict[str, Any]] = (-1, None, {})

    def ensure(
        self,
        step: int,
        state: TrainState,
        bar: Any,
        between: Callable[[], None],
    ) -> None:
        """Returns once the samples of `step` are sealed; see `Supply.ensure`."""
        bar.phase("waiting for explorers")

        def ready() -> bool:
            self._admit(step, state)
            return not self.choose.missing(step)

        while not ready():
            self._wait(ready, between)
            if not ready() and all(call.done() for call in self._calls.values()):
                raise DataError(
                    f"{self.source.reader.folder} lacks groups of step {step} that no newer policy"
                    f" may sample: {self.choose.missing(step)}; restore them from a copy"
                )
        bar.phase("")

    def settle(self, step: int) -> None:
        """Does nothing: what a resumed run lacks is sampled by a newer policy."""

    def leave_out(self, error: rollouts.CorruptRecord | rollouts.CorruptShard, step: int) -> None:
        """Raises the error: the policy that sampled the groups may be gone."""
        raise error

    def _admit(self, step: int, state: TrainState) -> None:
        """Begins calls with the policy of `step`, in the order of the steps that train on them, as
        long as there is room.
        """
        config = self.parts.config
        steps = config.training.steps
        room = 2 * config.cluster.explorers.most - sum(
            not call.done() for call in self._calls.values()
        )
        first = step // config.regime.reuse * config.regime.reuse
        for ahead in range(first, steps, config.regime.reuse):
            window = config.regime.window(ahead, steps)
            if room < 1 or step < window.start:
                return
            if step not in window:
                continue
            positions = config.schedule(ahead).fresh
            size = call_of(config.sampling, len(positions)).prompts
            for call in calls_of(positions, size):
                lacks = any(self.choose.own.index(position, ahead) is None for position in call)
                if room > 0 and call[0] not in self._calls and lacks:
                    self._begin(step, state, call, size)
                    room -= 1

    def _begin(self, step: int, state: TrainState, call: list[int], size: int) -> None:
        if self._policy[0] != step:
            metadata = self.parts.provenance()
            metadata["weights"] = integrity.digest(self.parts.full(state.params))
            self._policy = (step, weight_sync.on_host(state.params), metadata)
        version, params, metadata = self._policy
        (self._calls[call[0]],) = begin_each(
            self.explorer,
            params,
            reader=self.source.reader,
            calls=[call],
            size=size,
            policy_version=version,
            metadata=metadata,
            backlog=self._backlog,
        )


@dataclasses.dataclass
class PendingVersions:
    """The policy versions that explorers still have to sample with, so that their checkpoints are
    kept.

    Args:
        parts: of the run.
        source: the run's rollout folder.
    """

    parts: build.Parts
    source: Source

    def __post_init__(self):
        self._open: dict[int, list[int]] = {}  # positions that are not settled, by version

    def needs_checkpoint(self, version: int) -> bool:
        """True if a position that a version samples has not got its group yet.

        Called at every save for every checkpoint, so only the positions that were open at the last
        call are looked up again.
        """
        config = self.parts.config
        if version not in self._open:
            self._open[version] = config.schedule.sampled(version, config.training.steps)
        samples = ((position, version) for position in self._open[version])
        try:
            missing = dynamic_sampling.missing(self.source, samples, config.data.dynamic_sampling)
        except (rollouts.CorruptRecord, rollouts.CorruptShard):
            return True  # sampling it again takes this checkpoint
        self._open[version] = [
            position % dynamic_sampling.POSITIONS_PER_ROUND for position in missing.get(version, ())
        ]
        return bool(self._open[version])


def refuse_lost(config: Config, former: int) -> None:
    """Checks that what a resumed run lacks of its own samples can still be sampled: by the newest
    policy and later ones, or by earlier ones that have a checkpoint.

    Args:
        config: of the run.
        former: number of steps that it had.

    Raises:
        UsageError: training.steps was raised to steps that such a policy did not sample for.
        DataError: sealed groups are lost, and the checkpoint of the policy that sampled them too.
    """
    folder, steps = config.folder, config.training.steps
    saved = listed(folder / "checkpoints")
    if not saved or not saved[-1]:
        return
    (folder / "rollouts").mkdir(exist_ok=True)
    source = Source(rollouts.read(folder / "rollouts"))
    if not source.reader.datasets:
        raise DataError(
            f"{source.reader.storage.tail().shown}: lists no data set after {saved[-1]} steps, so"
            " it was emptied or deleted; restore it from a copy, or start again with --overwrite"
        )
    samples = (
        (position, version)
        for version in sorted({*range(saved[-1])} - {*saved})
        for position in config.schedule.sampled(version, steps, since=saved[-1])
    )
    rounds = config.data.dynamic_sampling
    lost = dynamic_sampling.missing(source, samples, rounds, skip_damaged=True)
    if not lost:
        return
    version, size = min(lost), dynamic_sampling.POSITIONS_PER_ROUND
    first = config.schedule.batch_of(min(lost[version]) % size) * config.regime.reuse
    problem = (
        f"{_lost(source.reader.folder, version, lost)}, or move the last checkpoints away, so that"
        " the run continues from an earlier step"
    )
    if first < former:
        raise DataError(problem)
    raise UsageError(f"training.steps: expected at most {first}, got {steps}; for these {problem}")


def _lost(folder: Path, version: int, missing: dict[int, list[int]]) -> str:
    return (
        f"{folder} lacks {len(missing[version])} groups of policy version {version}, and that"
        " version's checkpoint is gone: restore one of the two from a copy"
    )
