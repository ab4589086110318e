"""The train step (advantages, global statistics, gradients over micro-batches, update), and the
state that it takes: parameters, optimizer state, step.

One pure function, compiled once per run.

Every aggregation is over the whole step: `batch_stats` counts the global batch first, then each
micro-batch contributes its exact share. Another division into micro-batches therefore does not
change the gradient.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import Mesh
from jaxtyping import Array, Int

from grre_jax import objectives
from grre_jax.models.logprobs import token_logprobs
from grre_jax.models.lora import is_lora
from grre_jax.models.transformer import Transformer
from grre_jax.parallel import mesh as meshes, processes
from grre_jax.training.data.pack import PackedBatch
from grre_jax.training.optimizer import OptimizerConfig, make_optimizer


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TrainState:
    """A pytree of arrays, which is checkpointed, donated to the step and returned by it.

    Attributes:
        params: nested dict of the parameters that are trained, as of `nnx.to_pure_dict`: all of
            them, or those of the low-rank terms (see `frozen`).
        opt_state: state of the optimizer.
        step: number of updates; also the policy version of `params`.
    """

    params: Any
    opt_state: Any
    step: Int[Array, ""]


def copied(params: Any, mesh: Mesh) -> Any:
    """Returns a copy of parameters, laid out over the mesh."""
    copy = jax.jit(
        lambda params: jax.tree.map(jnp.copy, params),
        out_shardings=meshes.tree_shardings(params, mesh),
    )
    return copy(params)


def place(model: Transformer, mesh: Mesh) -> None:
    """Lays out a model's parameters over the mesh, in the model itself."""
    nnx.update(model, meshes.laid_out(nnx.state(model), mesh))


def release(tree: Any) -> Any:
    """Deletes the arrays of a tree, also for its other references; returns their shapes, dtypes and
    shardings.
    """

    def one(x: Array) -> jax.ShapeDtypeStruct:
        shape = jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding)
        x.delete()
        return shape

    return jax.tree.map(one, tree)


def split(model: Transformer) -> tuple[Any, Any, Any]:
    """Returns the static graph, the parameters that are trained, and those that are not.

    A model with low-rank terms trains those alone, any other model all of its parameters.
    """
    graph, params = nnx.split(model)
    params = nnx.to_pure_dict(params)
    if model.lora is None:
        return graph, params, {}
    layers = params["layers"]
    trained = {name: value for name, value in layers.items() if is_lora(name)}
    base = {name: value for name, value in layers.items() if not is_lora(name)}
    return graph, {"layers": trained}, params | {"layers": base}


def frozen(model: Transformer, mesh: Mesh) -> Any:
    """Returns the parameters that are not trained, laid out over the mesh; {} if all are trained.

    Arrays that are laid out so already are not copied.
    """
    _, _, params = split(model)
    return meshes.laid_out(params, mesh)


def full(params: Any, frozen: Any) -> Any:
    """Returns all parameters of a model from its trained and its frozen ones, without a copy."""
    if not frozen:
        return params
    return params | frozen | {"layers": params["layers"] | frozen["layers"]}


def fresh(params: Any, settings: OptimizerConfig, mesh: Mesh) -> TrainState:
    """Returns a state at step 0 with existing parameters and a new optimizer state.

    Args:
        params: the trained parameters.
        settings: of the optimizer whose state is laid out.
        mesh: over which the state is laid out.
    """
    optimizer = make_optimizer(settings)
    shapes = jax.eval_shape(optimizer.init, params)
    opt_state = jax.jit(optimizer.init, out_shardings=meshes.tree_shardings(shapes, mesh))(params)
    # By `put`: jax 0.10 cannot list the pieces of an array that `device_put` spreads over processes
    # of one device each, so it could not be saved.
    return TrainState(params, opt_state, processes.put(np.int32(0), meshes.replicated(mesh)))


Metrics = dict[str, Array]


def _merge_metrics(total: Metrics, new: Metrics) -> Metrics:
    """Adds contributions; takes the maximum of names that end in "_max"."""
    merge = {name: jnp.maximum if name.endswith("_max") else jnp.add for name in total}
    return {name: merge[name](total[name], new[name]) for name in total}


def _loss_batch(
    batch: PackedBatch, shaped: objectives.ShapedData, logprobs: Array | None = None
) -> objectives.Batch:
    """Returns the flat layout of the losses: tokens of any number of rows, responses of the whole
    step.

    A step makes one update of its batch, so the policy at the start of the update is the policy
    itself: `logprobs`, as a constant, are the proximal log-probs if the batch has none.
    """
    if batch.prox_logprobs is None and logprobs is not None:
        batch = dataclasses.replace(batch, prox_logprobs=jax.lax.stop_gradient(logprobs))
    flat = {
        name: None if (x := getattr(batch, name)) is None else x.reshape(-1) for name in _OPTIONAL
    }
    return objectives.Batch(
        mask=batch.mask.reshape(-1),
        response_ids=batch.response_ids.reshape(-1),
        advantages=shaped.advantages,
        dropped=shaped.dropped,
        rewards=batch.rewards,
        group_ids=batch.group_ids,
        staleness=batch.staleness,
        expert=batch.expert,
        **flat,
    )


_OPTIONAL = ("old_logprobs", "ref_logprobs", "prox_logprobs", "turns")
_INPUTS = ("tokens", "positions", "segment_ids", "prefix_ids", "sources")  # of the model
_TOKEN_FIELDS = (*_INPUTS, "mask", "response_ids", *_OPTIONAL, "routes")


def _micro_batch(batch: PackedBatch, i: Any) -> PackedBatch:
    of_tokens = {name: getattr(batch, name) for name in _TOKEN_FIELDS}
    return dataclasses.replace(
        batch, **{name: x[i] for name, x in of_tokens.items() if x is not None}
    )


def _logprobs(
    graph: Any,
    params: Any,
    micro: PackedBatch,
    temperature: Array,
    *,
    everything: bool = False,
    replays: bool = True,
) -> Any:
    """Returns log-probs, or a tuple of them, the entropies and the routing if `everything`."""
    model = nnx.merge(graph, params)
    return token_logprobs(
        model,
        *(getattr(micro, name) for name in _INPUTS),
        temperature=temperature,
        everything=everything,
        scored=micro.mask,
        routes=micro.routes if replays else None,
    )


def _if_filled(batch: PackedBatch, i: Any, run: Callable, otherwise: Any) -> Any:
    """Runs a function unless micro-batch `i` is empty; rows are filled from the front, so that
    empty micro-batches cost nothing.
    """
    # Not `where`, which computes both sides.
    return jax.lax.cond(batch.mask[i].any(), run, lambda carry: carry, otherwise)


def _all_logprobs(
    graph: Any, params: Any, batch: PackedBatch, temperature: Array, replays: bool = True
) -> Array:
    """Returns log-probs [micro-batches, rows, row tokens] of the whole step, without a gradient."""

    def forward(i):
        def run(_):
            micro = _micro_batch(batch, i)
            logprobs = _logprobs(graph, params, micro, temperature, replays=replays)
            return logprobs.astype(jnp.float32)

        return _if_filled(batch, i, run, jnp.zeros(batch.mask.shape[1:], jnp.float32))

    # By a loop: activations of one micro-batch at a time, and one compiled forward pass.
    return jax.lax.stop_gradient(jax.lax.map(forward, jnp.arange(batch.tokens.shape[0])))


def _whole_batch_stats(
    graph: Any,
    params: Any,
    batch: PackedBatch,
    shaped: objectives.ShapedData,
    objective: Any,
    temperature: Array,
) -> objectives.BatchStats | None:
    """Counts the whole step, with a forward pass over all of it for an objective that decides by
    the policy over the whole step.

    None if that would repeat the gradient's forward pass, of a single micro-batch: the loss then
    gathers its own statistics.
    """
    if not objective.needs_policy_stats:
        return objectives.batch_stats(_loss_batch(batch, shaped), objective)
    if batch.tokens.shape[0] == 1:
        return None
    logprobs = _all_logprobs(graph, params, batch, temperature)
    return objectives.batch_stats(_loss_batch(batch, shaped, logprobs), objective, logprobs)


def loss_and_gradient(
    graph: Any,
    params: Any,
    batch: PackedBatch,
    objective: Any,
    temperature: Array,
    key: Array,
    reference: Any = None,
    frozen: Any = None,
    router_balance: float = 0.0,
) -> tuple[Array, Any, Metrics]:
    """Computes loss, gradient and metrics of a whole step, micro-batch by micro-batch.

    Args:
        graph, params: the static half of the model and the parameters that are trained.
        batch: the packed step.
        objective: from `objectives.algorithm`; its hyperparameters are traced.
        temperature: [] at which the data was sampled; log-probs are computed at it.
        key: for data shaping that draws (RED-Drop).
        reference: the trained parameters of the reference policy, if the objective requires
            `ref_logprobs` and the batch has none.
        frozen: the parameters that are not trained, which the reference policy shares.
        router_balance: factor of the load-balancing loss of a mixture of experts.

    Returns:
        The loss [], the gradient with respect to `params`, and scalars by name.
    """
    if "ref_logprobs" in objective.requires and batch.ref_logprobs is None:
        # The reference policy has routes of its own.
        logprobs = _all_logprobs(graph, full(reference, frozen), batch, temperature, replays=False)
        batch = dataclasses.replace(batch, ref_logprobs=logprobs)
    # Once for the whole step: the completions of a group may be in several micro-batches.
    shaped = objectives.shape_data(
        objective,
        batch.rewards,
        batch.group_ids,
        key=key,
        lengths=_lengths(batch, bool(objective.returns)),
        components=dict(zip(objective.components, batch.components, strict=True)),
        turn_rewards=batch.turn_rewards,
    )
    stats = _whole_batch_stats(graph, full(params, frozen), batch, shaped, objective, temperature)
    # Of the whole step, so that what micro-batches add up to is its mean; 1 avoids 0 / 0.
    tokens = jnp.maximum(batch.mask.sum(), 1)

    def micro_loss(params, micro: PackedBatch):
        logprobs, entropy, router = _logprobs(
            graph, full(params, frozen), micro, temperature, everything=True
        )
        loss, metrics = objectives.policy_loss(
            objective, logprobs, _loss_batch(micro, shaped, logprobs), stats
        )
        entropy = jnp.where(micro.mask, jax.lax.stop_gradient(entropy), 0.0).sum() / tokens
        logprobs = jax.lax.stop_gradient(logprobs).astype(jnp.float32)
        metrics |= {"entropy": entropy}
        if router is not None:
            # Weighted by tokens, so that the micro-batches add up to one figure of the step.
            share = micro.mask.sum() / tokens
            imbalance = router.imbalance * share
            loss = loss + router_balance * imbalance
            metrics |= {"router_imbalance": jax.lax.stop_gradient(imbalance)}
            if micro.routes is not None:
                metrics |= {"router_gap": router.differing.sum()}
                metrics |= {"routes_replayed": router.replayed.sum()}
        return loss, (metrics, logprobs)

    loss, grads, metrics, logprobs = _over_micro_batches(micro_loss, params, batch)
    if "routes_replayed" in metrics:
        # A share of the whole step's: micro-batches may replay any number.
        metrics["router_gap"] /= jnp.maximum(metrics.pop("routes_replayed"), 1)
    # Quantiles and effective sample sizes do not add up over micro-batches.
    return loss, grads, metrics | objectives.batch_diagnostics(logprobs, _loss_batch(batch, shaped))


def _lengths(batch: PackedBatch, by_turn: bool) -> Array:
    """Returns the tokens of each response, [responses], or of each turn, [responses, turns]."""
    shape = batch.rewards.shape
    segments = batch.response_ids
    if by_turn:
        shape = batch.turn_rewards.shape
        segments = segments * shape[1] + batch.turns
    # Tokens without the mask are of response 0 by their ids, where they count 0.
    tokens = batch.mask.reshape(-1).astype(jnp.int32)
    return jax.ops.segment_sum(tokens, segments.reshape(-1), math.prod(shape)).reshape(shape)


def _over_micro_batches(
    micro_loss: Callable, params: Any, batch: PackedBatch
) -> tuple[Array, Any, Metrics, Array]:
    """Adds up the gradients of the micro-batches.

    Returns:
        The loss, the gradient, the metrics, and log-probs [micro-batches, rows, row tokens].
    """

    # Inlined: the same program, traced once for its shapes and for the loop.
    @functools.partial(jax.jit, inline=True)
    def gradient(params, micro: PackedBatch):
        value, grads = jax.value_and_grad(micro_loss, has_aux=True)(params, micro)
        # Cut like the parameters, so that no device adds up whole gradients.
        return value, meshes.constrain_parameters(grads)

    if batch.tokens.shape[0] == 1:
        (loss, (metrics, logprobs)), grads = gradient(params, _micro_batch(batch, 0))
        return loss, grads, metrics, logprobs[None]

    # One loop from zero, so that the gradient is compiled once.
    def body(carry, i):
        def add(operand):
            (loss, (metrics, logprobs)), grads = gradient(params, _micro_batch(batch, i))
            losses, total, sums = operand[0]
            added = losses + loss, _merge_metrics(total, metrics)
            return (*added, jax.tree.map(jnp.add, sums, grads)), logprobs

        return _if_filled(batch, i, add, (carry, jnp.zeros(batch.mask.shape[1:], jnp.float32)))

    # The carry of a scan needs its structure and shapes first; nothing is computed for them.
    (loss, (metrics, _)), grads = jax.eval_shape(gradient, params, _micro_batch(batch, 0))
    # The neutral elements of `_merge_metrics`.
    nothing = {
        name: jnp.full(x.shape, -jnp.inf if name.endswith("_max") else 0.0, x.dtype)
        for name, x in metrics.items()
    }
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), (loss, grads))
    start = (zeros[0], nothing, meshes.constrain_parameters(zeros[1]))
    (loss, metrics, grads), logprobs = jax.lax.scan(body, start, jnp.arange(batch.tokens.shape[0]))
    return loss, grads, metrics, logprobs


def _data_metrics(batch: PackedBatch) -> Metrics:
    live = batch.group_ids >= 0
    count = live.sum()  # 0 without any verdict: the means over completions are NaN then
    # Tokens of the micro-batches that are not skipped.
    computed = batch.mask.any(axis=(1, 2)).sum() * batch.mask[0].size
    return {
        "packing_efficiency": (batch.segment_ids > 0).sum() / jnp.maximum(computed, 1),
        "reward": jnp.where(live, batch.rewards, 0.0).sum() / count,
        "response_length": batch.mask.sum() / count,
        "response_tokens": batch.mask.sum(),
        "zero_variance_groups": objectives.zero_variance_groups(batch.rewards, batch.group_ids),
    }


# `jax.jit` finds its programs by the function's identity: equal arguments must give one function.
@functools.lru_cache(maxsize=4)
def make_train_step(
    graph: Any,
    settings: OptimizerConfig,
    mesh: Mesh | None = None,
    router_balance: float = 0.0,
) -> Callable[..., tuple[TrainState, Metrics]]:
    """Returns the compiled step; the same function for the same arguments.

    Objectives that differ only in hyperparameters share one compilation.

    Args:
        graph: the static half of the model.
        settings: of the optimizer that updates the parameters.
        mesh: of the new state, which is laid out over it as the first one was. Otherwise the
            partitioner would choose another layout after the first step, compile the step again,
            and round otherwise than a resumed run.
        router_balance: as for `loss_and_gradient`.

    Returns:
        A function `(state, batch, objective, temperature, key, reference=None, frozen=None) ->
        (state, metrics)`, which donates the state.
    """

    optimizer = make_optimizer(settings)
    schedule = settings.schedule()

    def train_step(
        state: TrainState,
        batch: PackedBatch,
        objective: Any,
        temperature: Array,
        key: Array,
        reference: Any = None,
        frozen: Any = None,
    ) -> tuple[TrainState, Metrics]:
        # By the step alone, so that a resumed run draws the same.
        key = jax.random.fold_in(key, state.step)
        with meshes.use(mesh):
            loss, grads, metrics = loss_and_gradient(
                graph,
                state.params,
                batch,
                objective,
                temperature,
                key,
                reference,
                frozen,
                router_balance,
            )
        # Absent without stored log-probs: updates are then whole ones.
        share = metrics.get("effective_sample_size_responses", 1.0)
        updates, opt_state = optax.with_extra_args_support(optimizer).update(
            grads, state.opt_state, state.params, effective_sample_size=share
        )
        metrics |= _data_metrics(batch)
        # The norm before the clip, which is a part of the optimizer.
        metrics |= {"loss": loss, "grad_norm": optax.global_norm(grads)}
        metrics |= {"learning_rate": jnp.asarray(schedule(state.step))}
        state = TrainState(optax.apply_updates(state.params, updates), opt_state, state.step + 1)
        if mesh is not None:
            state = jax.lax.with_sharding_constraint(state, meshes.tree_shardings(state, mesh))
        return state, metrics

    # Donated, so that the new state takes the memory of the old one.
    return jax.jit(train_step, donate_argnums=0)
