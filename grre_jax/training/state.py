"""What a training run changes: parameters, optimiser state, step."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import Mesh
from jaxtyping import Array, Int

from grre_jax.models.lora import is_lora
from grre_jax.models.transformer import Transformer
from grre_jax.parallel import mesh as meshes
from grre_jax.parallel import processes


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TrainState:
    """A pytree of arrays: all of it is checkpointed, donated to the step and returned by it.

    Attributes:
        params: nested dict of the parameters that are trained, as `nnx.to_pure_dict` gives it: all of them, or those of the low-rank terms (see `frozen`).
        opt_state: the optimiser's.
        step: updates done; also the policy version of `params`.
    """

    params: Any
    opt_state: Any
    step: Int[Array, ""]


# Optax's, by the name it goes by there; each takes (schedule, b1, b2, eps, weight decay, its mask).
OPTIMIZERS: dict[str, Callable[..., optax.GradientTransformation]] = {
    "adamw": lambda rate, b1, b2, eps, decay, mask: optax.adamw(rate, b1, b2, eps, weight_decay=decay, mask=mask),
    "nadamw": lambda rate, b1, b2, eps, decay, mask: optax.nadamw(rate, b1, b2, eps, weight_decay=decay, mask=mask),
    "lion": lambda rate, b1, b2, _, decay, mask: optax.lion(rate, b1, b2, weight_decay=decay, mask=mask),
    "sgd": lambda rate, b1, _, __, decay, mask: optax.chain(optax.add_decayed_weights(decay, mask), optax.sgd(rate, momentum=b1 or None)),
    "adafactor": lambda rate, _, b2, __, decay, mask: optax.adafactor(
        rate,
        multiply_by_parameter_scale=False,
        clipping_threshold=None,
        decay_rate=b2,
        weight_decay_rate=decay or None,
        weight_decay_mask=mask,
    ),
}
DECAYS: dict[str, Callable[[Array], Array]] = {
    "none": lambda fraction: jnp.ones_like(fraction),
    "linear": lambda fraction: 1 - fraction,
    "cosine": lambda fraction: 0.5 * (1 + jnp.cos(jnp.pi * fraction)),
}


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
    """An Optax optimizer with a clipped gradient norm, linear warm-up and an optional decay of the learning rate.

    Args:
        name ("adamw", "nadamw", "lion", "sgd" or "adafactor"): the optimizer of Optax. "sgd" has
            momentum b1; "adafactor" keeps factored second moments, which are small, with decay rate
            b2.
        learning_rate (at least 0): learning rate at the end of the warm-up.
        warmup_steps (at least 0): steps over which the learning rate rises from 0; the first step
            already moves.
        decay ("none", "linear" or "cosine"): how the learning rate falls after the warm-up.
        decay_steps (at least 0): the step at which the decay ends, counted from the start of
            training; with a decay it must be above warmup_steps.
        final_fraction (at least 0): learning rate after the decay, as a fraction of learning_rate.
        clip_norm (at least 0): largest global gradient norm; 0 turns the clip off.
        b1 (at least 0 and below 1): decay rate of the first moment; momentum of "sgd"; "adafactor"
            has none.
        b2 (at least 0 and below 1): decay rate of the second moment; "sgd" has none.
        eps (at least 0): term added to the denominator of the update of "adamw" and "nadamw"; the
            others have none.
        weight_decay (at least 0): decoupled weight decay, on matrices only.

    Raises:
        ValueError: at construction, naming the field and its domain.
    """

    name: str = "adamw"
    learning_rate: float = 1e-6
    warmup_steps: int = 0
    decay: str = "none"
    decay_steps: int = 0
    final_fraction: float = 0.0
    clip_norm: float = 1.0
    b1: float = 0.9
    b2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.0

    def __post_init__(self):
        least = ("learning_rate", "warmup_steps", "decay_steps", "final_fraction", "clip_norm")
        for field in (*least, "b1", "b2", "eps", "weight_decay"):
            if not getattr(self, field) >= 0:
                raise ValueError(f"{field} must be at least 0, got {getattr(self, field)}")
        for field in ("b1", "b2"):
            if not getattr(self, field) < 1:
                raise ValueError(f"{field} must be below 1, got {getattr(self, field)}")
        for field, known in (("name", OPTIMIZERS), ("decay", DECAYS)):
            if getattr(self, field) not in known:
                raise ValueError(f"{field} must be one of {', '.join(known)}, got {getattr(self, field)!r}")
        if self.decay != "none" and self.decay_steps <= self.warmup_steps:
            raise ValueError(
                f"decay_steps must be above warmup_steps={self.warmup_steps} for decay={self.decay}, got {self.decay_steps}: set it to the run's steps"
            )

    def schedule(self) -> optax.Schedule:
        """Learning rate by update count; the same object for the same config."""
        return _schedule(self)


@functools.lru_cache(maxsize=16)
def _schedule(config: OptimizerConfig) -> optax.Schedule:
    if config.warmup_steps == 0 and config.decay == "none":
        return optax.constant_schedule(config.learning_rate)

    def rate(count):
        rise = jnp.minimum((count + 1) / max(config.warmup_steps, 1), 1.0)
        fraction = jnp.clip((count - config.warmup_steps) / max(config.decay_steps - config.warmup_steps, 1), 0.0, 1.0)
        left = config.final_fraction + (1 - config.final_fraction) * DECAYS[config.decay](fraction)
        return config.learning_rate * rise * (left if config.decay != "none" else 1.0)

    return rate


@functools.lru_cache(maxsize=16)
def make_optimizer(config: OptimizerConfig) -> optax.GradientTransformation:
    """The Optax chain of the config; the same object for the same config, as `step.make_train_step` wants it."""

    def matrices(params):
        # Stacked layers have an axis more: a norm's scale is [layers, width] there. Only what ends in a projection or an embedding decays.
        decaying = ("_proj", "embed", "head", "_lora_a", "_lora_b")
        return jax.tree_util.tree_map_with_path(lambda path, _: str(path[-1].key).endswith(decaying), params)

    clip = [optax.clip_by_global_norm(config.clip_norm)] if config.clip_norm else []
    made = OPTIMIZERS[config.name](config.schedule(), config.b1, config.b2, config.eps, config.weight_decay, matrices)
    return optax.chain(*clip, made)


def create(model: Transformer, optimizer: optax.GradientTransformation, mesh: Mesh, *, donate: bool = False) -> tuple[Any, TrainState]:
    """Splits a model into its static graph and a state of what is trained, laid out over the mesh. The rest of the parameters is `frozen(model, mesh)`.

    Args:
        model: to train.
        optimizer: the optimiser.
        mesh: where the state goes.
        donate: take the model's own arrays where they lie on the mesh (see `place`), so that they are there once. The first step deletes them: of the model
            only its configuration and its frozen parameters can be used from then on.
    """
    graph, params, _ = split(model)
    if donate:
        return graph, fresh(laid_out(params, mesh), optimizer, mesh)
    # A copy even where the layout does not change: the step donates the state, and must not take the caller's model with it.
    params = jax.jit(lambda p: jax.tree.map(jnp.copy, p), out_shardings=meshes.tree_shardings(params, mesh))(params)
    return graph, fresh(params, optimizer, mesh)


def laid_out(tree: Any, mesh: Mesh) -> Any:
    """A tree of parameters over the mesh. What lies there already is not copied."""
    leaves, structure = jax.tree.flatten(tree)
    shardings = jax.tree.leaves(meshes.tree_shardings(tree, mesh))
    away = [i for i, (x, sharding) in enumerate(zip(leaves, shardings, strict=True)) if x.sharding != sharding]
    moved = jax.jit(lambda *xs: xs, out_shardings=tuple(shardings[i] for i in away))(*(leaves[i] for i in away)) if away else ()
    for i, x in zip(away, moved, strict=True):
        leaves[i] = x
    return jax.tree.unflatten(structure, leaves)


def place(model: Transformer, mesh: Mesh) -> None:
    """Lays a model's parameters out over the mesh, in the model itself: nothing of another layout is left."""
    nnx.update(model, laid_out(nnx.state(model), mesh))


def release(tree: Any) -> Any:
    """Frees the arrays of a tree, whoever else names them, and returns their shapes, dtypes and layouts."""

    def one(x: Array) -> jax.ShapeDtypeStruct:
        shape = jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding)
        x.delete()
        return shape

    return jax.tree.map(one, tree)


def split(model: Transformer) -> tuple[Any, Any, Any]:
    """(static graph, parameters that are trained, parameters that are not): a model with low-rank terms trains those alone, another one everything."""
    graph, params = nnx.split(model)
    params = nnx.to_pure_dict(params)
    if model.lora is None:
        return graph, params, {}
    layers = params["layers"]
    trained = {name: value for name, value in layers.items() if is_lora(name)}
    base = {name: value for name, value in layers.items() if not is_lora(name)}
    return graph, {"layers": trained}, params | {"layers": base}


def frozen(model: Transformer, mesh: Mesh) -> Any:
    """The parameters that are not trained, laid out over the mesh; {} if all are. What lies there already is not copied."""
    _, _, params = split(model)
    shardings = meshes.tree_shardings(params, mesh)
    if all(jax.tree.leaves(jax.tree.map(lambda x, s: x.sharding.is_equivalent_to(s, x.ndim), params, shardings))):
        return params
    return jax.jit(lambda tree: tree, out_shardings=shardings)(params)


def full(params: Any, frozen: Any) -> Any:
    """All parameters of a model from those that are trained and those that are not; no array is copied."""
    if not frozen:
        return params
    return params | frozen | {"layers": params["layers"] | frozen["layers"]}


def fresh(params: Any, optimizer: optax.GradientTransformation, mesh: Mesh) -> TrainState:
    """A state at step 0 with a new optimiser around existing parameters."""
    shapes = jax.eval_shape(optimizer.init, params)
    opt_state = jax.jit(optimizer.init, out_shardings=meshes.tree_shardings(shapes, mesh))(params)
    # By `put`: of an array that `device_put` spreads over processes of one device each, jax 0.10 cannot list the pieces, and it could not be saved.
    return TrainState(params, opt_state, processes.put(np.int32(0), meshes.replicated(mesh)))
