"""One decoder-only transformer for the Llama / Qwen family, in Flax NNX.

RMSNorm before each half of a block, rotary positions, grouped-query attention with optional biases and query/key norms, a SwiGLU, and a head that
may be the embedding. The layers' parameters are stacked along a leading axis: one block is written once and repeated either by `lax.scan` (compile
time does not grow with depth) or by a Python loop (XLA's CPU backend runs loop bodies badly). A block is split where its attention is, into `qkv`
and `finish`, so that training, prefill and decoding use the same lines with different caches.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from grre_jax.models.config import ModelConfig

# Up to this depth a model is unrolled on CPU; beyond it the compile time costs more than the loop does.
UNROLL_LAYERS_ON_CPU = 32


def rms_norm(x: Float[Array, "*batch dim"], scale: Float[Array, " dim"], eps: float) -> Float[Array, "*batch dim"]:
    """Root-mean-square normalisation (arXiv 1910.07467), in float32 whatever x is."""
    y = x.astype(jnp.float32)
    y = y * jax.lax.rsqrt(jnp.mean(y * y, axis=-1, keepdims=True) + eps)
    return (y * scale.astype(jnp.float32)).astype(x.dtype)


def rope_tables(
    positions: Int[Array, "*batch"], head_dim: int, theta: float
) -> tuple[Float[Array, "*batch half"], Float[Array, "*batch half"]]:
    """Cosines and sines of the rotary embedding (arXiv 2104.09864) at the given positions."""
    frequency = 1.0 / (theta ** (jnp.arange(0, head_dim, 2, dtype=jnp.float32) / head_dim))
    angle = positions[..., None].astype(jnp.float32) * frequency
    return jnp.cos(angle), jnp.sin(angle)


def rotate(
    x: Float[Array, "*batch heads dim"], cos: Float[Array, "*batch half"], sin: Float[Array, "*batch half"]
) -> Float[Array, "*batch heads dim"]:
    """Applies the rotary embedding, pairing entry i with entry i + dim/2 as Hugging Face checkpoints do."""
    a, b = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    cos, sin = cos[..., None, :], sin[..., None, :]
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1).astype(x.dtype)


def causal_mask(segment_ids: Int[Array, "rows length"], prefix_ids: Int[Array, "rows length"]) -> Bool[Array, "rows length length"]:
    """What may attend to what in packed rows: [row, query, key].

    A token attends to the earlier tokens of its own segment and to those of its prefix segment. A prompt's tokens carry their own segment as prefix;
    its completions carry the prompt's, so that the completions of a group share one copy of the prompt and do not see each other.
    """
    length = segment_ids.shape[1]
    query, key = segment_ids[:, :, None], segment_ids[:, None, :]
    visible = (query == key) | (prefix_ids[:, :, None] == key)
    return visible & (jnp.arange(length)[:, None] >= jnp.arange(length)[None, :])


def attention(
    q: Float[Array, "rows queries heads dim"],
    k: Float[Array, "rows keys kv dim"],
    v: Float[Array, "rows keys kv dim"],
    mask: Bool[Array, "rows queries keys"],
) -> Float[Array, "rows queries heads dim"]:
    """Softmax attention, scaled by 1/sqrt(dim), grouped queries, scores in float32."""
    return jax.nn.dot_product_attention(q, k, v, mask=mask[:, None])


class Block(nnx.Module):
    """One layer; its parameters carry a leading `stack` axis when `stack` is given."""

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs, dtype: jnp.dtype = jnp.float32, stack: tuple[int, ...] = ()):
        d, hd = config.hidden_size, config.head_dim
        q, kv, f = config.num_heads * hd, config.num_kv_heads * hd, config.intermediate_size

        def matrix(fan_in, fan_out, scale=1.0):
            return nnx.Param(jax.nn.initializers.normal(scale * fan_in**-0.5)(rngs.params(), (*stack, fan_in, fan_out), dtype))

        def vector(fill, size):
            return nnx.Param(jnp.full((*stack, size), fill, dtype))

        self.config = config
        # Projections that write to the residual stream start smaller, so that its variance does not grow with depth (GPT-2).
        out_scale = (2 * config.num_layers) ** -0.5
        self.attn_norm, self.mlp_norm = vector(1, d), vector(1, d)
        self.q_proj, self.k_proj, self.v_proj = matrix(d, q), matrix(d, kv), matrix(d, kv)
        self.o_proj = matrix(q, d, scale=out_scale)
        self.gate_proj, self.up_proj, self.down_proj = matrix(d, f), matrix(d, f), matrix(f, d, scale=out_scale)
        if config.qkv_bias:
            self.q_bias, self.k_bias, self.v_bias = vector(0, q), vector(0, kv), vector(0, kv)
        if config.attention_out_bias:
            self.o_bias = vector(0, d)
        if config.qk_norm:
            self.q_norm, self.k_norm = vector(1, hd), vector(1, hd)

    def qkv(
        self, x: Float[Array, "rows length width"], cos: Float[Array, "rows length half"], sin: Float[Array, "rows length half"]
    ) -> tuple[Array, Array, Array]:
        """Queries, keys and values of the tokens: [rows, length, heads or kv heads, head_dim], rotated."""
        c = self.config
        rows, length = x.shape[:2]
        h = rms_norm(x, self.attn_norm[...], c.rms_norm_eps).reshape(
            rows * length, -1
        )  # two dimensions: the fast path of every backend's product
        q, k, v = (h @ p[...].astype(h.dtype) for p in (self.q_proj, self.k_proj, self.v_proj))
        if c.qkv_bias:
            q, k, v = (y + b[...].astype(h.dtype) for y, b in ((q, self.q_bias), (k, self.k_bias), (v, self.v_bias)))
        q = q.reshape(rows, length, c.num_heads, c.head_dim)
        k, v = (y.reshape(rows, length, c.num_kv_heads, c.head_dim) for y in (k, v))
        if c.qk_norm:
            q, k = rms_norm(q, self.q_norm[...], c.rms_norm_eps), rms_norm(k, self.k_norm[...], c.rms_norm_eps)
        return rotate(q, cos, sin), rotate(k, cos, sin), v

    def finish(
        self, x: Float[Array, "rows length width"], attended: Float[Array, "rows length heads dim"]
    ) -> Float[Array, "rows length width"]:
        """The rest of the block: output projection and residual, then the SwiGLU (arXiv 2002.05202) and its residual."""
        shape = x.shape
        x = x.reshape(-1, shape[-1])
        y = attended.reshape(x.shape[0], -1) @ self.o_proj[...].astype(x.dtype)
        x = x + (y + self.o_bias[...].astype(x.dtype) if self.config.attention_out_bias else y)
        h = rms_norm(x, self.mlp_norm[...], self.config.rms_norm_eps)
        gate, up = h @ self.gate_proj[...].astype(x.dtype), h @ self.up_proj[...].astype(x.dtype)
        return (x + (jax.nn.silu(gate) * up) @ self.down_proj[...].astype(x.dtype)).reshape(shape)


class Transformer(nnx.Module):
    """The whole model. Calling it gives the final hidden states; log-probabilities come from `models.token_logprobs`.

    Args:
        config: the shape.
        rngs: where the initial weights come from.
        dtype: of the parameters.
        compute_dtype: of the activations; the parameters' dtype if None. Norms, softmax and log-probs are float32 in any case.
        remat: recompute each block in the backward pass instead of keeping its activations.
        unroll: repeat the block by a Python loop (True), by scan (False), or as fits the backend and the depth (None).
    """

    def __init__(
        self,
        config: ModelConfig,
        *,
        rngs: nnx.Rngs,
        dtype: jnp.dtype = jnp.float32,
        compute_dtype: jnp.dtype | None = None,
        remat: bool = False,
        unroll: bool | None = None,
    ):
        self.config, self.remat, self.unroll = config, remat, unroll
        self.compute_dtype = None if compute_dtype is None else jnp.dtype(compute_dtype)
        normal = jax.nn.initializers.normal(config.hidden_size**-0.5)
        self.embed = nnx.Param(normal(rngs.params(), (config.vocab_size, config.hidden_size), dtype))
        self.layers = Block(config, rngs=rngs, dtype=dtype, stack=(config.num_layers,))
        self.final_norm = nnx.Param(jnp.ones((config.hidden_size,), dtype))
        if not config.tie_embeddings:
            self.head = nnx.Param(normal(rngs.params(), (config.vocab_size, config.hidden_size), dtype))

    def head_weight(self) -> Float[Array, "vocab width"]:
        """The output projection, one row a token."""
        return (self.embed if self.config.tie_embeddings else self.head)[...]

    def embed_tokens(self, tokens: Int[Array, "rows length"]) -> Float[Array, "rows length width"]:
        """The tokens' embeddings in the compute dtype."""
        x = jnp.take(self.embed[...], tokens, axis=0)
        return x if self.compute_dtype is None else x.astype(self.compute_dtype)

    def final(self, x: Float[Array, "rows length width"]) -> Float[Array, "rows length width"]:
        """The last norm."""
        return rms_norm(x, self.final_norm[...], self.config.rms_norm_eps)

    def blocks(self) -> list[Block]:
        """The layers as separate blocks (slices of the stacked parameters), for loops that carry one cache a layer."""
        graph, params = nnx.split(self.layers)
        return [nnx.merge(graph, jax.tree.map(lambda p, i=i: p[i], params)) for i in range(self.config.num_layers)]

    def unrolled(self) -> bool:
        """Whether the layers are repeated by a Python loop on the default backend."""
        if self.unroll is not None:
            return self.unroll
        return jax.default_backend() == "cpu" and self.config.num_layers <= UNROLL_LAYERS_ON_CPU

    def __call__(
        self,
        tokens: Int[Array, "rows length"],
        positions: Int[Array, "rows length"] | None = None,
        segment_ids: Int[Array, "rows length"] | None = None,
        prefix_ids: Int[Array, "rows length"] | None = None,
    ) -> Float[Array, "rows length width"]:
        """Final hidden states of every token.

        Args:
            tokens: [rows, length] token ids.
            positions: place of each token in its own sequence; 0, 1, 2, ... along the row if None.
            segment_ids: which sequence of the row a token belongs to; one sequence a row if None. Padding is a segment of its own.
            prefix_ids: the segment a token's segment continues (see `causal_mask`); its own if None.
        """
        if positions is None:
            positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
        if segment_ids is None:
            segment_ids = jnp.zeros(tokens.shape, jnp.int32)
        mask = causal_mask(segment_ids, segment_ids if prefix_ids is None else prefix_ids)
        cos, sin = rope_tables(positions, self.config.head_dim, self.config.rope_theta)

        def apply(block: Block, x: Array) -> Array:
            return block.finish(x, attention(*block.qkv(x, cos, sin), mask))

        return self.final(self._repeat(apply, self.embed_tokens(tokens)))

    def _repeat(self, apply: Callable[[Block, Array], Array], x: Array) -> Array:
        graph, params = nnx.split(self.layers)

        def body(x, layer):
            return apply(nnx.merge(graph, layer), x)

        if self.remat:
            body = jax.checkpoint(body)
        if not self.unrolled():
            return jax.lax.scan(lambda x, layer: (body(x, layer), None), x, params)[0]
        for i in range(self.config.num_layers):
            x = body(x, jax.tree.map(lambda p, i=i: p[i], params))
        return x

    def logits(self, hidden: Float[Array, "*batch width"]) -> Float[Array, "*batch vocab"]:
        """Unnormalised log-probabilities in float32. For small inputs: training never calls it."""
        return jnp.einsum("...d,vd->...v", hidden, self.head_weight().astype(hidden.dtype), preferred_element_type=jnp.float32)
