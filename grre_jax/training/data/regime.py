"""The policy that generates the data of each step: the degrees of off-policyness of a run.

Versions and batches are counted in training steps: version v is the policy after v updates, and a
step's fresh batch is the one that was sampled for it. The regimes that arXiv 2509.24203 (section 4)
studies are sync_interval m with sync_offset n at (m, n) = (1, 0), which is on-policy, (20, 0) and
(1, 10), and offline. A fixed staleness, reuse and replay go beyond them; `schedule` derives the
positions that each step trains on.
"""

from __future__ import annotations

import dataclasses
from typing import Annotated

from grre_jax.domains import ConfigError, Count, Positive, Record


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

    Only one of offline, staleness and the sync fields can say who samples; the others must be left
    at their defaults.

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

    def batch(self, step: int) -> int:
        """Returns the number of the fresh batch of a training step."""
        return step // self.reuse

    def version(self, step: int) -> int:
        """Returns the policy version that generated the fresh batch of a training step; with
        reuse, as of the first step that trains on it.
        """
        if self.offline:
            return 0
        newest = max(step // self.reuse * self.reuse - self.sync_offset - self.staleness, 0)
        return newest // self.sync_interval * self.sync_interval

    def age(self, step: int) -> int:
        """Returns the age in updates of the policy that generated the fresh batch, at the step
        that trains on it.
        """
        return step - self.version(step)

    def oldest(self, steps: int) -> int:
        """Returns the largest age in updates of a fresh batch in a run of `steps`."""
        if self.offline:
            return max(steps - 1, 0)
        # Once the run is older than the sampler is ahead, ages repeat with a period that divides
        # sync_interval * reuse.
        period = (self.sync_interval + 1) * self.reuse + self.sync_interval
        seen = range(min(steps, self.sync_offset + self.staleness + period))
        return max(map(self.age, seen), default=0)

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
        if self.offline:
            return range(0, steps, self.reuse) if version == 0 else range(0)
        if version % self.sync_interval:
            return range(0)
        ahead = self.sync_offset + self.staleness
        first = 0 if version == 0 else version + ahead
        first = -(-first // self.reuse) * self.reuse
        return range(first, min(version + self.sync_interval + ahead, steps), self.reuse)

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

    @property
    def on_policy(self) -> bool:
        """True if every group is sampled by the same policy that the step updates."""
        return self == Regime()
