"""The state of a training run: parameters, optimizer state, step."""

import dataclasses
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
from grre_jax.parallel import mesh as meshes, processes


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


def create(
    model: Transformer, optimizer: optax.GradientTransformation, mesh: Mesh, *, donate: bool = False
) -> tuple[Any, TrainState]:
    """Splits a model into its static graph and a state of its trained parameters over a mesh.

    The other parameters are `frozen(model, mesh)`.

    Args:
        model: to train.
        optimizer: whose state is made.
        mesh: over which the state is laid out.
        donate: take the model's own arrays if they are on the mesh (see `place`), so that they
            exist once. The first step deletes them: afterwards only the model's configuration and
            its frozen parameters can be used.

    Returns:
        The graph and the state.
    """
    graph, params, _ = split(model)
    if donate:
        return graph, fresh(meshes.laid_out(params, mesh), optimizer, mesh)
    # A copy even where the layout does not change: the step donates the state, and must not take
    # the caller's model with it.
    return graph, fresh(copied(params, mesh), optimizer, mesh)


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


def fresh(params: Any, optimizer: optax.GradientTransformation, mesh: Mesh) -> TrainState:
    """Returns a state at step 0 with existing parameters and a new optimizer state.

    Args:
        params: the trained parameters.
        optimizer: whose state is laid out.
        mesh: over which the state is laid out.
    """
    shapes = jax.eval_shape(optimizer.init, params)
    opt_state = jax.jit(optimizer.init, out_shardings=meshes.tree_shardings(shapes, mesh))(params)
    # By `put`: jax 0.10 cannot list the pieces of an array that `device_put` spreads over processes
    # of one device each, so it could not be saved.
    return TrainState(params, opt_state, processes.put(np.int32(0), meshes.replicated(mesh)))
