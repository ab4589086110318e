"""What the benchmarks measure of the machine itself, in the same run and in turns with what they
time.

Throughput means little without the machine's own limits beside it, and on a shared machine the
limits move: so every round of a benchmark times the matmul and the work one right after the other,
and the figure, the fraction of peak, is taken round by round.
"""

from __future__ import annotations

import dataclasses
import datetime
import math
import os
import platform
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import grre_jax
from grre_jax.machine import cpu_model

MAX_CALLS = 10_000  # in one timing, however short the call
SMALLEST_COPY = 1 << 24  # bytes; below this the dispatch is timed, not the memory


def first_call(call: Callable[[], Any]) -> float:
    """Seconds of one call, to its end: the first one compiles."""
    start = time.perf_counter()
    jax.block_until_ready(call())
    return time.perf_counter() - start


def calls_for(call: Callable[[], Any], seconds: float) -> int:
    """How many calls fill `seconds`, from one that is timed; at least one."""
    return max(1, min(MAX_CALLS, math.ceil(seconds / max(first_call(call), 1e-9))))


def timed(call: Callable[[], Any], calls: int) -> float:
    """Seconds a call, over `calls` in a row.

    The device is waited for at the end only, so calls must either depend on each other or wait
    themselves: independent ones may overlap, and XLA's CPU backend would then run as many at once
    as there are cores.
    """
    start = time.perf_counter()
    for _ in range(calls):
        out = call()
    jax.block_until_ready(out)
    return (time.perf_counter() - start) / calls


def in_turns(
    calls: dict[Any, Callable[[], Any]], repeats: int, seconds: float
) -> dict[Any, np.ndarray]:
    """Seconds a call of several calls, each timed once a round for at least `seconds` after one
    call that may compile: [repeats] by name.
    """
    for call in calls.values():
        first_call(call)
    counts = {name: calls_for(call, seconds) for name, call in calls.items()}
    rounds = [
        {name: timed(call, counts[name]) for name, call in calls.items()} for _ in range(repeats)
    ]
    return {name: np.array([found[name] for found in rounds]) for name in calls}


@dataclasses.dataclass
class Probe:
    """Something of the machine that is timed in every round.

    Args:
        call: does the work once.
        work: how much of it a call does: FLOPs or bytes.
        seconds: how long a round's timing lasts at least.
    """

    call: Callable[[], Any]
    work: float
    seconds: float

    def __post_init__(self):
        first_call(self.call)
        self.calls = calls_for(self.call, self.seconds)

    def rate(self) -> float:
        """Work a second, now."""
        return self.work / timed(self.call, self.calls)


def matmul_probe(size: int, dtype: Any, seconds: float) -> Probe:
    """FLOP/s of a product of two [size, size] matrices, at the precision that jax multiplies
    this dtype with by default.
    """
    a, b = (
        jax.random.normal(key, (size, size), dtype) for key in jax.random.split(jax.random.key(0))
    )
    product = jax.jit(lambda a, b: a @ b)
    return Probe(lambda: product(a, b).block_until_ready(), 2.0 * size**3, seconds)


def copy_probe(size: int, seconds: float) -> Probe:
    """Bytes/s, read and written, of negating an array of `size` bytes (at least SMALLEST_COPY)
    in its own place.

    In place, because fresh memory would time the operating system's page faults. An array that fits
    a cache is timed there.
    """
    negate = jax.jit(jnp.negative, donate_argnums=0)
    held = [jnp.ones(max(size, SMALLEST_COPY) // 4, jnp.float32)]

    def call():
        held[0] = negate(held[0])
        return held[0]

    return Probe(call, 2.0 * held[0].nbytes, seconds)


def rounds(
    workloads: Sequence[Any], peak: Probe, repeats: int, seconds: float
) -> list[dict[str, np.ndarray]]:
    """Times workloads in turns with the machine.

    Args:
        workloads: each with `call`, `bytes` (the size of the array that is copied beside it) and
            `times(count)`, the seconds of its parts in the mean of so many calls.
        peak: the product.
        repeats: rounds.
        seconds: shortest timing of a workload in a round.

    Returns:
        For each workload its parts' seconds, "peak" (FLOP/s) and "copy" (bytes/s), [repeats].
    """
    copies = [copy_probe(work.bytes, seconds / 4) for work in workloads]
    counts = [calls_for(work.call, seconds) for work in workloads]
    found: list[list[dict[str, float]]] = [[] for _ in workloads]
    for _ in range(repeats):
        for i, work in enumerate(workloads):
            machine = {"peak": peak.rate(), "copy": copies[i].rate()}
            found[i].append(machine | work.times(counts[i]))
    return [{name: np.array([one[name] for one in of]) for name in of[0]} for of in found]


def default_matmul_size() -> int:
    """Large enough for the peak, small enough for the patience of the backend."""
    return 2048 if jax.default_backend() == "cpu" else 8192


def describe() -> dict[str, Any]:
    """The machine in words and numbers; nothing that names or addresses it."""
    devices = jax.devices()
    return {
        "cpu": cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "system": f"{platform.system()} {platform.machine()}",
        "backend": jax.default_backend(),
        "device": devices[0].device_kind,
        "devices": len(devices),
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
        "jax": jax.__version__,
        "python": platform.python_version(),
        "grre_jax": grre_jax.__version__,
        "date": datetime.date.today().isoformat(),
    }


class Company:
    """How much of the processors other processes take from when this is made on (Linux)."""

    def __init__(self):
        self._start = self._read()

    def share(self) -> float:
        """Processor time of others over the processor time there was, since the start."""
        total, busy, own = (now - then for now, then in zip(self._read(), self._start, strict=True))
        return round(max(busy - own, 0.0) / max(total, 0.01), 3)  # of a tick at least

    @staticmethod
    def _read() -> tuple[float, float, float]:
        """(all, used, used by this process and its ended children) processor seconds; idle and
        waiting count as unused.
        """
        stat = Path("/proc/stat").read_text()
        ticks = [float(x) for x in stat.split("\n", 1)[0].split()[1:9]]
        second, times = os.sysconf("SC_CLK_TCK"), os.times()
        return sum(ticks) / second, (sum(ticks) - ticks[3] - ticks[4]) / second, sum(times[:4])


def headline(machine: dict[str, Any]) -> str:
    """The machine in a line."""
    return (
        f"{machine['cpu']}, {machine['cores']} cores, 1 x {machine['device']}"
        f" ({machine['backend']}), jax {machine['jax']}"
    )


def company_line(machine: dict[str, Any]) -> str:
    """How far the times can be trusted, in a line."""
    return f"other processes took {machine['used_by_others']:.0%} of the processors meanwhile"
