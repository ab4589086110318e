"""Metrics of a step that are read one step late, while the next step computes, so that nothing
waits for the device.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from grre_jax.errors import DataError
from grre_jax.objectives.diagnostics import OUT_OF_BOUNDS, WARNED_SHARE
from grre_jax.training.runtime.stopwatch import Stopwatch


class Diverged(DataError):
    """The gradient of a step is not finite, and so are all parameters after it."""


@dataclasses.dataclass
class DelayedMetrics:
    """The metrics of the newest step, still on the device.

    Args:
        log: where rows are written.
        clock: start of the newest step, by `time.monotonic`.
        show: called with the step and the scalars of each row.
        warn: called once with a text, if behavior log-probs cannot be the data's.
        watch: of the work between two steps, for the rows; None to leave it out.
        kind: of the rows.
    """

    log: Any
    clock: float
    show: Callable[[int, Mapping[str, float]], None] = lambda step, scalars: None
    metrics: Any = None
    step: int = 0
    extra: Mapping[str, float] = dataclasses.field(default_factory=dict)
    kind: str = "train"
    warn: Callable[[str], None] | None = None
    watch: Stopwatch | None = None

    def swap(
        self, step: int, metrics: Any, extra: Mapping[str, float] = MappingProxyType({})
    ) -> dict[str, float]:
        """Takes the metrics of a step, and logs and returns those of the step before.

        A row of a batch without any verdict has no reward and no response_length.

        Args:
            step: of the metrics.
            metrics: scalars on the device by name; None to log the step before alone.
            extra: further scalars of the step's row.

        Raises:
            Diverged: after logging, if the gradient of the step before is not finite.
        """
        scalars = {}
        if self.metrics is not None:
            scalars = {name: float(value) for name, value in jax.device_get(self.metrics).items()}
            now = time.monotonic()
            if math.isnan(scalars.get("reward", 0.0)):  # of a batch without any verdict
                del scalars["reward"], scalars["response_length"]
            scalars["tokens"] = int(scalars.pop("response_tokens"))
            scalars["tokens_per_second"] = scalars["tokens"] / max(now - self.clock, 1e-9)
            scalars |= self.extra
            if self.watch:
                scalars |= self.watch.take(now - self.clock)
            self.clock = now
            self.log.write(self.kind, self.step, scalars)
            self.show(self.step, scalars)
            self._check(scalars)
        self.metrics, self.step, self.extra = metrics, step, extra
        return scalars

    def _check(self, scalars: Mapping[str, float]) -> None:
        share = scalars.get("ratio_out_of_bounds", 0.0)
        if self.warn and share > WARNED_SHARE:
            self.warn(
                f"step {self.step}: {share:.0%} of the tokens have a log-ratio beyond"
                f" {OUT_OF_BOUNDS:g} nats (ratio_out_of_bounds), so their behavior log-probs are"
                " not those of a policy near this one, and the gradient is unreliable:"
                " recompute the log-probs of stored data with `grre rollouts rescore`; if the run"
                " samples by itself, lower optimizer.learning_rate or train on fresher data"
            )
            self.warn = None
        if not math.isfinite(scalars.get("grad_norm", 0.0)):
            raise Diverged(
                f"{self.kind.replace('_', ' ')} step {self.step}: the gradient's norm is"
                f" {scalars['grad_norm']} and the loss {scalars['loss']}, so the policy is lost"
                " and is not saved: lower optimizer.learning_rate, or look for divisions,"
                " exponentials and logarithms in the objective"
            )


def age_scalars(ages: Float[np.ndarray, " groups"]) -> dict[str, float]:
    """Returns the ages of a step's groups as scalars of its row.

    Args:
        ages: [groups] in updates; NaN if another run's policy sampled the group.

    Returns:
        staleness, the mean of the known ages, and for each of them staleness_N, the number of
        groups that are N updates old; {} if no age is known.
    """
    known = ages[~np.isnan(ages)]
    if not known.size:
        return {}
    values, counts = np.unique(known.astype(int), return_counts=True)
    return {"staleness": float(known.mean())} | {
        f"staleness_{value}": int(count) for value, count in zip(values, counts, strict=True)
    }
