"""The data of each step before anything runs: the policy version that samples it, its positions in
the prompt stream, and what of that is still to be sampled.

Versions and batches are counted in training steps: version v is the policy after v updates, and a
step's fresh batch is the one that was sampled for it. The regimes that arXiv 2509.24203 (section 4)
studies are sync_interval m with sync_offset n at (m, n) = (1, 0), which is on-policy, (20, 0) and
(1, 10), and offline. A fixed staleness, reuse and replay go beyond them.

Each position of the prompt stream is sampled once, by the version that the regime names for its
batch. Batch 0 has the first `prompts_per_step` positions, every later batch the next ones, fewer by
the number that its steps replay. All is a pure function of (regime, groups per step, seed, step):
nothing is stored, so nothing can be lost on resume.

Dynamic sampling (DAPO, arXiv 2503.14476): a position whose group has no signal gets another
question. The prompt stream is divided into rounds of `POSITIONS_PER_ROUND` positions. Position p of
the run is in round 0; if the rewards of its group are all equal, the group of the same position in
round 1 replaces it, then that of round 2, and so on. A refill is sampled by the version that
sampled the position, at an address of its own: nothing is drawn twice, and a killed run resumes
from its folder.
"""

import dataclasses
from bisect import bisect_left, bisect_right
from typing import Annotated, Any

import numpy as np
from jaxtyping import Int

from grre_jax import random_streams
from grre_jax.domains import ConfigError, Count, Positive, Record
from grre_jax.errors import DataError
from grre_jax.random_streams import Purpose
from grre_jax.rollouts import CorruptShard


@dataclasses.dataclass(frozen=True)
class Regime(Record):
    """The age of the policy that samples a step's data: the degree of off-policyness.

    Args:
        sync_interval: training steps between refreshes of the sampler's weights; 1 is on-policy.
        sync_offset: batches that the sampler runs ahead of the learner.
        offline: all data comes from the initial policy.
        staleness: the batch of step t is sampled by version max(t - staleness, 0), so that every
            batch is equally old once the run is that old. The same data as with a sync_offset of as
            many steps.
        reuse: consecutive steps that train on a fresh batch; its age grows by one with each.
        replay_ratio: share of a step's groups, rounded, that comes from earlier batches of the run;
            the first batch is all fresh.
        replay_window: batches back from which replayed groups are drawn; 0 for all. They are drawn
            without replacement, each group equally likely.
        newest: explorers on a cluster sample each call with the newest policy that keeps the
            largest age of the regime, rather than with the one that it names. Nothing is discarded
            as too old: a call begins only if it can be trained on. The run waits less, and is not
            repeatable.

    Only one of offline, staleness and the sync fields can choose who samples; the others must
    be left at their defaults.

    Raises:
        ValueError: naming the field and its domain.

    Examples:
        The policy versions that sample the batches of steps 0 to 5:

        >>> from grre_jax import config as c
        >>> regime = c.Regime(sync_interval=3)
        >>> [regime.version(step) for step in range(6)], regime.oldest(steps=6)
        ([0, 0, 0, 3, 3, 3], 2)
        >>> regime = c.Regime(staleness=2)
        >>> [regime.version(step) for step in range(6)], regime.oldest(steps=6)
        ([0, 0, 0, 1, 2, 3], 2)
    """

    sync_interval: Positive = 1
    sync_offset: Count = 0
    offline: bool = False
    staleness: Count = 0
    reuse: Positive = 1
    replay_ratio: Annotated[float, "[0, 1)"] = 0.0
    replay_window: Count = 0
    newest: bool = False

    def _validate(self) -> None:
        if self.replay_window and not self.replay_ratio:
            raise ConfigError("replay_window", "0 while replay_ratio is 0", self.replay_window)
        synced = (self.sync_interval, self.sync_offset) != (1, 0)
        if self.offline and (self.staleness or synced):
            domain = "false beside staleness, sync_interval or sync_offset: set one of them"
            raise ConfigError("offline", domain, self.offline)
        if self.staleness and synced:
            domain = "0 beside sync_interval or sync_offset: set one of them"
            raise ConfigError("staleness", domain, self.staleness)

    def version(self, step: int) -> int:
        """Returns the policy version that generated the fresh batch of a training step; with
        reuse, as of the first step that trains on it.
        """
        if self.offline:
            return 0
        # A batch is sampled once, before the first of the steps that train on it.
        newest = max(step // self.reuse * self.reuse - self.sync_offset - self.staleness, 0)
        # The sampler keeps its weights until the next multiple of sync_interval.
        return newest // self.sync_interval * self.sync_interval

    def oldest(self, steps: int) -> int:
        """Returns the largest age in updates of a fresh batch in a run of `steps`."""
        if self.offline:
            return max(steps - 1, 0)
        # Once the run is older than the sampler is ahead, ages repeat with a period that divides
        # sync_interval * reuse.
        period = (self.sync_interval + 1) * self.reuse + self.sync_interval
        seen = range(min(steps, self.sync_offset + self.staleness + period))
        return max((step - self.version(step) for step in seen), default=0)

    def window(self, step: int, steps: int) -> range:
        """Returns the policy versions that may sample the fresh batch of a step if explorers take
        the newest policy (`newest`): saved by the first step that trains on the batch, and
        in the last one no older than the largest age of the regime.

        Args:
            step: the training step.
            steps: number of steps of the run.
        """
        first = step // self.reuse * self.reuse
        last = min(first + self.reuse, steps) - 1  # the run may end within the batch
        return range(max(last - self.oldest(steps), 0), first + 1)

    def batches(self, version: int, steps: int) -> range:
        """Returns the batches that a policy version generates in a run of `steps`, each as the
        first step that trains on it; empty for a version that samples nothing.
        """
        firsts = range(0, steps, self.reuse)
        # Versions of batches never decrease.
        first = bisect_left(firsts, version, key=self.version)
        return firsts[first : bisect_right(firsts, version, key=self.version)]

    @property
    def described(self) -> str:
        """The regime in a line."""
        if self.offline:
            line = "offline"
        elif self.staleness:
            line = f"staleness {self.staleness}"
        else:
            line = f"sync_interval {self.sync_interval}, sync_offset {self.sync_offset}"
        if self.reuse > 1:
            line += f", each batch trained on {self.reuse} times"
        if self.replay_ratio:
            line += f", {self.replay_ratio:.0%} replayed"
        line += ", or newer as the clock has it" if self.newest else ""
        return line + (f" of the last {self.replay_window} batches" if self.replay_window else "")


@dataclasses.dataclass(frozen=True)
class Plan:
    """The positions that one step trains on of the run's own samples.

    Attributes:
        step: the training step.
        batch: number of its fresh batch.
        version: the policy version that sampled the fresh batch.
        fresh: positions of the fresh batch.
        replayed: positions of earlier batches, ascending.
        samples: (position, policy version) of every group, the fresh ones first.
    """

    step: int
    batch: int
    version: int
    fresh: range
    replayed: tuple[int, ...]
    samples: tuple[tuple[int, int], ...]

    @property
    def ages(self) -> Int[np.ndarray, " groups"]:
        """[groups] Age of each group's policy in updates, in the order of `samples`."""
        return self.step - np.array([version for _, version in self.samples], int)


@dataclasses.dataclass(frozen=True)
class Schedule:
    """The plan of every step: `schedule(step)`.

    Args:
        regime: the versions that sample, reuse and replay.
        prompts_per_step: groups of the run's own samples that a step trains on.
        seed: the run's; replay is drawn under it.
        max_staleness: largest age in updates of replayed groups when they are trained on; a step
            has fewer groups if too few are young enough; -1 for any age.

    Raises:
        ConfigError: the regime cannot be kept with `prompts_per_step`.

    Examples:
        A fourth of the groups of each step are of earlier batches:

        >>> from grre_jax import config as c
        >>> regime = c.Regime(sync_interval=2, replay_ratio=0.25)
        >>> plan = c.Schedule(regime, prompts_per_step=4)(step=3)
        >>> plan.version, list(plan.fresh), len(plan.replayed)
        (2, [10, 11, 12], 1)
    """

    regime: Regime
    prompts_per_step: int
    seed: int = 0
    max_staleness: int = -1

    def __post_init__(self):
        regime = self.regime
        groups = self.prompts_per_step
        replayed = self.replayed_per_step
        if replayed >= groups:
            domain = f"less, for a fresh group among {groups} a step"
            raise ConfigError("regime.replay_ratio", domain, regime.replay_ratio)
        # Replay draws without replacement, so the window must hold as many groups as a step draws.
        if regime.replay_window and regime.replay_window * self.fresh_per_batch < replayed:
            domain = f"batches of at least the {replayed} groups that a step replays"
            raise ConfigError("regime.replay_window", domain, regime.replay_window)

    @property
    def replayed_per_step(self) -> int:
        """Number of replayed groups per step, once there are groups to replay."""
        return round(self.regime.replay_ratio * self.prompts_per_step)

    @property
    def fresh_per_batch(self) -> int:
        """Number of positions of every batch but the first."""
        return self.prompts_per_step - self.replayed_per_step

    def positions(self, batch: int) -> range:
        """Returns the positions of a batch."""
        # There is nothing to replay yet, so that the first batch fills its step alone.
        if batch == 0:
            return range(self.prompts_per_step)
        start = self.prompts_per_step + (batch - 1) * self.fresh_per_batch
        return range(start, start + self.fresh_per_batch)

    def batch_of(self, position: int) -> int:
        """Returns the batch that a position belongs to."""
        # In the first batch, which is larger than the others, the quotient may be below -1.
        return max(0, 1 + (position - self.prompts_per_step) // self.fresh_per_batch)

    def sampled(self, version: int, steps: int, since: int = 0) -> list[int]:
        """Returns the positions that policy version `version` samples for the steps from `since`
        to before `steps`.
        """
        batches = self.regime.batches(version, steps)
        reuse = self.regime.reuse
        # A batch is needed until the last step that trains on it, which the run's end may cut off.
        needed = (first // reuse for first in batches if min(first + reuse, steps) > since)
        return [position for batch in needed for position in self.positions(batch)]

    def __call__(self, step: int) -> Plan:
        """Returns the plan of a step, from 0."""
        batch = step // self.regime.reuse
        fresh = self.positions(batch)
        replayed = self._replayed(step, batch)
        samples = tuple((p, self._version(self.batch_of(p))) for p in (*fresh, *replayed))
        return Plan(step, batch, self._version(batch), fresh, replayed, samples)

    def _replayed(self, step: int, batch: int) -> tuple[int, ...]:
        count = self.replayed_per_step
        window = self.regime.replay_window
        if not count or not batch:
            return ()
        oldest = max(batch - window, 0) if window else 0
        if self.max_staleness >= 0:
            # Versions of batches never decrease, so the young enough ones are the last.
            too_old = step - self.max_staleness - 1
            young = bisect_right(range(batch), too_old, key=self._version)
            oldest = max(oldest, young)
        # Batches follow each other in the stream, so those of the window are one range of
        # positions.
        pool = range(self.positions(oldest).start, self.positions(batch).start)
        key = random_streams.purpose_key(self.seed, Purpose.REPLAY)
        drawn = _without_replacement(key, step, len(pool), count)
        return tuple(sorted(pool[i] for i in drawn))

    def _version(self, batch: int) -> int:
        return self.regime.version(batch * self.regime.reuse)


def _without_replacement(key: random_streams.Key, step: int, size: int, count: int) -> set[int]:
    """Draws `count` of the numbers below `size` (all, if there are fewer), every subset equally
    likely (Floyd's algorithm: Bentley, Floyd, "A sample of brilliance", 1987).
    """
    # Young enough groups may be fewer than a step replays (max_staleness).
    count = min(count, size)
    high, low = random_streams.fold_in(
        random_streams.fold_in(key, random_streams.address(step)), np.arange(count, dtype=np.uint32)
    )
    # With 64 bits the bias of the remainder below, at most size / 2**64, does not matter.
    bits = (high.astype(np.uint64) << np.uint64(32)) | low
    chosen: set[int] = set()
    for draw, last in zip(bits.tolist(), range(size - count, size), strict=True):
        number = draw % (last + 1)
        # `last` is not drawn yet: all earlier draws are below it.
        chosen.add(last if number in chosen else number)
    return chosen


# Tasks address 2**32 positions and the sampler's addresses are int32: 16 rounds of 134 million
# positions.
POSITIONS_PER_ROUND = 2**27
MAX_ROUNDS = 2**31 // POSITIONS_PER_ROUND - 1


def refill_position(position: int, round_: int) -> int:
    """Returns the position of a position's refill of a round; round 0 is the position itself."""
    return round_ * POSITIONS_PER_ROUND + position


@dataclasses.dataclass(frozen=True)
class Samples:
    """The run's own samples: the groups of each step, and those that are still to be sampled.

    A position is trained on with the group of the policy version that the schedule names, or of
    its first refill with signal. With `regime.newest` it is the first sealed group that is young
    enough: groups that are sealed later change nothing, so a restarted learner trains on the same
    ones, and none is trained on at a greater age than the regime's largest.

    Args:
        source: the run's rollout folder, a `sources.Source`.
        schedule: positions and versions by step.
        steps: number of steps of the run.
        rounds: largest number of refills of a position; 0 for no dynamic sampling.
    """

    source: Any
    schedule: Schedule
    steps: int
    rounds: int = 0

    def groups(self, step: int) -> list[int]:
        """Returns the numbers of a step's groups in the folder.

        Raises:
            DataError: a group has not been sampled.
            CorruptShard: a group whose rewards decide cannot be read.
        """
        indices = []
        for position, version in self.schedule(step).samples:
            index, absent = self._settle(position, version, step)
            if absent is not None:
                raise DataError(
                    f"{self.source.reader.folder} lacks the group of step {step} at position"
                    f" {absent}, and the checkpoint of policy version {version}, which samples it,"
                    " is gone: restore one of the two from a copy, move the last checkpoints away,"
                    " so that the run continues from an earlier step, or do not raise"
                    " training.steps of a run that has ended"
                )
            if index is not None:
                indices.append(index)
        return indices

    def missing(self, step: int) -> list[int]:
        """Returns the positions still to be sampled before a step: at most one refill per position,
        so sample them and call this again.

        Raises:
            CorruptShard: a group whose rewards decide cannot be read.
        """
        samples = self.schedule(step).samples
        absent = (self._settle(position, version, step)[1] for position, version in samples)
        return [position for position in absent if position is not None]

    def unsampled(self, version: int, since: int = 0) -> list[int]:
        """Returns what a policy version is still to sample by the schedule, as `missing`, for the
        steps from `since`.
        """
        positions = self.schedule.sampled(version, self.steps, since)
        absent = (self._scheduled(position, version)[1] for position in positions)
        return [position for position in absent if position is not None]

    def needs(self, version: int) -> bool:
        """True if a policy version is still to sample: its checkpoint is kept."""
        try:
            return bool(self.unsampled(version))
        except CorruptShard:
            return True  # sampling it again takes this checkpoint

    def _scheduled(self, position: int, version: int) -> tuple[int | None, int | None]:
        """Looks at a position and its refills, up to the first group with signal.

        Returns:
            The number of the group that is trained on, or None; and the position that must be
            sampled before that is known, or None. Without both no round has signal, and the
            position is left out.
        """
        for round_ in range(self.rounds + 1):
            refill = refill_position(position, round_)
            index = self.source.reader.find(refill, version)
            if index is None:
                # Whether a later round is needed depends on the rewards of this one.
                return None, refill
            if not self.rounds or self.source.has_reward_variance(index):
                return index, None
        return None, None

    def _settle(self, position: int, version: int, step: int) -> tuple[int | None, int | None]:
        if not self.schedule.regime.newest:
            return self._scheduled(position, version)
        allowed = self.schedule.regime.window(step, self.steps)
        # In the order of sealing, so that a group which was trained on stays the one that is found.
        for index in self.source.reader.index.get(position, ()):
            if self.source.version(index) in allowed:
                return index, None
        return None, position
