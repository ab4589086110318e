"""A step's metrics are read one step late, while the next step computes: nothing waits for the device."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import jax
import numpy as np


@dataclasses.dataclass
class PendingMetrics:
    """The newest step's metrics, still on the device."""

    log: Any
    clock: float
    metrics: Any = None
    step: int = 0
    staleness: float = 0.0
    kind: str = "train"

    def swap(self, step: int, metrics: Any, staleness: float) -> dict[str, float]:
        """Takes in a step's metrics, and logs and returns those of the step before, as host numbers."""
        scalars = {}
        if self.metrics is not None:
            scalars = {name: float(value) for name, value in jax.device_get(self.metrics).items()}
            now = time.monotonic()
            scalars["tokens"] = int(scalars.pop("response_tokens"))
            scalars["tokens_per_second"] = scalars["tokens"] / max(now - self.clock, 1e-9)
            if np.isfinite(self.staleness):
                scalars["staleness"] = self.staleness
            self.clock = now
            self.log.write(self.kind, self.step, scalars)
        self.metrics, self.step, self.staleness = metrics, step, staleness
        return scalars
