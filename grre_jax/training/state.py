"""What a training run changes: parameters, optimiser state, step."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax.sharding import Mesh
from jaxtyping import Array, Int

from grre_jax.models.transformer import Transformer
from grre_jax.parallel import mesh as meshes


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TrainState:
    """A pytree of arrays: all of it is checkpointed, donated to the step and returned by it.

    Attributes:
        params: nested dict of parameters, as `nnx.to_pure_dict` gives it.
        opt_state: the optimiser's.
        step: updates done; also the policy version of `params`.
    """

    params: Any
    opt_state: Any
    step: Int[Array, ""]


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
    """AdamW with linear warm-up, then constant, behind a clip of the global gradient norm.

    Args:
        learning_rate: after the warm-up.
        warmup_steps: steps over which it rises from 0; the first step already moves.
        clip_norm: largest global gradient norm; 0 turns the clip off.
        b1, b2, eps: Adam's.
        weight_decay: decoupled, on matrices only.
    """

    learning_rate: float = 1e-6
    warmup_steps: int = 0
    clip_norm: float = 1.0
    b1: float = 0.9
    b2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.0

    def __post_init__(self):
        for field in ("learning_rate", "warmup_steps", "clip_norm", "weight_decay"):
            if not getattr(self, field) >= 0:
                raise ValueError(f"{field} must be at least 0, got {getattr(self, field)}")

    def schedule(self) -> optax.Schedule:
        """Learning rate by update count."""
        if self.warmup_steps == 0:
            return optax.constant_schedule(self.learning_rate)
        return lambda count: self.learning_rate * jnp.minimum((count + 1) / self.warmup_steps, 1.0)


def make_optimizer(config: OptimizerConfig) -> optax.GradientTransformation:
    """The Optax chain of the config."""

    def matrices(params):
        # Stacked layers have an axis more: a norm's scale is [layers, width] there. Only what ends in a projection or an embedding decays.
        return jax.tree_util.tree_map_with_path(lambda path, _: str(path[-1].key).endswith(("_proj", "embed", "head")), params)

    clip = [optax.clip_by_global_norm(config.clip_norm)] if config.clip_norm else []
    return optax.chain(
        *clip, optax.adamw(config.schedule(), config.b1, config.b2, config.eps, weight_decay=config.weight_decay, mask=matrices)
    )


def create(model: Transformer, optimizer: optax.GradientTransformation, mesh: Mesh) -> tuple[Any, TrainState]:
    """Splits a model into its static graph and a state laid out over the mesh."""
    graph, params = nnx.split(model)
    params = nnx.to_pure_dict(params)
    # A copy even where the layout does not change: the step donates the state, and must not take the caller's model with it.
    params = jax.jit(lambda p: jax.tree.map(jnp.copy, p), out_shardings=meshes.tree_shardings(params, mesh))(params)
    return graph, fresh(params, optimizer, mesh)


def fresh(params: Any, optimizer: optax.GradientTransformation, mesh: Mesh) -> TrainState:
    """A state at step 0 with a new optimiser around existing parameters."""
    shapes = jax.eval_shape(optimizer.init, params)
    opt_state = jax.jit(optimizer.init, out_shardings=meshes.tree_shardings(shapes, mesh))(params)
    return TrainState(params, opt_state, jax.device_put(jnp.int32(0), meshes.replicated(mesh)))
