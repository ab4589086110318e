"""One decoder-only transformer for all model families, in Flax NNX.

RMSNorm before each half of a block, after it, or both, rotary positions, grouped-query attention
with optional biases, query/key norms and sliding windows, a SwiGLU or a mixture of experts, and a
head that may be the embedding. Queries, keys and values are one product, laid out by key-value
group: a large product runs nearer the peak, and a cut by groups is a cut of whole heads. The
layers' parameters are stacked along a leading axis, and one block is repeated by `lax.scan`
(compile time does not grow with depth) or by a Python loop (XLA's CPU backend is slow in loop
bodies). A block is split at its attention, into `qkv` and `finish`, so that training, prefill and
decoding share the code and differ in their caches.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float, Integer

from grre_jax.models.array_types import Ids, Keys, Queries, Routes, Stream
from grre_jax.models.attention import attention
from grre_jax.models.blocked_attention import ATTENDED, Visibility, capped
from grre_jax.models.config import ModelConfig
from grre_jax.models.embedding import embed
from grre_jax.models.experts import Router, Routing, mixed, route, summed
from grre_jax.models.lora import Factors, LoraConfig, initial, joined_term, sizes, terms
from grre_jax.models.products import product, swiglu
from grre_jax.models.rotary import Rotary, rotate_groups
from grre_jax.parallel import mesh as meshes

# Models up to this depth are unrolled on CPU; beyond it compile time costs more than the loop.
UNROLL_LAYERS_ON_CPU = 32

# Activations of a block that the backward pass keeps besides its input; None keeps all.
# Routes are kept by all: computed again, they may be rounded to other experts.
REMAT: dict[str, tuple[str, ...] | None] = {
    "none": None,
    "projections": (ATTENDED, "qkv", "gate_up", "mid", "routes"),
    "attention": (ATTENDED, "qkv", "routes"),
    "attended": (ATTENDED, "routes"),
    "full": ("routes",),
}


def rms_norm(
    x: Float[Array, "*batch dim"],
    scale: Float[Array, " dim"],
    eps: float,
    unit_offset: bool = False,
    divisor: float = 1.0,
) -> Float[Array, "*batch dim"]:
    """Computes root-mean-square normalisation (arXiv 1910.07467) in float32.

    Args:
        x: [..., dim].
        scale: [dim] factors.
        eps: added to the mean square.
        unit_offset: multiply by 1 + scale.
        divisor: of the result.

    Returns:
        [..., dim], in the dtype of `x`.
    """
    y = x.astype(jnp.float32)
    y = y * jax.lax.rsqrt(jnp.mean(y * y, axis=-1, keepdims=True) + eps)
    y = y * (scale.astype(jnp.float32) + unit_offset)
    return (y if divisor == 1 else y / divisor).astype(x.dtype)


class Block(nnx.Module):
    """One layer, or several whose parameters are stacked along leading axes.

    `qkv_proj` is [width, kv heads * (g + 2) * head_dim] with g query heads per key-value head: each
    group's queries, then its key, then its value.

    Args:
        config: the shape of the model.
        rngs: source of the initial weights.
        dtype: of the parameters.
        stack: leading axes of the parameters; one layer if empty.
    """

    def __init__(
        self,
        config: ModelConfig,
        *,
        rngs: nnx.Rngs,
        dtype: jnp.dtype = jnp.float32,
        stack: tuple[int, ...] = (),
    ):
        d = config.hidden_size
        hd = config.head_dim
        q = config.num_heads * hd
        kv = config.num_kv_heads * hd
        f = config.intermediate_size

        def matrix(fan_in, fan_out, scale=1.0, lead=()):
            normal = jax.nn.initializers.normal(scale * fan_in**-0.5)
            return normal(rngs.params(), (*stack, *lead, fan_in, fan_out), dtype)

        def vector(fill, size):
            return nnx.Param(jnp.full((*stack, size), fill, dtype))

        self.config = config
        self.lora: LoraConfig | None = None
        # Projections that write to the residual stream start smaller, so that its variance does not
        # grow with depth (GPT-2).
        out_scale = (2 * config.num_layers) ** -0.5
        one = 0 if config.unit_offset_norms else 1  # `rms_norm` adds the offset
        if config.pre_norms:
            self.attn_norm = vector(one, d)
            self.mlp_norm = vector(one, d)
        self.qkv_proj = nnx.Param(join_groups(config, matrix(d, q), matrix(d, kv), matrix(d, kv)))
        self.o_proj = nnx.Param(matrix(q, d, scale=out_scale))
        if config.num_experts:
            self.router_proj = nnx.Param(matrix(d, config.num_experts))
            experts = (config.num_experts,)
            self.expert_gate_proj = nnx.Param(matrix(d, f, lead=experts))
            self.expert_up_proj = nnx.Param(matrix(d, f, lead=experts))
            self.expert_down_proj = nnx.Param(matrix(f, d, scale=out_scale, lead=experts))
        else:
            self.gate_proj = nnx.Param(matrix(d, f))
            self.up_proj = nnx.Param(matrix(d, f))
            self.down_proj = nnx.Param(matrix(f, d, scale=out_scale))
        if config.qkv_bias:
            self.qkv_bias = vector(0, q + 2 * kv)
        if config.attention_out_bias:
            self.o_bias = vector(0, d)
        if config.qk_norm:
            sizes = (q, kv) if config.whole_qk_norm else (hd, hd)
            self.q_norm = vector(one, sizes[0])
            self.k_norm = vector(one, sizes[1])
        if config.post_norms:
            self.post_attn_norm = vector(one, d)
            self.post_mlp_norm = vector(one, d)

    def _weight(self, name: str, dtype: Any) -> Array:
        return meshes.gathered(getattr(self, name)[...], name, dtype)

    def add_lora(self, lora: LoraConfig, parameters: dict[str, Array]) -> None:
        """Adds low-rank terms to projections.

        Args:
            lora: rank, scale and projections.
            parameters: A and B, in the form of `models.lora.initial`.
        """
        self.lora = lora
        for name, value in parameters.items():
            setattr(self, name, nnx.Param(jnp.asarray(value)))

    def join_gate_up(self) -> None:
        """Replaces gate and up by one matrix, which is faster for few tokens (measured on a CPU: 99
        against 185 us for 32 tokens) and slower for many.

        For one device, and not for training: the parameter has another name. Experts stay apart.
        """
        if self.config.num_experts:
            return
        both = [self.gate_proj[...], self.up_proj[...]]
        self.gate_up_proj = nnx.Param(jnp.concatenate(both, axis=-1))
        del self.gate_proj, self.up_proj

    def _factors(self, projections: tuple[str, ...], dtype: Any) -> dict[str, Factors]:
        return {
            p: (self._weight(f"{p}_lora_a", dtype), self._weight(f"{p}_lora_b", dtype))
            for p in projections
            if hasattr(self, f"{p}_lora_a")
        }

    def _product(self, h: Array, name: str) -> Array:
        return product(h, self._weight(name, h.dtype))

    def _project(self, h: Array, *projections: str) -> list[Array]:
        """Applies separate projections ("o"; "gate" and "up"; "down") and their low-rank terms."""
        if projections == ("gate", "up") and hasattr(self, "gate_up_proj"):
            y = self._product(h, "gate_up_proj")
            ys = dict(zip(projections, jnp.split(y, 2, axis=-1), strict=True))
        else:
            ys = {p: self._product(h, f"{p}_proj") for p in projections}
        if self.lora is None:
            return list(ys.values())
        added = terms(self.lora, h, self._factors(projections, h.dtype))
        return [y + added[p] if p in added else y for p, y in ys.items()]

    def _norm(self, x: Array, name: str) -> Array:
        c = self.config
        return rms_norm(x, getattr(self, name)[...], c.rms_norm_eps, c.unit_offset_norms)

    def _residual(self, y: Array, norm: str) -> Array:
        """Returns what a half of the block adds to the stream."""
        c = self.config
        y = self._norm(y, norm) if c.post_norms else y
        return y if c.residual_multiplier == 1 else y * c.residual_multiplier

    def qkv(
        self,
        x: Stream,
        cos: Float[Array, "#rows length half"],
        sin: Float[Array, "#rows length half"],
    ) -> tuple[
        Queries,
        Keys,
        Keys,
    ]:
        """Computes queries by key-value group, keys and values; queries and keys are rotated."""
        c = self.config
        rows, length = x.shape[:2]
        group = c.num_heads // c.num_kv_heads
        # Two dimensions: the fast path of every backend's product.
        h = self._norm(x, "attn_norm") if c.pre_norms else x
        h = h.reshape(rows * length, -1)
        y = self._product(h, "qkv_proj")
        factors = self._factors(("q", "k", "v"), h.dtype)
        if self.lora is not None and factors:
            outputs = {p: sizes(c, p)[1] for p in "qkv"}
            y = y + joined_term(self.lora, h, factors, outputs, partial(join_groups, c))
        if c.qkv_bias:
            y = y + self.qkv_bias[...].astype(y.dtype)
        y = y.reshape(rows, length, c.num_kv_heads, group + 2, c.head_dim)
        y = checkpoint_name(meshes.constrain(y, "heads"), "qkv")
        if c.qk_norm:
            parts = {"q_norm": y[..., :group, :], "k_norm": y[..., group : group + 1, :]}
            # Of one head each, or of all heads in the order of the checkpoint.
            lead = (rows, length, -1) if c.whole_qk_norm else ()
            q, k = (
                self._norm(x.reshape(lead) if lead else x, name).reshape(x.shape)
                for name, x in parts.items()
            )
            y = jnp.concatenate([q, k, y[..., -1:, :]], axis=-2)
        return rotate_groups(y, cos, sin, c.interleaved_rotary)

    def finish(
        self,
        x: Stream,
        attended: Queries,
        routes: Integer[Array, "rows length k"] | None = None,
    ) -> tuple[Stream, Routing | None]:
        """Computes the rest of the block: output projection, SwiGLU (arXiv 2002.05202) or experts,
        sums.

        Args:
            x: the block's input.
            attended: output of the attention.
            routes: experts to use in place of those that the router chooses, or UNKNOWN.

        Returns:
            The block's output, and the routing of its tokens; None without experts.
        """
        c = self.config
        shape = x.shape
        (y,) = self._project(attended.reshape(-1, c.num_heads * c.head_dim), "o")
        if c.attention_out_bias:
            y = y + self.o_bias[...].astype(x.dtype)
        y = self._residual(y, "post_attn_norm")
        x = checkpoint_name(meshes.constrain(x + y.reshape(shape), "stream"), "mid")
        h = self._norm(x, "mlp_norm") if c.pre_norms else x
        h = h.reshape(-1, shape[-1])
        routing = None
        if c.num_experts:
            y, routing = self._experts(h, routes)
        else:
            gate, up = (checkpoint_name(y, "gate_up") for y in self._project(h, "gate", "up"))
            (y,) = self._project(self._gated(gate, up), "down")
        y = self._residual(y, "post_mlp_norm")
        return meshes.constrain(x + y.reshape(shape), "stream"), routing

    def _gated(self, gate: Array, up: Array) -> Array:
        if self.config.activation == "silu":
            return swiglu(gate, up)
        return jax.nn.gelu(gate, approximate=True) * up

    def _experts(self, h: Array, routes: Array | None) -> tuple[Array, Routing]:
        """Computes the mixture of experts."""
        c = self.config
        if routes is not None:
            routes = routes.reshape(-1, c.experts_per_token)
        router = self.router_proj[...]
        routing = route(h, router, c.experts_per_token, c.normalise_experts, routes)
        names = [name for name in vars(self) if name.startswith("expert_")]
        matrices = {name: self._weight(name, h.dtype) for name in names}

        def apply(rows, product_of, parts):
            def project(rows, name):
                y = product_of(rows, parts[f"expert_{name}_proj"])
                a = parts.get(f"expert_{name}_lora_a")
                if self.lora is None or a is None:
                    return y
                inner = product_of(rows, a) * jnp.asarray(self.lora.scale, rows.dtype)
                return y + product_of(inner, parts[f"expert_{name}_lora_b"])

            gate = checkpoint_name(project(rows, "gate"), "gate_up")
            up = checkpoint_name(project(rows, "up"), "gate_up")
            return project(self._gated(gate, up), "down")

        return mixed(h, routing, matrices, apply), routing


def unstacked(params: Any, count: int) -> list[Any]:
    """Returns the `count` slices of every leaf along its leading axis.

    Their gradient is one concatenation; that of indexing is a sum of padded slices.
    """
    pieces = jax.tree.map(lambda p: [x[0] for x in jax.lax.split(p, [1] * count)], params)
    return [jax.tree.map(lambda _, piece, i=i: piece[i], params, pieces) for i in range(count)]


def join_groups(config: ModelConfig, q: Any, k: Any, v: Any) -> Any:
    """Joins query [..., q], key [..., kv] and value [..., kv] features into [..., q + 2 kv], by
    key-value group.
    """
    lead = q.shape[:-1]
    kv = config.num_kv_heads
    hd = config.head_dim
    parts = [x.reshape(*lead, kv, -1, hd) for x in (q, k, v)]
    return jnp.concatenate(parts, axis=-2).reshape(*lead, -1)


def split_groups(config: ModelConfig, qkv: Any) -> tuple[Any, Any, Any]:
    """Splits [..., q + 2 kv] features into those of queries, keys and values."""
    lead = qkv.shape[:-1]
    kv = config.num_kv_heads
    hd = config.head_dim
    grouped = qkv.reshape(*lead, kv, -1, hd)
    parts = (grouped[..., :-2, :], grouped[..., -2, :], grouped[..., -1, :])
    return tuple(x.reshape(*lead, -1) for x in parts)


class Transformer(nnx.Module):
    """A decoder-only transformer.

    Calling it returns the final hidden states; `models.token_logprobs` computes log-probabilities.

    Args:
        config: the shape.
        rngs: source of the initial weights.
        dtype: of the parameters.
        compute_dtype: of the activations; the parameters' dtype if None. Norms, softmax and
            log-probs are float32 in any case.
        remat: activations of a block that the backward pass recomputes: "none", "projections" (all
            but the large products and the attention), "attention" (all but the attention and its
            inputs), "attended" (all but the output of the attention) or "full".
        lora: low-rank terms, whose parameters are then the only ones that are trained; None for
            none. The initial values of the other parameters do not depend on it.

    Attributes:
        num_ids: ids from this one on have no text, and so no probability; None if all ids have.

    Examples:
        The probabilities of the token that follows each row:

        >>> import jax
        >>> import jax.numpy as jnp
        >>> from flax import nnx
        >>> from grre_jax import models
        >>> config = models.ModelConfig(
        ...     vocab_size=16, hidden_size=8, intermediate_size=16,
        ...     num_layers=1, num_heads=2, num_kv_heads=1, head_dim=4, eos_ids=(15,),
        ... )
        >>> @nnx.jit
        ... def following(model, tokens):
        ...     return jax.nn.softmax(model(tokens)[:, -1] @ model.head_weight().T)
        >>> found = following(models.init(config), jnp.array([[3, 4, 7, 15], [3, 4, 8, 15]]))
        >>> found.shape, [round(total, 3) for total in found.sum(axis=1).tolist()]
        ((2, 16), [1.0, 1.0])
    """

    def __init__(
        self,
        config: ModelConfig,
        *,
        rngs: nnx.Rngs,
        dtype: jnp.dtype = jnp.float32,
        compute_dtype: jnp.dtype | None = None,
        remat: str = "none",
        lora: LoraConfig | None = None,
    ):
        self.config = config
        self.remat = remat
        self.compute_dtype = None if compute_dtype is None else jnp.dtype(compute_dtype)
        self.num_ids: int | None = None
        normal = jax.nn.initializers.normal(config.hidden_size**-0.5)
        table = (config.vocab_size, config.hidden_size)
        self.embed = nnx.Param(normal(rngs.params(), table, dtype))
        self.layers = Block(config, rngs=rngs, dtype=dtype, stack=(config.num_layers,))
        one = 0 if config.unit_offset_norms else 1
        self.final_norm = nnx.Param(jnp.full((config.hidden_size,), one, dtype))
        if not config.tie_embeddings:
            self.head = nnx.Param(normal(rngs.params(), table, dtype))
        if lora is not None:
            self.layers.add_lora(lora, initial(config, lora, rngs, dtype))

    @property
    def lora(self) -> LoraConfig | None:
        """Configuration of the low-rank terms; None if the model has none."""
        return self.layers.lora

    def limit_ids(self, count: int) -> None:
        """Excludes ids without text: embeddings often have more rows than the tokenizer has ids.

        Args:
            count: ids of the tokenizer, from 0.
        """
        self.num_ids = count if count < self.config.vocab_size else None

    def head_weight(self) -> Float[Array, "vocab width"]:
        """Returns the output projection, one row per token."""
        return (self.embed if self.config.tie_embeddings else self.head)[...]

    def gathered_head(self, dtype: Any) -> Float[Array, "vocab width"]:
        """Returns the output projection in `dtype`, gathered along fsdp."""
        return meshes.gathered(self.head_weight(), "head", dtype, layered=False)

    def embed_tokens(self, tokens: Ids) -> Stream:
        """Looks up the embeddings of tokens, in the compute dtype."""
        dtype = self.compute_dtype or self.embed[...].dtype
        x = embed(self.embed[...], tokens, dtype)
        if self.config.scale_embeddings:
            x = x * jnp.asarray(self.config.hidden_size**0.5, dtype)
        if self.config.embedding_multiplier != 1:
            x = x * jnp.asarray(self.config.embedding_multiplier, dtype)
        return meshes.constrain(x, "stream")

    def final(self, x: Stream) -> Stream:
        """Applies the last norm, and the divisor of the logits while it is in float32."""
        c = self.config
        return rms_norm(
            x, self.final_norm[...], c.rms_norm_eps, c.unit_offset_norms, c.logit_divisor
        )

    def __call__(
        self,
        tokens: Ids,
        positions: Ids | None = None,
        segment_ids: Ids | None = None,
        prefix_ids: Ids | None = None,
    ) -> Stream:
        """Computes the final hidden state of every token; see `forward`."""
        return self.forward(tokens, positions, segment_ids, prefix_ids)[0]

    def forward(
        self,
        tokens: Ids,
        positions: Ids | None = None,
        segment_ids: Ids | None = None,
        prefix_ids: Ids | None = None,
        routes: Routes | None = None,
    ) -> tuple[Stream, Router | None]:
        """Computes the final hidden state of every token, and what its routers did.

        Args:
            tokens: [rows, length] token ids.
            positions: [rows, length] index of each token in its sequence; 0, 1, 2, ... along the
                row if None.
            segment_ids: [rows, length] sequence of each token; one sequence per row if None.
                Padding is a separate segment.
            prefix_ids: [rows, length] segment that a token's segment continues (see `Visibility`);
                no row shares prefixes if None.
            routes: [rows, length, layers, k] experts of each token, in place of those that the
                routers choose (routing replay), `experts.UNKNOWN` for a token without; the
                routers' if None.

        Returns:
            [rows, length, width], in the compute dtype, and the routing; None without experts. If
            there are segments, tokens of segment 0 are not counted in it.
        """
        if positions is None:
            positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
        padded = segment_ids
        if segment_ids is None:
            segment_ids = jnp.zeros(tokens.shape, jnp.int32)
        visibility = Visibility.of(segment_ids, positions, prefix_ids)
        rotary = Rotary.of(self.config, positions)

        counted = jnp.ones(tokens.shape, bool) if padded is None else padded > 0

        def apply(block: Block, x: Array, slides: Any, rotates: Any, routes: Any) -> Any:
            q, k, v = block.qkv(x, *rotary.tables(slides, rotates))
            attended = attention(q, k, v, visibility, self.config, slides)
            x, routing = block.finish(x, attended, routes)
            return x, None if routing is None else summed(routing, counted, routes)

        by_layer = None if routes is None else jnp.moveaxis(routes, 2, 0)
        x, router = self._repeat(apply, self.embed_tokens(tokens), by_layer)
        return self.final(x), router

    def _repeat(
        self, apply: Callable[..., Any], x: Array, routes: Array | None
    ) -> tuple[Array, Router | None]:
        graph, params = nnx.split(self.layers)
        config = self.config
        kept = REMAT[self.remat]

        def body(x, layer, routes, slides, rotates):
            return apply(nnx.merge(graph, layer), x, slides, rotates, routes)

        def remat(call):
            if kept is None:
                return call
            policy = jax.checkpoint_policies.save_only_these_names(*kept)
            return jax.checkpoint(call, policy=policy)

        if meshes.platform() == "cpu" and config.num_layers <= UNROLL_LAYERS_ON_CPU:
            routers = []
            for i, layer in enumerate(unstacked(params, config.num_layers)):
                slides = config.slides(i)
                rotates = config.rotates(i)
                run = remat(partial(body, slides=slides, rotates=rotates))
                x, router = run(x, layer, None if routes is None else routes[i])
                routers.append(router)
            return x, jax.tree.map(lambda *xs: jnp.stack(xs), *routers)

        def both(flags):
            # None where all layers agree: the flag stays a bool, by which attention can omit a
            # window.
            return jnp.asarray(flags) if any(flags) and not all(flags) else None

        def step(x, inputs):
            layer, slides, rotates, routes = inputs
            slides = config.slides(0) if slides is None else slides
            rotates = config.rotates(0) if rotates is None else rotates
            return body(x, layer, routes, slides, rotates)

        slides = both(config.sliding_layers)
        rotates = both(config.rotated_layers)
        return jax.lax.scan(remat(step), x, (params, slides, rotates, routes))

    def logits(
        self,
        hidden: Float[Array, "*batch width"],
        head: Array | None = None,
    ) -> Float[Array, "*batch vocab"]:
        """Computes logits in float32, for small inputs (training uses `models.logprobs`); -inf for
        ids without text.

        Args:
            hidden: [..., width] final hidden states.
            head: [width, vocab], `gathered_head(dtype).T` computed once for a loop; None computes
                it.
        """
        head = self.gathered_head(hidden.dtype).T if head is None else head
        logits = jnp.einsum("...d,dv->...v", hidden, head, preferred_element_type=jnp.float32)
        logits = capped(logits, self.config.logit_softcap)
        if self.num_ids is None:
            return logits
        return jnp.where(jnp.arange(logits.shape[-1]) < self.num_ids, logits, -jnp.inf)
