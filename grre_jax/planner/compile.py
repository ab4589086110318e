"""`grre compile`: memory, collectives and the compiler's cycles of a run's programs.

The run's own train step and calls of the sampler (`training.actors.calls`) are lowered for arrays
that are never allocated (`AbstractRun`), and compiled: for a named TPU slice by the compiler in the
package `libtpu`, which runs on any machine, or for the devices of this machine. Nothing is
executed.
"""

from __future__ import annotations

import dataclasses
import os
import re
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import Mesh

from grre_jax import models, objectives, parallel
from grre_jax.errors import DataError, UsageError
from grre_jax.models.transformer import Transformer
from grre_jax.parallel import mesh as meshes
from grre_jax.planner.counts import Counts, count
from grre_jax.random_streams import Purpose, run_key
from grre_jax.sampling import prompt_batch
from grre_jax.sampling.decoding import engine
from grre_jax.sampling.decoding.slots import KEY_WORDS, PromptSlots, Shape
from grre_jax.sampling.decoding.weights import prepared
from grre_jax.sampling.distributions.distribution import SamplingDistribution, idle_scopes
from grre_jax.sampling_params import SamplingParams
from grre_jax.tasks import task as task_table
from grre_jax.training import build
from grre_jax.training.actors import calls
from grre_jax.training.actors.calls import USABLE, Call, device_bytes, training_call
from grre_jax.training.config.run import Config
from grre_jax.training.data.pack import PackedBatch, pack
from grre_jax.training.optimizer import make_optimizer
from grre_jax.training.step import TrainState, full, make_train_step, split

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
            compiler ran out of memory, as `counts`.
        counts: cycles by the compiler, collectives, and loops whose trips cannot be read.
    """

    program: str
    fits: bool
    message: str
    memory: dict[str, int] = dataclasses.field(default_factory=dict)
    counts: Counts = dataclasses.field(default_factory=Counts)


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
    for variable, value in _ENVIRONMENT.items():
        os.environ.setdefault(variable, value)
    jax.config.update("jax_platforms", "cpu")
    from jax.experimental import topologies

    options: dict[str, Any] = {"chip_config_name": "megacore"} if generation == "v4" else {}
    host = [min(2, int(size)) for size in sizes.split("x")[:2]]
    if 1 in host:
        options["chips_per_host_bounds"] = [*host, 1]
    try:
        topology = topologies.get_topology_desc(platform="tpu", topology_name=name, **options)
    except RuntimeError as error:  # JAX's too, and of a TPU compiler that is not installed
        raise UsageError(f"--topology {name}: {str(error).splitlines()[0]}") from error
    return Target(name, topology.devices, gigabytes * 2**30 - RESERVED_BYTES, clock)


def dispatched(config: Config) -> dict[str, Call | None]:
    """Returns the programs that a run trains with, and the call of the sampler."""
    programs: dict[str, Call | None] = {"step": None} if config.training.steps else {}
    call = training_call(config)
    return programs | ({"sampler": call} if call else {})


def compile_run(config: Config, topology: str | None = None) -> list[Report]:
    """Compiles a run's programs, and prints the compiler's figures of each. A sampler of
    environments is left out.

    Args:
        config: the run.
        topology: name of a TPU slice, such as "v5e:16x16"; this machine's devices if None.

    Returns:
        A report of each program.

    Raises:
        UsageError: no TPU compiler, an unknown slice, or a field that cannot be used.
    """
    if topology:
        target = tpu_slice(topology)
    else:
        devices = jax.devices()
        target = Target(devices[0].platform, devices, device_bytes(), None)
    run = abstract_run(config, target.devices)
    axes = " x ".join(f"{axis} {n}" for axis, n in run.mesh.shape.items())
    print(f"{config.name} on {target.name}: {len(target.devices)} devices, mesh {axes}")
    print(f"model of {run.model.num_parameters:,} parameters")
    programs = dispatched(config)
    if "sampler" in programs and _has_environments(config):
        del programs["sampler"]
        print(f"sampler: not compiled, as task {config.task.name} has environments")
    reports = []
    for name, call in programs.items():
        report = _report(name, run, target, call)
        print("", *_lines(report, target), sep="\n")
        reports.append(report)
    return reports


def _has_environments(config: Config) -> bool:
    """Returns False for a task whose module or data cannot be read here."""
    task = config.task
    try:
        candidate = task_table.factory(task.name)
        if not isinstance(candidate, type):  # a function: only what it builds is of a class
            candidate = task_table.build(task.name, seed=config.seed, **task.options)
    except (DataError, UsageError):
        return False
    return task_table.is_environment(candidate)


def _report(program: str, run: AbstractRun, target: Target, call: Call | None) -> Report:
    if call:
        # With as many rows as fit the target's memory.
        capacity = USABLE * target.capacity if target.clock else None
        rows = calls.fitting(run.config, call.settings, run.model, run.mesh, capacity)
        lowered = run.lower_call(dataclasses.replace(call, rows=rows))
    else:
        lowered = run.lower_step()
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
    fits = not target.capacity or memory["total"] <= target.capacity
    counts = count(compiled.as_text(), idle_scopes(call.settings) if call else ())
    return Report(program, fits, "", memory, counts)


def _lines(report: Report, target: Target) -> list[str]:
    verdict = "fits" if report.fits else "DOES NOT FIT"
    lines = [f"{report.program}: {verdict}"]
    if not report.memory:
        return [*lines, f"  the compiler: {report.message}"]
    sizes = {name: _bytes(size) for name, size in report.memory.items()}
    usable = f" of {_bytes(target.capacity)}" if target.capacity else ""
    lines[0] += f", {sizes.pop('total')}{usable} a device"
    lines.append("  " + ", ".join(f"{name} {size}" for name, size in sizes.items()))
    counts = report.counts
    if target.clock:
        lines.append(
            f"  {counts.cycles:,} cycles by the compiler, at least"
            f" {counts.cycles / target.clock:.3g} s: without collectives and custom kernels"
        )
    for kind, number in sorted(counts.collectives.items()):
        lines.append(f"  {kind}: {number:,}, {_bytes(counts.moved[kind])} together")
    lines += [f"  counted once: loop {name}" for name in sorted(counts.unbounded)]
    return lines


def _bytes(size: int) -> str:
    return f"{size / 2**30:.2f} GiB" if size >= 2**30 else f"{size / 2**20:.2f} MiB"


@dataclasses.dataclass(frozen=True)
class AbstractRun:
    """The shapes and layouts of a run's arrays.

    Attributes:
        config: the run.
        mesh: devices, which need not exist.
        graph: static half of the model.
        state: shapes, dtypes and shardings of the train state.
        batch: the same of one step's data.
        objective: the loss.
        model: shape of the model.
        frozen: parameters that are not trained, as in `state`.
    """

    config: Config
    mesh: Mesh
    graph: Any
    state: TrainState
    batch: PackedBatch
    objective: objectives.Objective
    model: models.ModelConfig
    frozen: Any

    def lower_step(self) -> jax.stages.Lowered:
        """Returns the train step, lowered for the mesh."""
        balance = self.config.training.router_balance
        step = make_train_step(self.graph, self.config.optimizer, self.mesh, balance)
        reference = self.state.params if "ref_logprobs" in self.objective.requires else None
        key = jax.eval_shape(lambda: run_key(self.config.seed, Purpose.SHAPE))
        temperature = jax.ShapeDtypeStruct((), jnp.float32)
        return step.lower(
            self.state, self.batch, self.objective, temperature, key, reference, self.frozen
        )

    def lower_call(self, call: Call) -> jax.stages.Lowered:
        """Returns a whole call of the sampler as one program, lowered for the mesh.

        Prompts are sharded over data and fsdp, as in a run. A run splits the call into several
        programs, of the same shapes except for the number of steps.
        """
        dtype, compute = build.dtypes(self.config.model)
        shape = call.shape(parallel.row_devices(self.mesh), str(compute or dtype))
        settings = call.settings
        lead = (call.fills(shape), shape.shards, shape.prefill_batch)
        shape = dataclasses.replace(shape, steps=call.waves(shape) * settings.max_new_tokens)
        columns = prompt_batch.bucket(settings.max_new_tokens)
        sharding = meshes.replicated(self.mesh)
        rows = meshes.rows(self.mesh, axis=1)
        distribution = jax.eval_shape(lambda: SamplingDistribution.of(SamplingParams()))
        run = partial(_whole_call, self.graph, shape, columns)
        with meshes.use(self.mesh):
            return jax.jit(run).lower(
                full(self.state.params, self.frozen),
                (
                    _array((*lead, settings.max_prompt_tokens), jnp.int32, rows),
                    _array(lead, jnp.int32, rows),
                    _array((*lead, settings.group_size, KEY_WORDS), jnp.uint32, rows),
                ),
                jax.tree.map(lambda x: _array(x.shape, x.dtype, sharding), distribution),
                _array((prompt_batch.ENDS,), jnp.int32, sharding),
                _array((), jnp.int32, sharding),
            )


def abstract_run(config: Config, devices: list[Any]) -> AbstractRun:
    """Returns the arrays of a run on the given devices, without reading weights or data.

    Raises:
        UsageError: a field that cannot be used, naming it.
        DataError: a config.json at model.path that cannot be read.
    """
    objective = build.build_objective(config)
    try:
        mesh = parallel.make_mesh(config.mesh, devices)
        shape = build.batch_shape(config, mesh)
    except ValueError as error:
        raise UsageError(str(error)) from error
    model = abstract_model(config)
    shape = build.with_routes(config, model.config, shape)
    graph, params, frozen = split(model)
    params = _placed(params, mesh)
    frozen = _placed(frozen, mesh)
    opt_state = _placed(jax.eval_shape(make_optimizer(config.optimizer).init, params), mesh)
    sharding = meshes.replicated(mesh)
    rows = meshes.rows(mesh, axis=1)
    from_samples = config.samples and not config.data.mix
    batch = pack(
        [],
        shape,
        behavior_logprobs="old_logprobs" in objective.requires or from_samples,
        learner_version=0 if from_samples else None,
        expert="expert" in objective.requires,
        components=objective.components,
        turns="turns" in objective.requires,
    )
    batch = jax.tree.map(
        lambda x: _array(x.shape, x.dtype, rows if x.ndim >= 3 else sharding), batch
    )
    state = TrainState(params, opt_state, _array((), jnp.int32, sharding))
    return AbstractRun(config, mesh, graph, state, batch, objective, model.config, frozen)


def abstract_model(config: Config) -> Transformer:
    """Returns the policy with shapes for parameters: of the folder at model.path, of that at
    model.shape if the former does not exist, or new.
    """
    source = config.model
    path = source.path
    if source.shape and not (path and Path(path).exists()):
        path = source.shape
    if not path:
        tokenizer = build.build_tokenizer(config, config.task.build(config.seed))
        return nnx.eval_shape(lambda: build.build_model(config, tokenizer))
    shape = models.load_config(path)
    dtype, compute = build.dtypes(source)
    return nnx.eval_shape(
        lambda: Transformer(
            shape,
            rngs=nnx.Rngs(params=jax.random.key(0)),
            dtype=dtype,
            compute_dtype=compute,
            remat=source.remat,
            lora=build.lora_config(source),
        )
    )


def _placed(tree: Any, mesh: Mesh) -> Any:
    """Returns shapes with the shardings that a run gives to arrays under these names."""
    shardings = meshes.tree_shardings(tree, mesh)
    return jax.tree.map(lambda x, sharding: _array(x.shape, x.dtype, sharding), tree, shardings)


def _array(shape: tuple[int, ...], dtype: Any, sharding: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)


def _whole_call(
    graph: Any,
    shape: Shape,
    columns: int,
    params: Any,
    parts: Any,
    distribution: SamplingDistribution,
    eos: Any,
    limit: Any,
) -> Any:
    """Fills the prompt slots and decodes until every completion has ended.

    Args:
        parts: prompts, their lengths and keys of every fill, [fills, shards, rows, ...].
    """
    weights = prepared(nnx.merge(graph, params))
    state = engine.new_state(shape, weights, columns)
    rotary = engine.prompt_rotary(weights.model.config, shape.prompt_tokens)
    index = jnp.broadcast_to(jnp.arange(shape.prefill_batch, dtype=jnp.int32), parts[1].shape[1:])

    def fill(state, part):
        prompts, lengths, keys = part
        zeros = jnp.zeros_like(lengths)
        slots = PromptSlots(zeros, lengths, zeros + shape.samples, zeros, zeros, zeros, keys)
        return engine.prefill(shape, weights, state, rotary, slots, prompts, index)

    state, _ = jax.lax.scan(fill, state, parts)
    begun = jnp.zeros(shape.shards, jnp.int32)
    few = jnp.int32(0)
    return engine.advance(shape, weights, state, distribution, eos, limit, begun, few, False)[1]
