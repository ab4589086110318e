"""Which policy generated the data that a step trains on: the degrees of off-policyness (arXiv 2509.24203, section 4).

Batches and policy versions are counted in training steps: version v is the policy after v updates, batch s is the one step s trains on.
"""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Regime:
    """A degree of off-policyness.

    Args:
        sync_interval: the sampler's weights are refreshed once every so many training steps; 1 is on-policy.
        sync_offset: the sampler runs so many batches ahead of the learner.
        offline: all data comes from the initial policy; the other two must then be left at 1 and 0.

    Raises:
        ValueError: naming the field and its domain.
    """

    sync_interval: int = 1
    sync_offset: int = 0
    offline: bool = False

    def __post_init__(self):
        if self.sync_interval < 1:
            raise ValueError(f"sync_interval must be at least 1, got {self.sync_interval}")
        if self.sync_offset < 0:
            raise ValueError(f"sync_offset must be at least 0, got {self.sync_offset}")
        if self.offline and (self.sync_interval, self.sync_offset) != (1, 0):
            raise ValueError("offline=True never refreshes the sampler: leave sync_interval at 1 and sync_offset at 0")

    def version(self, step: int) -> int:
        """The policy version that generated the batch of training step `step`."""
        if self.offline:
            return 0
        return max(step - self.sync_offset, 0) // self.sync_interval * self.sync_interval

    def staleness(self, step: int) -> int:
        """How many updates old the generating policy is when its batch is trained on."""
        return step - self.version(step)

    def batches(self, version: int, steps: int) -> range:
        """The batches, of a run of `steps`, that policy version `version` generates; empty for a version that samples nothing."""
        if self.offline:
            return range(steps) if version == 0 else range(0)
        if version % self.sync_interval:
            return range(0)
        first = 0 if version == 0 else version + self.sync_offset
        return range(first, min(version + self.sync_interval + self.sync_offset, steps))
