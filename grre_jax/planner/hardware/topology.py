"""Named TPU slices, such as "v5e:16x16": their devices for ahead-of-time compilation, on a
machine that has none of them.

The compiler comes with the package `libtpu`, which runs anywhere; nothing is executed. Topology
names are those of `jax.experimental.topologies`.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import math
import os
import re
from typing import Any

import jax
from jax.sharding import Mesh

from grre_jax.errors import UsageError
from grre_jax.planner.hardware.chips import Chip, chip
from grre_jax.planner.hardware.interconnect import Torus

# libtpu asks the metadata server which machine it is on unless it is told, and takes a lock that
# two compilations do not need.
_ENVIRONMENT = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_STDERR_LOG_LEVEL": "3",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}


@dataclasses.dataclass(frozen=True)
class Topology:
    """A slice.

    Attributes:
        name: as given.
        chip: what it is made of.
        sizes: chips along each axis of its torus.
        devices: one a chip.
    """

    name: str
    chip: Chip
    sizes: tuple[int, ...]
    devices: list[Any]

    def torus(self, mesh: Mesh) -> Torus:
        """Returns the coordinates of a mesh's devices, in the order in which a program compiled
        for the mesh numbers them.
        """
        places = (tuple(device.coords[: len(self.sizes)]) for device in mesh.devices.flat)
        return Torus(self.chip, self.sizes, tuple(places))


def parse_name(name: str) -> tuple[Chip, tuple[int, ...]]:
    """The chip and the sizes that a topology's name says.

    Raises:
        UsageError: a name of another form, an unknown generation, or the wrong number of axes.
    """
    match = re.fullmatch(r"(v\w+):(\d+(?:x\d+)*)", name)
    if match is None:
        raise UsageError(
            "--topology takes a generation and the sizes of a slice, such as v5e:16x16 or"
            f" v5p:4x4x4, got {name!r}"
        )
    kind, sizes = chip(match.group(1)), tuple(int(size) for size in match.group(2).split("x"))
    if len(sizes) != kind.torus_axes:
        raise UsageError(
            f"--topology {name}: a slice of {kind.name} has {kind.torus_axes} axes, got"
            f" {len(sizes)}"
        )
    return kind, sizes


def topology(name: str) -> Topology:
    """The slice of a name.

    Call it before anything else has asked JAX for devices: it keeps JAX off this machine's
    accelerators.

    Raises:
        UsageError: the TPU compiler is not installed, or there is no such slice.
    """
    kind, sizes = parse_name(name)
    if importlib.util.find_spec("libtpu") is None:
        raise UsageError(
            "compiling for TPUs needs the TPU compiler, which is not installed: pip install"
            " 'grre-jax[tpu]'"
        )
    for variable, value in _ENVIRONMENT.items():
        os.environ.setdefault(variable, value)
    jax.config.update("jax_platforms", "cpu")
    from jax.experimental import topologies

    options: dict[str, Any] = {"chip_config_name": "megacore"} if kind.name == "v4" else {}
    bounds = [*(min(2, size) for size in sizes[:2]), 1]
    if math.prod(bounds) < 4:
        options["chips_per_host_bounds"] = bounds
    try:
        devices = topologies.get_topology_desc(
            platform="tpu", topology_name=name, **options
        ).devices
    except jax.errors.JaxRuntimeError as error:
        reason = str(error).splitlines()[0]
        message = f"--topology {name} is no slice that the TPU compiler knows: {reason}"
        if "INVALID_ARGUMENT" not in str(error):
            remedy = "install it anew, pip install 'grre-jax[tpu]'"
            message = f"the TPU compiler cannot be started ({reason}): {remedy}"
        raise UsageError(message) from error
    return Topology(name, kind, sizes, list(devices))
