"""What the sampler's programs work on: a model's weights taken apart, the state between two programs, and what they tell."""

from __future__ import annotations

import dataclasses
import weakref
from functools import partial
from typing import Any

import jax
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from grre_jax.models.transformer import Block, Transformer, unstacked
from grre_jax.parallel import mesh as meshes
from grre_jax.sampling.cache import Cache
from grre_jax.sampling.decode_attention import Places
from grre_jax.sampling.rows import Lanes, Rows

RUNNING, STOPPED, CUT = 0, 1, 2  # what a drawn token did to its completion


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Weights:
    """A model's parameters as decoding takes them.

    Attributes:
        graph, block: static halves of the model and of a layer.
        params: its parameters; of them decoding reads the embedding and the last norm.
        layers: each layer's own, matrices in the compute dtype and whole along fsdp.
        head: [width, vocab] likewise: along contiguous memory, a product with few rows is up to a quarter faster on a CPU.
    """

    graph: Any = dataclasses.field(metadata={"static": True})
    block: Any = dataclasses.field(metadata={"static": True})
    params: Any
    layers: list[Any]
    head: Float[Array, "width vocab"]

    @property
    def model(self) -> Transformer:
        """The whole model."""
        return nnx.merge(self.graph, self.params)

    @property
    def blocks(self) -> list[Block]:
        """The layers."""
        return [nnx.merge(self.block, layer) for layer in self.layers]


def prepared(model: Transformer) -> Weights:
    """The layers taken apart and cast once, so that no step does it again."""
    graph, params = nnx.split(model)
    joined = meshes.current() is None and meshes.platform() == "cpu"
    layers, head = _taken_apart(graph, params, joined)
    block = nnx.eval_shape(lambda params: _joined(nnx.merge(graph, params), joined).layers, params)
    return Weights(graph, nnx.split(block)[0], params, layers, head)


def _joined(model: Transformer, joined: bool) -> Transformer:
    if joined:
        model.layers.join_gate_up()
    return model


class Latest:
    """The weights that were prepared last, for as long as the model's own arrays live: calls with the same model share them."""

    def __init__(self) -> None:
        self._leaves: list[weakref.ref] = []
        self._graph: Any = None
        self._mesh: Any = None
        self._found: tuple[Any, list[Any], Array] | None = None

    def of(self, model: Transformer) -> Weights:
        """`prepared(model)`."""
        graph, params = nnx.split(model)
        leaves, mesh = jax.tree.leaves(params), meshes.current()
        known = self._found is not None and len(leaves) == len(self._leaves) and self._mesh == mesh and self._graph == graph
        if known and all(ref() is leaf for ref, leaf in zip(self._leaves, leaves, strict=True)):
            block, layers, head = self._found
            return Weights(graph, block, params, layers, head)
        weights = prepared(model)
        if not any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
            # By weak references: what was made of a model must not outlive it, nor keep it alive.
            self._leaves = [weakref.ref(leaf, lambda _: self._forget()) for leaf in leaves]
            self._graph, self._mesh = graph, mesh
            self._found = weights.block, weights.layers, weights.head
        return weights

    def _forget(self) -> None:
        self._leaves, self._graph, self._found = [], None, None


latest = Latest()


@partial(jax.jit, static_argnums=(0, 2))
def _taken_apart(graph: Any, params: Any, joined: bool) -> tuple[list[Any], Array]:
    model = _joined(nnx.merge(graph, params), joined)
    dtype = model.compute_dtype or model.embed[...].dtype

    def one(path, x):
        names = [str(getattr(entry, "key", getattr(entry, "name", ""))) for entry in path]
        # Norms and biases are added in the precision they are kept in.
        return (
            meshes.gathered(x, next(n for n in reversed(names) if n.endswith(("_proj", "_lora_a", "_lora_b"))), dtype) if x.ndim > 1 else x
        )

    layers = unstacked(nnx.split(model.layers)[1], model.config.num_layers)
    return [jax.tree_util.tree_map_with_path(one, layer) for layer in layers], model.gathered_head(dtype).T


@dataclasses.dataclass(frozen=True)
class Shape:
    """What the programs are compiled for.

    Args:
        shards: parts that rows and lanes are cut into, one a group of devices.
        rows: decoded side by side, a shard.
        lanes: prompts held, a shard.
        samples: most completions of a prompt.
        steps: most of one call of `advance`.
        resident: every completion has a row from the start, so that nothing is refilled.
        prompt_tokens: room for a prompt.
        cache_dtype: of keys and values: a dtype's name.
    """

    shards: int
    rows: int
    lanes: int
    samples: int
    steps: int
    resident: bool
    prompt_tokens: int
    cache_dtype: str

    @property
    def single(self) -> bool:
        """Whether every row has a prompt of its own, which then lies before the row's ring in one cache: one product in place of two."""
        return self.resident and self.samples == 1

    @property
    def prefilled(self) -> int:
        """Prompts of a shard that are prefilled at once: as many as come free together; all of them where none will come free for others."""
        return self.lanes if self.resident else max(1, self.lanes // 4)

    @property
    def before(self) -> int:
        """Tokens before the rings."""
        return self.prompt_tokens if self.single else 0


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class State:
    """Everything between two programs.

    Attributes:
        step: decoded so far; the newest column of the rings is step mod their length.
        rows, lanes: who decodes what.
        places: rows by lane and back; both None where all are resident.
        hidden: [shards x lanes, width] of each prompt's last token, from which a completion's first token is drawn.
        prefix: each layer's cache of the lanes' prompts; none where they lie in the rows' own.
        own: each layer's cache of the rows' own tokens.
    """

    step: Int[Array, ""]
    rows: Rows
    lanes: Lanes
    places: Places
    hidden: Float[Array, "lanes width"]
    prefix: list[Cache]
    own: list[Cache]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Trace:
    """What some steps drew.

    Attributes:
        numbers: [steps, 5, shards, rows]: the token, the prompt's number (NONE: nothing was drawn), the sample, the token's place in its completion, and RUNNING, STOPPED or CUT.
        scores: [steps, 3, shards, rows]: log-probs "sampling", "behavior" and "policy".
    """

    numbers: Int[Array, "steps five shards rows"]
    scores: Float[Array, "steps three shards rows"]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Report:
    """What the host must know after some steps, the same on every device.

    Attributes:
        steps: how many were made.
        busy: rows that decode or completions that wait.
        free: [shards, lanes] lanes that take another prompt.
        age: tokens of the longest completion that goes on.
    """

    steps: Int[Array, ""]
    busy: Int[Array, ""]
    free: Bool[Array, "shards lanes"]
    age: Int[Array, ""]


SCORES = ("sampling", "behavior", "policy")
