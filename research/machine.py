"""The machine that computed published results, in words."""

import os
import platform

import jax

from grre_jax.machine import cpu_model, devices_line


def machine_line() -> str:
    """Returns the processor with the number of cores available to this process, the devices, and
    the versions that results depend on.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return (
        f"{cpu_model()} ({platform.machine()}), {cores} core{'s' * (cores != 1)}, {devices_line()},"
        f" jax {jax.__version__}, Python {platform.python_version()}"
    )
