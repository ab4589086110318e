"""A model's weights as the decoding programs read them, prepared once per policy.

How they get here from the learner: `training.actors.weight_sync`.
"""

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from grre_jax.models.transformer import Block, Transformer, unstacked
from grre_jax.parallel import mesh as meshes

CACHE_DTYPES = ("float32", "bfloat16")


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Weights:
    """A model's parameters in the form that decoding reads.

    Attributes:
        graph, block: static halves of the model and of a layer.
        params: the model's parameters, of which decoding reads the embedding and the last norm.
        layers: parameters of each layer, whole along fsdp; matrices but the router's in the compute
            dtype.
        head: [width, vocab] head likewise. This order is contiguous for a product with few rows,
            which is up to a quarter faster on a CPU.
    """

    graph: Any = dataclasses.field(metadata={"static": True})
    block: Any = dataclasses.field(metadata={"static": True})
    params: Any
    layers: list[Any]
    head: Float[Array, "width vocab"]

    @property
    def dtype(self) -> Any:
        """Dtype of the activations."""
        return _activations(self.model)

    def cache_dtype(self, given: str | None) -> str:
        """Returns the dtype of keys and values by name: the given one, or the activations' if None.

        Raises:
            ValueError: it is neither of the two that caches have.
        """
        if given not in (None, *CACHE_DTYPES):
            domain = " or ".join(CACHE_DTYPES)
            raise ValueError(f"cache_dtype: expected {domain}, got {given!r}")
        return given or str(self.dtype)

    @property
    def model(self) -> Transformer:
        """The whole model."""
        return nnx.merge(self.graph, self.params)

    @property
    def blocks(self) -> list[Block]:
        """The layers."""
        return [nnx.merge(self.block, layer) for layer in self.layers]


def prepared(model: Transformer) -> Weights:
    """Splits and casts a model's layers once, so that no decode step does.

    Args:
        model: the policy.
    """
    graph, params = nnx.split(model)
    joined = meshes.current() is None and meshes.platform() == "cpu"
    layers, head = _taken_apart(graph, params, joined)
    # By shapes alone, as only the static half of the result is used.
    block = nnx.eval_shape(lambda params: _blocks(nnx.merge(graph, params), joined), params)
    return Weights(graph, nnx.split(block)[0], params, layers, head)


def _blocks(model: Transformer, joined: bool) -> Block:
    if joined:
        model.layers.join_gate_up()
    return model.layers


def _activations(model: Transformer) -> Any:
    return jnp.dtype(model.compute_dtype or model.embed[...].dtype)


@partial(jax.jit, static_argnums=(0, 2))
def _taken_apart(graph: Any, params: Any, joined: bool) -> tuple[list[Any], Array]:
    model = nnx.merge(graph, params)
    dtype = _activations(model)

    def one(path, x):
        # Norms, biases and routers keep their precision, as in training: by a rounded router tokens
        # would take other experts.
        name = path[0].key
        return x if x.ndim == 1 or name == "router_proj" else meshes.gathered(x, name, dtype)

    stacked = nnx.split(_blocks(model, joined))[1]
    layers = unstacked(stacked, model.config.num_layers)
    layers = [jax.tree_util.tree_map_with_path(one, layer) for layer in layers]
    return layers, model.gathered_head(dtype).T
