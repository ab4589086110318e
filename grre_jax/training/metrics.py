"""The figures of a run's rows: seconds by kind, the metrics of a step, ages and verdicts."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import itertools
import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from grre_jax.errors import DataError
from grre_jax.reporting.metrics import COMPONENT
from grre_jax.rollouts import Group, correctness
from grre_jax.tasks.judging import FIELD, REASONS, count_failures
from grre_jax.tasks.task import CORRECT

# Of a step's tokens out of bounds: a policy that has left its data has few, log-probs of something
# else have many.
WARNED_SHARE = 0.01

_log = logging.getLogger(__name__)


class Stopwatch:
    """Adds up seconds by name until they are taken."""

    def __init__(self) -> None:
        self._seconds: collections.Counter[str] = collections.Counter()

    @contextlib.contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Counts the time within the context, also of a context that ends by an error."""
        start = time.monotonic()
        try:
            yield
        finally:
            self._seconds[name] += time.monotonic() - start

    def take(self, whole: float) -> dict[str, float]:
        """Returns the seconds since the last call as scalars `seconds_NAME`, and begins anew.

        Args:
            whole: seconds since then; what nothing else took is `seconds_training`.
        """
        seconds = self._seconds
        self._seconds = collections.Counter()
        rest = max(whole - sum(seconds.values()), 0.0)
        return {f"seconds_{name}": value for name, value in sorted(seconds.items())} | {
            "seconds_training": rest
        }


class Diverged(DataError):
    """The gradient of a step is not finite, and so are all parameters after it."""


@dataclasses.dataclass
class DelayedMetrics:
    """The metrics of the newest step, still on the device.

    Args:
        log: where rows are written.
        clock: start of the newest step, by `time.monotonic`.
        show: called with the step and the scalars of each row.
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
    watch: Stopwatch | None = None
    warned: bool = False  # of impossible ratios

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
        self.metrics = metrics
        self.step = step
        self.extra = extra
        return scalars

    def _check(self, scalars: Mapping[str, float]) -> None:
        share = scalars.get("ratio_out_of_bounds", 0.0)
        if share > WARNED_SHARE and not self.warned:
            self.warned = True
            _log.warning(
                "step %d: %.0f%% of the tokens have impossible ratios (ratio_out_of_bounds): their"
                " behavior log-probs are not those of a policy near this one. Recompute them with"
                " `grre rollouts rescore`; if the run samples by itself, lower the learning rate",
                self.step,
                100 * share,
            )
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
    numbers = ages[~np.isnan(ages)]
    if not numbers.size:
        return {}
    values, counts = np.unique(numbers.astype(int), return_counts=True)
    return {"staleness": float(numbers.mean())} | {
        f"staleness_{value}": int(count) for value, count in zip(values, counts, strict=True)
    }


def verdict_scalars(groups: Sequence[Group]) -> dict[str, float]:
    """Computes the figures of a training row from its groups' verdicts, besides the reward.

    Returns:
        accuracy if known, component_NAME, and verify_failures if there are any.
    """
    verdicts = correctness(groups)
    judged = verdicts and np.concatenate(verdicts)
    accuracy = {} if judged is None or not len(judged) else {"accuracy": float(judged.mean())}
    return accuracy | component_means(groups) | failure_scalars(groups)


def component_means(groups: Sequence[Group]) -> dict[str, float]:
    """Computes component_NAME, the mean of each reward component over the completions that have it,
    without correctness, which is accuracy.
    """
    rows: dict[str, list[Float[np.ndarray, " completions"]]] = {}
    for group in groups:
        for name, row in group.components.items():
            if name != CORRECT or group.correct is None:
                rows.setdefault(name, []).append(row[group.judged & ~np.isnan(row)])
    means = {name: np.concatenate(of) for name, of in rows.items()}
    return {
        COMPONENT + name: float(row.mean(dtype=np.float64))
        for name, row in means.items()
        if len(row)
    }


def failure_scalars(groups: Sequence[Group]) -> dict[str, float]:
    """Counts completions without a verdict: verify_failures, and by kind
    (`tasks.judging.FAILURES`); {} without any.
    """
    return {
        name: float(count)
        for name, count in count_failures(group.extra for group in groups).items()
    }


FAILURE_WINDOW = 20  # steps whose completions task.max_failure_share is a share of


class FailureBound:
    """Stops a run most of whose completions get no verdict.

    The steps of the window that are still to come count as steps without failures, so that a
    failure at the start alone stops no run.

    Args:
        share: largest share of the completions of the window that may be without a verdict.
        steps: of the run, which are its window if they are fewer than FAILURE_WINDOW.
    """

    def __init__(self, share: float, steps: int):
        self._share = share
        self._steps = min(FAILURE_WINDOW, steps)
        self._window: collections.deque[tuple[int, int]] = collections.deque(maxlen=self._steps)
        self._reason = ""

    def check(self, groups: Sequence[Group]) -> None:
        """Takes in the groups of a step that the run sampled.

        Raises:
            DataError: too many completions of the window have no verdict; with the first reason.
        """
        failures = [
            f"{kind}: {reason}"
            for group in groups
            for kind, reason in itertools.zip_longest(
                group.extra.get(FIELD, ()), group.extra.get(REASONS, ()), fillvalue=""
            )
            if kind
        ]
        self._reason = self._reason or "".join(failures[:1])
        completions = sum(group.num_completions for group in groups)
        self._window.append((len(failures), completions))
        failed, judged = map(sum, zip(*self._window, strict=True))
        if failed > self._share * judged * self._steps / len(self._window):
            raise DataError(
                f"task.max_failure_share: expected at most {self._share:g} of the completions of"
                f" {self._steps} steps without a verdict, got {failed} of {judged} in"
                f" {len(self._window)} steps. The first: {self._reason}. Correct the verifier or"
                " the environment and go on with --resume, or raise the bound."
            )
