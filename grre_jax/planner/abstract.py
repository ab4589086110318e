"""A run's train step and calls of the sampler, lowered for arrays that are never allocated."""

import dataclasses
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import Mesh

from grre_jax import models, objectives, parallel
from grre_jax.errors import UsageError
from grre_jax.models.transformer import Transformer
from grre_jax.parallel import mesh as meshes
from grre_jax.random_streams import Purpose, run_key
from grre_jax.sampling import prompt_batch
from grre_jax.sampling.decoding import engine
from grre_jax.sampling.decoding.slots import KEY_WORDS, PromptSlots
from grre_jax.sampling.decoding.state import Shape
from grre_jax.sampling.decoding.weights import prepared
from grre_jax.sampling.distributions.distribution import SamplingDistribution
from grre_jax.sampling_params import SamplingParams
from grre_jax.training import build
from grre_jax.training.actors.calls import Call
from grre_jax.training.config.run import Config
from grre_jax.training.data.pack import PackedBatch, pack
from grre_jax.training.optimizer import make_optimizer
from grre_jax.training.step import TrainState, full, make_train_step, split


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
        whole = meshes.replicated(self.mesh)
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
                jax.tree.map(lambda x: _array(x.shape, x.dtype, whole), distribution),
                _array((prompt_batch.ENDS,), jnp.int32, whole),
                _array((), jnp.int32, whole),
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
    whole = meshes.replicated(mesh)
    rows = meshes.rows(mesh, axis=1)
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
    batch = jax.tree.map(lambda x: _array(x.shape, x.dtype, rows if x.ndim >= 3 else whole), batch)
    state = TrainState(params, opt_state, _array((), jnp.int32, whole))
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
