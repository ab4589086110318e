"""`grre compile`: memory, collectives and the compiler's cycles of a run's programs.

The run's own train step and calls of the sampler (`training.actors.calls`) are compiled on
abstract arrays: for a named TPU slice by the compiler in the package `libtpu`, which runs on any
machine, or for the devices of this machine. Nothing is executed.
"""

import dataclasses
import importlib.util
import os
import re
from typing import Any

import jax

from grre_jax.errors import DataError, UsageError
from grre_jax.planner.abstract import AbstractRun, abstract_run
from grre_jax.planner.counts import count
from grre_jax.sampling.distributions.distribution import idle_scopes
from grre_jax.sampling.memory import USABLE, device_bytes
from grre_jax.tasks.task import build, factory, is_environment
from grre_jax.training.actors import calls
from grre_jax.training.actors.calls import Call, training_call
from grre_jax.training.config.run import Config

# Of each TPU generation: GiB of memory, cycles a second, axes of a slice. Memory and axes are from
# cloud.google.com/tpu/docs/v5e and its like; the clock is the peak there over the multiply-adds a
# cycle of the matrix units.
CHIPS = {
    "v4": (32, 1.05e9, 3),
    "v5e": (16, 1.5e9, 2),
    "v5p": (95, 1.75e9, 3),
    "v6e": (32, 1.75e9, 2),
}
# Of a chip's memory for the runtime: the compiler has 15.75 GiB of v5e's 16 for programs.
RESERVED_BYTES = 2**28
# libtpu reads from these which machine it is on, and would query the metadata server without them.
# It takes a lock, which compilation does not need.
_ENVIRONMENT = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_STDERR_LOG_LEVEL": "3",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}


@dataclasses.dataclass(frozen=True)
class Target:
    """Devices that programs are compiled for.

    Attributes:
        name: of the slice, such as "v5e:16x16", or of this machine's platform.
        devices: that need not exist.
        capacity: bytes of a device that a program may use; None if not known.
        clock: cycles a second; None if not known.
    """

    name: str
    devices: list[Any]
    capacity: int | None
    clock: float | None


@dataclasses.dataclass(frozen=True)
class Report:
    """One compiled program; all counts are of one device.

    Attributes:
        program: "step" or "sampler".
        fits: False if memory exceeds the capacity, or the compiler ran out of it.
        message: the compiler's out-of-memory message; empty if the program was compiled.
        memory: bytes by the compiler's `memory_analysis`: "arguments" (parameters, optimizer state,
            batch), "outputs", "aliased" (outputs in the place of arguments), "temporaries"
            (gradients, activations, gathered weights), "code" and their "total"; empty if the
            compiler ran out of memory, as the fields below.
        cycles: by the compiler, without collectives and custom kernels; see `counts.Counts` for
            this and the next fields.
        collectives: {"count", "bytes"} of each kind.
        unbounded_loops: loops whose trips cannot be read, counted once.
    """

    program: str
    fits: bool
    message: str
    memory: dict[str, int] = dataclasses.field(default_factory=dict)
    cycles: int = 0
    collectives: dict[str, dict[str, int]] = dataclasses.field(default_factory=dict)
    unbounded_loops: list[str] = dataclasses.field(default_factory=list)


def tpu_slice(name: str) -> Target:
    """Returns the slice of a name.

    Call it before JAX has initialised its devices: it keeps JAX off this machine's accelerators.

    Args:
        name: generation and sizes, such as "v5e:16x16".

    Raises:
        UsageError: a name of another form, an unknown slice, or the TPU compiler is not installed.
    """
    generation, _, sizes = name.partition(":")
    gigabytes, clock, axes = CHIPS.get(generation, (0, 0.0, 1))
    if not gigabytes or not re.fullmatch("x".join([r"\d+"] * axes), sizes):
        raise UsageError(
            f"--topology: expected one of {', '.join(CHIPS)} and a size for each axis of a slice,"
            f" such as v5e:16x16 or v5p:4x4x4, got {name!r}"
        )
    if importlib.util.find_spec("libtpu") is None:
        raise UsageError(
            f"--topology {name}: the TPU compiler is not installed. Run pip install 'grre-jax[tpu]'"
        )
    for variable, value in _ENVIRONMENT.items():
        os.environ.setdefault(variable, value)
    jax.config.update("jax_platforms", "cpu")
    from jax.experimental import topologies

    options: dict[str, Any] = {"chip_config_name": "megacore"} if generation == "v4" else {}
    host = [min(2, int(size)) for size in sizes.split("x")[:2]]
    if 1 in host:
        options["chips_per_host_bounds"] = [*host, 1]
    try:
        found = topologies.get_topology_desc(platform="tpu", topology_name=name, **options)
    except jax.errors.JaxRuntimeError as error:
        raise UsageError(f"--topology {name}: {str(error).splitlines()[0]}") from error
    return Target(name, found.devices, gigabytes * 2**30 - RESERVED_BYTES, clock)


def local() -> Target:
    """Returns the devices of this machine."""
    devices = jax.devices()
    return Target(devices[0].platform, devices, device_bytes(), None)


def dispatched(config: Config) -> dict[str, Call | None]:
    """Returns the programs that a run trains with, and the call of the sampler."""
    programs: dict[str, Call | None] = {"step": None} if config.training.steps else {}
    call = training_call(config)
    return programs | ({"sampler": call} if call else {})


def compile_run(
    config: Config, topology: str | None = None, program: str | None = None
) -> list[Report]:
    """Compiles a run's programs, and prints what the compiler says of each.

    Args:
        config: the run.
        topology: name of a TPU slice, such as "v5e:16x16"; this machine's devices if None.
        program: "step" or "sampler"; both if None.

    Returns:
        A report of each program.

    Raises:
        UsageError: no TPU compiler, an unknown slice, a program that the run does not call, or a
            field that cannot be used.
    """
    called = dispatched(config)
    if program:
        if program not in called:
            names = ", ".join(called)
            raise UsageError(
                f"--program: expected one that this run calls ({names}), got {program}"
            )
        called = {program: called[program]}
    if called.get("sampler") and _has_environments(config):
        raise UsageError(
            f"--program: expected step for task {config.task.name}, which has environments"
        )
    target = tpu_slice(topology) if topology else local()
    run = abstract_run(config, target.devices)
    axes = " x ".join(f"{axis} {n}" for axis, n in run.mesh.shape.items())
    print(f"{config.name} on {target.name}: {len(target.devices)} devices, mesh {axes}")
    print(f"model of {run.model.num_parameters:,} parameters")
    reports = []
    for name, call in called.items():
        report = _report(name, run, target, call)
        print("", *_lines(report, target), sep="\n")
        reports.append(report)
    return reports


def _has_environments(config: Config) -> bool:
    """Returns False for a task whose module or data cannot be read here."""
    task = config.task
    try:
        found = factory(task.name)
        if not isinstance(found, type):  # a function: only what it builds is of a class
            found = build(task.name, seed=config.seed, **task.options)
    except (DataError, UsageError):
        return False
    return is_environment(found)


def _fitted(run: AbstractRun, target: Target, call: Call) -> Call:
    """Returns a call with as many rows as fit the target's memory."""
    capacity = USABLE * target.capacity if target.clock else None
    rows = calls.fitting(run.config, call.settings, run.model, run.mesh, capacity)
    return dataclasses.replace(call, rows=rows)


def _report(program: str, run: AbstractRun, target: Target, call: Call | None) -> Report:
    lowered = run.lower_call(_fitted(run, target, call)) if call else run.lower_step()
    try:
        compiled = lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        return Report(program, False, str(error).splitlines()[0])
    stats = compiled.memory_analysis()
    memory = {
        "arguments": stats.argument_size_in_bytes,
        "outputs": stats.output_size_in_bytes,
        "aliased": stats.alias_size_in_bytes,
        "temporaries": stats.temp_size_in_bytes,
        "code": stats.generated_code_size_in_bytes,
    }
    memory["total"] = sum(memory.values()) - 2 * memory["aliased"]
    counts = count(compiled.as_text(), idle_scopes(call.settings) if call else ())
    return Report(
        program=program,
        fits=not target.capacity or memory["total"] <= target.capacity,
        message="",
        memory=memory,
        cycles=counts.cycles,
        collectives={
            kind: {"count": number, "bytes": counts.moved[kind]}
            for kind, number in sorted(counts.collectives.items())
        },
        unbounded_loops=sorted(counts.unbounded),
    )


def _lines(report: Report, target: Target) -> list[str]:
    verdict = "fits" if report.fits else "DOES NOT FIT"
    lines = [f"{report.program}: {verdict}"]
    if not report.memory:
        return [*lines, f"  the compiler: {report.message}"]
    sizes = {name: _bytes(size) for name, size in report.memory.items()}
    usable = f" of {_bytes(target.capacity)}" if target.capacity else ""
    lines[0] += f", {sizes.pop('total')}{usable} a device"
    lines.append("  " + ", ".join(f"{name} {size}" for name, size in sizes.items()))
    if target.clock:
        lines.append(
            f"  {report.cycles:,} cycles by the compiler, at least"
            f" {report.cycles / target.clock:.3g} s: without collectives and custom kernels"
        )
    for kind, entry in report.collectives.items():
        lines.append(f"  {kind}: {entry['count']:,}, {_bytes(entry['bytes'])} together")
    lines += [f"  counted once: loop {name}" for name in report.unbounded_loops]
    return lines


def _bytes(size: int) -> str:
    return f"{size / 2**30:.2f} GiB" if size >= 2**30 else f"{size / 2**20:.2f} MiB"
