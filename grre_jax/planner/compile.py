"""`grre compile`: what a run would need and take on a named TPU slice, by the TPU compiler and a
roofline, without any TPU.

The run's own train step and calls of the sampler (`training.actors.calls`) are compiled for the
slice on abstract arrays. Memory is what the compiler allocates; time is that of
`planner.program.roofline`.
"""

from __future__ import annotations

import dataclasses
import re
import time
from typing import Any

import jax

from grre_jax.errors import DataError, UsageError
from grre_jax.models.config import ModelConfig
from grre_jax.models.transformer import REMAT
from grre_jax.parallel.mesh import row_devices
from grre_jax.planner.abstract import AbstractRun, abstract_run, bytes_a_device
from grre_jax.planner.hardware.topology import Topology, topology
from grre_jax.planner.program import costs, roofline
from grre_jax.sampling.distributions.distribution import idle_scopes
from grre_jax.sampling.memory import USABLE
from grre_jax.sampling.params import SamplingParams
from grre_jax.tasks.environments import is_environment
from grre_jax.tasks.task import build, factory
from grre_jax.training.actors import calls
from grre_jax.training.actors.calls import Call, evaluation_calls, training_calls
from grre_jax.training.config.run import Config

# What the runtime keeps of a chip's memory: the compiler calls 15.75 GiB of v5e's 16 available.
RESERVED_BYTES = 2**28

ASSUMPTIONS = (
    "every row is full and every completion reaches sampling.max_new_tokens",
    (
        "an instruction takes max(FLOPs / bf16 peak, bytes / HBM bandwidth); elementwise arithmetic"
        " and on-chip memory are free"
    ),
    (
        "collectives use all links along the axes they span, at the documented bandwidth;"
        " asynchronous ones overlap with what the compiler put beside them"
    ),
    "custom kernels run at the same limits; start-up, host work and input are free",
)


@dataclasses.dataclass(frozen=True)
class Memory:
    """Bytes of HBM on one chip.

    Attributes:
        parameters, optimizer, batch: arguments of the program.
        temporaries: everything alive within it: gradients, activations, gathered weights.
        gradients: of the temporaries, one copy of the gradients as the parameters are cut.
        program: its instructions.
        total: all together.
        message: the compiler's own words where it found no place for all of it; empty if it did.
    """

    parameters: int
    optimizer: int
    batch: int
    temporaries: int
    gradients: int
    program: int
    total: int
    message: str = ""


@dataclasses.dataclass(frozen=True)
class Report:
    """One compiled program: what it needs, and what it costs where it fits.

    Attributes:
        program: "train step", "sampler" or "evaluation".
        memory: per chip.
        capacity: bytes of the chip's HBM that a program may use.
        fits: whether the compiler could place its part, and all together is within the capacity.
        cost: the roofline; None where there is no program.
        tokens: computed in the program, over all chips.
        model_flops: what the model needs for them, without recomputation, over all chips.
        mfu: model_flops / (time x chips x peak).
        compile_seconds: how long the compiler took.
        advice: what to change first where it does not fit.
        call: of the sampler: {"prompts", "samples", "rows" decoded side by side over all chips,
            "refilled" (whether rows take what waits), "kept_prompts"}; None for the train step.
    """

    program: str
    memory: Memory
    capacity: int
    fits: bool
    cost: costs.Cost | None
    tokens: int
    model_flops: float
    mfu: float
    compile_seconds: float
    advice: tuple[str, ...]
    call: dict[str, Any] | None = None


def dispatched(config: Config) -> dict[str, Call | None]:
    """The programs that a run calls, with the call of those that sample: the largest of several
    sizes.
    """
    training, evaluation = training_calls(config), evaluation_calls(config)
    found: dict[str, Call | None] = {"train step": None} if config.training.steps else {}
    found |= {"sampler": training[0]} if training else {}
    return found | ({"evaluation": evaluation[0]} if evaluation else {})


def compile_run(
    config: Config, name: str, *, programs: tuple[str, ...] = ()
) -> tuple[Topology, AbstractRun, list[Report]]:
    """Compiles a run's programs for a slice.

    Args:
        config: the run.
        name: the slice, such as "v5e:16x16".
        programs: which of "train step", "sampler" and "evaluation"; if none, all that the run
            calls, those that are alike once.

    Raises:
        UsageError: no TPU compiler, an unknown slice, a program that the run does not call, or a
            field that cannot be used.
    """
    known = dispatched(config)
    if missing := [program for program in programs if program not in known]:
        raise UsageError(_WHY_NOT[missing[0]])
    if _has_environments(config):
        if sampling := [program for program in programs or known if known[program]]:
            raise UsageError(
                f"task {config.task.name} has environments, and the programs that sample"
                f" trajectories ({', '.join(sampling)}) are not predicted: give --program step"
            )
    slice_ = topology(name)
    # One process has a host, of v5e up to eight chips, which this compiler calls two.
    hosts = {device.process_index for device in slice_.devices} if len(slice_.devices) > 8 else {0}
    if idle := calls.idle_sampler(config, len(hosts)):
        raise UsageError(idle)
    run = abstract_run(config, slice_.devices)
    on = {program: run.sampler if program == "sampler" else run for program in known}
    known = {name: call and call_on(on[name], slice_, call) for name, call in known.items()}
    shapes = {
        name: (on[name].mesh, call and on[name].shape_of(call)) for name, call in known.items()
    }
    if not programs:  # an evaluation that samples in training's shape is training's program
        alike = list(shapes.values())
        programs = [name for i, name in enumerate(known) if alike[i] not in alike[:i]]
    reports = [_report(name, on[name], slice_, known[name]) for name in programs]
    return slice_, run, reports


def _has_environments(config: Config) -> bool:
    """True for a task that has environments; False if its module or data is not here to tell."""
    task = config.task
    try:
        made = factory(task.name)
        if not isinstance(made, type):  # a function, whose tasks are known once it has made one
            made = build(task.name, seed=config.seed, **task.options)
    except (DataError, UsageError):
        return False
    return is_environment(made)


def call_on(run: AbstractRun, slice_: Topology, call: Call) -> Call:
    """Returns a call as the run makes it on the slice: with as many rows as fit."""
    capacity = USABLE * (slice_.chip.hbm_bytes - RESERVED_BYTES)
    rows = calls.fitting(run.config, call.settings, run.model, run.mesh, capacity, run.copies)
    return dataclasses.replace(call, rows=rows)


_WHY_NOT = {
    "train step": "--program step: training.steps is 0, so the run takes no step",
    "sampler": (
        "--program sampler: this run samples nothing of its own: data.path or data.mix gives all of"
        " its data, or training.steps is 0"
    ),
    "evaluation": "--program evaluation: evaluation.questions is 0, so the run evaluates nothing",
}


def call_summary(call: Call, devices: int, activations: str) -> dict[str, Any]:
    """A call for a report: prompts, completions of each, rows decoded side by side and whether
    they are refilled, over `devices` that rows are cut over.
    """
    shape = call.shape(devices, activations)
    return {
        "prompts": call.filled(devices),
        "samples": shape.samples,
        "rows": shape.decode_slots * shape.shards,
        "refilled": not shape.resident,
        "kept_prompts": shape.prompt_slots * shape.shards,
    }


def _report(program: str, run: AbstractRun, slice_: Topology, call: Call | None = None) -> Report:
    lowered = run.lower_call(call) if call else run.lower_step()
    tokens, model_flops = call_work(run, call) if call else step_work(run)
    summary = call_summary(call, row_devices(run.mesh), str(run.model_dtype())) if call else None
    start = time.perf_counter()
    capacity = int(slice_.chip.hbm_bytes) - RESERVED_BYTES
    cost, mfu = None, 0.0
    try:
        compiled = lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        seconds = time.perf_counter() - start
        memory, fits = _exhausted(run, program, str(error)), False
    else:
        seconds = time.perf_counter() - start
        memory = _memory(run, program, compiled.memory_analysis())
        idle = idle_scopes(call.settings) if call else ()
        cost = roofline.analyse(compiled.as_text(), slice_.torus(run.mesh), idle)
        mfu = model_flops / (cost.seconds * run.mesh.devices.size * slice_.chip.peak_flops)
        fits = memory.total <= capacity
    words = () if fits else advice(run, program, memory, call)
    return Report(
        program, memory, capacity, fits, cost, tokens, model_flops, mfu, seconds, words, summary
    )


def _known(run: AbstractRun, program: str) -> Memory:
    """The memory that is known before compilation: arguments, and gradients of what is trained."""
    of_step = (run.state.opt_state, run.batch, run.state.params) if program == "train step" else ()
    optimizer, batch, gradients = map(bytes_a_device, of_step or ((), (), ()))
    parameters = bytes_a_device((run.state.params, run.frozen))
    return Memory(
        parameters, optimizer, batch, 0, gradients, 0, total=parameters + optimizer + batch
    )


def _memory(run: AbstractRun, program: str, stats: Any) -> Memory:
    known, arguments = _known(run, program), stats.argument_size_in_bytes
    code, temporaries = stats.generated_code_size_in_bytes, stats.temp_size_in_bytes
    new = stats.output_size_in_bytes - stats.alias_size_in_bytes
    # With the padding of tiles, keys, numbers and results.
    batch = known.batch + max(0, arguments - known.total) + new
    total = arguments + new + temporaries + code
    return dataclasses.replace(
        known, batch=batch, temporaries=temporaries, program=code, total=total
    )


_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
# The compiler's two ways of saying it: of the temporaries alone, or of everything.
_TEMPORARIES = re.compile(r"HLO temporaries \(([\d.]+)([KMGT]?)\)")
_EVERYTHING = re.compile(r"Used ([\d.]+)([KMGT]?) of [\d.]+[KMGT]? hbm", re.IGNORECASE)


def _exhausted(run: AbstractRun, program: str, message: str) -> Memory:
    """Returns the known figures of a compilation that ran out of memory: the compiler's message
    contains the memory it needed.
    """
    known, temporaries = _known(run, program), 0
    for pattern, included in ((_TEMPORARIES, 0), (_EVERYTHING, known.total)):
        if found := pattern.search(message):
            temporaries = max(0, int(float(found.group(1)) * _UNITS[found.group(2)]) - included)
            break
    words = next(
        (line.strip() for line in message.splitlines() if "hbm" in line.lower()),
        message.splitlines()[0],
    )
    total = known.total + temporaries
    return dataclasses.replace(known, temporaries=temporaries, total=total, message=words)


def _forward_flops(
    model: ModelConfig, settings: SamplingParams, prompts: int, completions: int
) -> float:
    """FLOPs of the forward pass of as many prompts and completions of full length."""
    prompt, new = settings.max_prompt_tokens, settings.max_new_tokens
    first, later = (
        model.flops_per_token(seen) for seen in ((prompt + 1) / 2, prompt + (new + 1) / 2)
    )
    return prompts * prompt * first + completions * new * later


def step_work(run: AbstractRun) -> tuple[int, float]:
    """(tokens, model FLOPs) of a step whose rows are full: every copy of a prompt that the rows
    hold counts, no padding does.
    """
    settings, shape = run.config.sampling, run.shape
    prompt, new, samples = settings.max_prompt_tokens, settings.max_new_tokens, settings.group_size
    per_row = max(1, (shape.pack_length - prompt) // new)
    shared = 1 if shape.pack_length >= prompt + samples * new else -(-samples // per_row)
    copies = shared if shape.share_prompts else samples
    groups = shape.responses // samples
    flops = _forward_flops(run.model, settings, copies, samples)
    # Of the backward pass, weights that are not trained take the half that goes through them.
    return groups * (prompt * copies + samples * new), (2.0 if run.frozen else 3.0) * groups * flops


def call_work(run: AbstractRun, call: Call) -> tuple[int, float]:
    """(new tokens, model FLOPs) of a call of the sampler in which every completion reaches its
    limit.
    """
    settings, prompts = call.settings, call.filled(row_devices(run.mesh))
    completions = prompts * settings.group_size
    tokens = completions * settings.max_new_tokens
    return tokens, _forward_flops(run.model, settings, prompts, completions)


def advice(
    run: AbstractRun, program: str, memory: Memory, call: Call | None = None
) -> tuple[str, ...]:
    """The first things to change where a program does not fit, the cheapest in speed first:
    fields with values.
    """
    config, mesh, found = run.config, run.mesh.shape, []
    devices = run.mesh.devices.size
    ways = mesh["data"] * mesh["fsdp"]
    if config.model.compute_dtype != "bfloat16" and config.model.dtype != "bfloat16":
        found.append("--model.compute_dtype bfloat16: activations and gathered weights take half")
    if mesh["data"] > 1:
        found.append(
            f"--mesh.data 1 --mesh.fsdp {devices // mesh['tensor'] // mesh.get('sequence', 1)}:"
            " parameters and optimiser state cut over all chips"
        )
    if call:
        shape = run.shape_of(call)
        if (rows := shape.decode_slots * shape.shards) > ways:
            found.append(f"--sampling.max_concurrent {max(ways, rows // 2)}: half the caches")
        return (
            *found,
            f"--mesh.tensor {2 * mesh['tensor']}: weights, heads and caches cut further",
        )
    if run.shape.rows > ways:
        found.append(
            f"--training.packs_per_microbatch {max(ways, run.shape.rows // 2 // ways * ways)}: half"
            " the activations"
        )
    stronger = list(REMAT)[list(REMAT).index(config.model.remat) + 1 :]
    if stronger:
        found.append(
            f"--model.remat {stronger[0]} (then full): the backward pass computes more again and"
            " keeps less"
        )
    smallest = config.sampling.max_prompt_tokens + config.sampling.max_new_tokens
    if run.shape.pack_length > smallest:
        found.append(
            f"--training.pack_length {smallest}: shorter rows, so that fewer tokens are computed at"
            " once"
        )
    if memory.parameters + memory.optimizer + memory.gradients > 0.7 * memory.total or not found:
        found.append("more chips: parameters, optimiser state and gradients alone take most of it")
    return tuple(found)
