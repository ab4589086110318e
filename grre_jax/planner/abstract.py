"""A run's train step and calls of the sampler over arrays that are never allocated: what
ahead-of-time compilation compiles.
"""

from __future__ import annotations

import dataclasses
import math
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import Mesh

from grre_jax import models, objectives, parallel
from grre_jax.errors import UsageError
from grre_jax.models.checkpoints import adapters
from grre_jax.models.transformer import Transformer
from grre_jax.parallel import mesh as meshes
from grre_jax.planner.model_sizes import published
from grre_jax.random_streams import Purpose, run_key
from grre_jax.sampling import prompt_batch
from grre_jax.sampling.decoding import engine
from grre_jax.sampling.decoding.slots import KEY_WORDS, PromptSlots
from grre_jax.sampling.decoding.state import Shape
from grre_jax.sampling.decoding.weights import prepared
from grre_jax.sampling.distributions.distribution import SamplingDistribution
from grre_jax.sampling.params import SamplingParams
from grre_jax.training import build
from grre_jax.training import optimizer as training_optimizer
from grre_jax.training import state as training_state
from grre_jax.training.actors.calls import SAMPLER_COPIES, STATE_COPIES, Call
from grre_jax.training.config.run import Config
from grre_jax.training.data.pack import BatchShape, PackedBatch, pack
from grre_jax.training.step import make_train_step


@dataclasses.dataclass(frozen=True)
class AbstractRun:
    """The shapes and layouts of a run's arrays.

    Attributes:
        config: the run's.
        mesh: devices that need not exist.
        graph: static half of the model.
        state: shapes, dtypes and shardings of the train state.
        batch: those of one step's data.
        shape: the batches'.
        objective: as in a run.
        model: shape of the model.
        frozen: parameters that are not trained, as those of the state.
        sampler_mesh: devices that sample; `mesh` unless they are the sampler's own.
        copies: of the parameters that `mesh` holds while it samples.
    """

    config: Config
    mesh: Mesh
    graph: Any
    state: training_state.TrainState
    batch: PackedBatch
    shape: BatchShape
    objective: objectives.Objective
    model: models.ModelConfig
    frozen: Any
    sampler_mesh: Mesh
    copies: int = STATE_COPIES

    @property
    def sampler(self) -> AbstractRun:
        """The run as it is on the devices that sample."""
        if self.sampler_mesh is self.mesh:
            return self
        mesh, of_run = self.sampler_mesh, (self.state.params, self.frozen)
        params, frozen = (placed(tree, mesh) for tree in of_run)
        state = dataclasses.replace(self.state, params=params)
        own = {"mesh": mesh, "state": state, "frozen": frozen, "copies": SAMPLER_COPIES}
        return dataclasses.replace(self, **own)

    def lower_step(self) -> jax.stages.Lowered:
        """The train step of the run, lowered for the mesh."""
        settings, seed = self.config.optimizer, self.config.seed
        optimizer = training_optimizer.make_optimizer(settings)
        step = make_train_step(self.graph, optimizer, settings.schedule(), self.mesh)
        reference = self.state.params if "ref_logprobs" in self.objective.requires else None
        key = jax.eval_shape(lambda: run_key(seed, Purpose.SHAPE))
        temperature = jax.ShapeDtypeStruct((), jnp.float32)
        return step.lower(
            self.state, self.batch, self.objective, temperature, key, reference, self.frozen
        )

    def shape_of(self, call: Call) -> Shape:
        """Returns the shape that a run's programs of the call are compiled for."""
        return call.shape(parallel.row_devices(self.mesh), str(self.model_dtype()))

    def lower_call(self, call: Call) -> jax.stages.Lowered:
        """Returns a whole call of the sampler as one program, lowered for the mesh.

        Prompts are sharded over data and fsdp, as in a run. A run splits the call into several
        programs, of the same shapes except for the number of steps.
        """
        shape, settings = self.shape_of(call), call.settings
        whole = meshes.replicated(self.mesh)

        waves, fills = call.waves(shape), call.fills(shape)
        shape = dataclasses.replace(shape, steps=waves * settings.max_new_tokens)
        distribution = jax.eval_shape(lambda: SamplingDistribution.of(SamplingParams()))
        distribution = jax.tree.map(lambda x: _array(x.shape, x.dtype, whole), distribution)
        columns = prompt_batch.bucket(settings.max_new_tokens)
        lead, rows = (fills, shape.shards, shape.prefill_batch), meshes.rows(self.mesh, axis=1)
        run = partial(_whole_call, self.graph, shape, columns, settings.weight_dtype)
        with meshes.use(self.mesh):
            return jax.jit(run).lower(
                training_state.full(self.state.params, self.frozen),
                _array((*lead, settings.max_prompt_tokens), jnp.int32, rows),
                _array(lead, jnp.int32, rows),
                _array((*lead, settings.group_size), jnp.int32, rows),
                _array((*lead, settings.group_size, KEY_WORDS), jnp.uint32, rows),
                distribution,
                _array((prompt_batch.ENDS,), jnp.int32, whole),
            )

    def model_dtype(self) -> Any:
        """Of the activations."""
        dtype, compute = build.dtypes(self.config.model)
        return compute or dtype


def abstract_run(config: Config, devices: list[Any]) -> AbstractRun:
    """The arrays of a run on the given devices.

    Weights, tokenizer and data of a pretrained model are not read.

    Raises:
        UsageError: a field that cannot be used, naming it.
        DataError: a config.json at model.path that cannot be read.
    """
    objective = build.build_objective(config)
    try:
        mesh = parallel.make_mesh(config.mesh, devices)
        sampler_mesh = parallel.sampler_mesh(config.mesh, mesh, devices)
        shape = build.batch_shape(config, mesh)
    except ValueError as error:
        raise UsageError(str(error)) from error
    model = abstract_model(config)
    graph, params, frozen = training_state.split(model)
    params, frozen = placed(params, mesh), placed(frozen, mesh)
    optimizer = training_optimizer.make_optimizer(config.optimizer)
    opt_state = placed(jax.eval_shape(optimizer.init, params), mesh)
    step = _array((), jnp.int32, meshes.replicated(mesh))
    own = config.samples and not config.data.mix
    batch = pack(
        [],
        shape,
        behavior_logprobs="old_logprobs" in objective.requires or own,
        learner_version=0 if own else None,
        expert="expert" in objective.requires,
        components=objective.components,
        turns="turns" in objective.requires,
    )
    cut, whole = meshes.rows(mesh, axis=1), meshes.replicated(mesh)
    batch = jax.tree.map(lambda x: _array(x.shape, x.dtype, cut if x.ndim == 3 else whole), batch)
    state = training_state.TrainState(params, opt_state, step)
    return AbstractRun(
        config, mesh, graph, state, batch, shape, objective, model.config, frozen, sampler_mesh
    )


def abstract_model(config: Config) -> Transformer:
    """The policy with shapes for parameters: of the folder at model.path, of the published
    model.shape, or new.
    """
    source = config.model
    if source.path and (Path(source.path).exists() or not source.shape):
        shape = models.load_config(source.path)
    elif source.shape:
        shape = published(source.shape)
    else:
        task = config.task.build(config.seed)
        tokenizer = build.build_tokenizer(config, task)
        return nnx.eval_shape(lambda: build.build_model(config, tokenizer))
    dtype, compute = build.dtypes(source)
    options = {"dtype": dtype, "compute_dtype": compute, "remat": source.remat}
    options["lora"] = build.lora_config(source)
    if source.adapter:
        shape = adapters.adapted_shape(shape, source.adapter)
    return nnx.eval_shape(
        lambda: Transformer(shape, rngs=nnx.Rngs(params=jax.random.key(0)), **options)
    )


def placed(tree: Any, mesh: Mesh) -> Any:
    """Shapes with the shardings that a run gives to arrays under these names."""
    shardings = meshes.tree_shardings(tree, mesh)
    return jax.tree.map(lambda x, sharding: _array(x.shape, x.dtype, sharding), tree, shardings)


def _array(shape: tuple[int, ...], dtype: Any, sharding: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)


def bytes_a_device(tree: Any) -> int:
    """Bytes of a tree's arrays on one device, by their shardings."""
    return sum(
        math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
        for leaf in jax.tree.leaves(tree)
    )


def _whole_call(
    graph: Any,
    shape: Shape,
    columns: int,
    weight_dtype: str,
    params: Any,
    prompts: Any,
    lengths: Any,
    limits: Any,
    keys: Any,
    distribution: SamplingDistribution,
    eos: Any,
) -> Any:
    """Fills the prompt slots, [fills, ...] times, and decodes until every completion has ended."""
    weights = prepared(nnx.merge(graph, params), weight_dtype)
    state = engine.new_state(shape, weights, columns)
    rotary = engine.prompt_rotary(weights.model.config, shape.prompt_tokens)
    index = jnp.broadcast_to(jnp.arange(shape.prefill_batch, dtype=jnp.int32), lengths.shape[1:])

    def fill(state, part):
        prompts, lengths, limits, keys = part
        zeros = jnp.zeros_like(lengths)
        slots = PromptSlots(
            zeros, lengths, zeros + shape.samples, zeros, zeros, zeros, limits, keys
        )
        return engine.prefill(shape, weights, state, rotary, slots, prompts, index), None

    parts = (prompts, lengths, limits, keys)
    if len(prompts) == 1:
        state, _ = fill(state, jax.tree.map(lambda x: x[0], parts))
    else:
        state, _ = jax.lax.scan(fill, state, parts)
    begun = jnp.zeros(shape.shards, jnp.int32)
    return engine.advance(shape, weights, state, distribution, eos, begun, jnp.int32(0), False)[1]
