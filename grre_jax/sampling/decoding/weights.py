"""A model's weights as the decoding programs read them, prepared once per policy.

How they get here from the learner: `training.actors`.
"""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from grre_jax.domains import ConfigError
from grre_jax.models import quantised
from grre_jax.models.transformer import Block, Transformer, unstacked
from grre_jax.parallel import mesh as meshes


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Weights:
    """A model's parameters in the form that decoding reads.

    Attributes:
        graph, block: static halves of the model and of a layer.
        params: the model's parameters, of which decoding reads the embedding and the last norm.
        layers: parameters of each layer, whole along fsdp; matrices in the compute dtype, or
            quantised with their scales.
        head: [width, vocab] head likewise. This order is contiguous for a product with few rows,
            which is up to a quarter faster on a CPU.
        head_scale: [vocab] scales of a quantised head, else None.
    """

    graph: Any = dataclasses.field(metadata={"static": True})
    block: Any = dataclasses.field(metadata={"static": True})
    params: Any
    layers: list[Any]
    head: Float[Array, "width vocab"]
    head_scale: Float[Array, " vocab"] | None = None

    @property
    def dtype(self) -> Any:
        """Dtype of the activations."""
        return _activations(self.model)

    @property
    def bytes_by_dtype(self) -> dict[str, int]:
        """Bytes of what a decode step reads, by the name of the dtype: the layers and the head."""
        total: dict[str, int] = {}
        for x in jax.tree.leaves((self.layers, self.head, self.head_scale)):
            total[str(x.dtype)] = total.get(str(x.dtype), 0) + x.nbytes
        return total

    def before_loop(self) -> Weights:
        """Returns the weights as a loop of decode steps takes them: as they are stored, but on a
        CPU, where a product would convert all of its matrix in every step, converted once.
        """
        if self.head_scale is None or meshes.platform() != "cpu":
            return self
        dtype = self.dtype
        layers, head = jax.tree.map(
            lambda x: x.astype(dtype) if x.dtype.itemsize == 1 else x, (self.layers, self.head)
        )
        return dataclasses.replace(self, layers=layers, head=head)

    @property
    def model(self) -> Transformer:
        """The whole model."""
        return nnx.merge(self.graph, self.params)

    @property
    def blocks(self) -> list[Block]:
        """The layers."""
        return [nnx.merge(self.block, layer) for layer in self.layers]


def prepared(model: Transformer, weight_dtype: str = "") -> Weights:
    """Splits and casts a model's layers once, so that no decode step does.

    Args:
        model: the policy.
        weight_dtype: "int8" or "fp8" rounds the matrices of the layers and the head, with a scale
            per output; the policy that is sampled is then another one. Norms, biases, low-rank
            terms and the embedding keep their dtype: of these a step reads little, and of the
            embedding only its tokens' rows.

    Raises:
        ValueError: weight_dtype is unknown.
    """
    if weight_dtype not in ("", *quantised.DTYPES):
        raise ConfigError("weight_dtype", "int8, fp8 or empty", weight_dtype)
    graph, params = nnx.split(model)
    joined = meshes.current() is None and meshes.platform() == "cpu"
    form = partial(_formed, joined=joined, weight_dtype=weight_dtype)
    layers, head, head_scale = _taken_apart(graph, params, joined, weight_dtype)
    block = nnx.eval_shape(lambda params: form(nnx.merge(graph, params)).layers, params)
    return Weights(graph, nnx.split(block)[0], params, layers, head, head_scale)


def _formed(model: Transformer, joined: bool, weight_dtype: str) -> Transformer:
    if joined:
        model.layers.join_gate_up()
    if weight_dtype:
        model.layers.quantise(weight_dtype)
    return model


def _activations(model: Transformer) -> Any:
    return jnp.dtype(model.compute_dtype or model.embed[...].dtype)


@partial(jax.jit, static_argnums=(0, 2, 3))
def _taken_apart(
    graph: Any, params: Any, joined: bool, weight_dtype: str
) -> tuple[list[Any], Array, Array | None]:
    model = _formed(nnx.merge(graph, params), joined, weight_dtype)
    dtype = _activations(model)

    def one(path, x):
        names = [str(getattr(entry, "key", getattr(entry, "name", ""))) for entry in path]
        name = next((n for n in reversed(names) if n.endswith(_GATHERED)), None)
        # Norms, biases and scales keep their precision, and so do rounded numbers.
        kept = x.ndim == 1 or x.dtype.itemsize == 1
        if kept and name is None:
            return x
        return meshes.gathered(x, name, x.dtype if kept else dtype)

    layers = unstacked(nnx.split(model.layers)[1], model.config.num_layers)
    layers = [jax.tree_util.tree_map_with_path(one, layer) for layer in layers]
    if not weight_dtype:
        return layers, model.gathered_head(dtype).T, None
    head, scale = quantised.quantise(model.head_weight(), weight_dtype, axis=-1)
    head = meshes.gathered(head, "head", head.dtype, layered=False)
    return layers, head.T, meshes.gathered(scale, "head_scale", scale.dtype, layered=False)


_GATHERED = ("_proj", "_lora_a", "_lora_b", "_scale")
