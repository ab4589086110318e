"""From prompts to completions in one compiled call.

A prompt is prefilled once and its keys and values are kept once, for all its completions: a decoding token attends to (the prompt's cache, its own
completion's cache) in one softmax. The loop ends when every row has. The token that ends a completion (EOS) is part of it: kept and scored.

Every draw is addressed by (key, place of the prompt in its stream, attempt, sample, token), so a completion does not depend on the batch it was
computed in, nor on the number of devices.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from grre_jax.models.blocked_attention import Visibility
from grre_jax.models.config import ModelConfig
from grre_jax.models.rotary import Rotary
from grre_jax.models.transformer import Transformer
from grre_jax.sampling.distributions import SamplingDistribution

FINISH_STOP, FINISH_LENGTH = 0, 1  # ended by an EOS token; cut at max_new_tokens


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Samples:
    """K completions for each of B prompts, right-padded to T tokens. Entries at or after a completion's length are zero.

    Attributes:
        tokens: [B, K, T] token ids, the ending EOS included.
        lengths: [B, K] tokens a completion, the ending EOS included.
        finish_reasons: [B, K] FINISH_STOP or FINISH_LENGTH.
        behavior_logprobs: [B, K, T] at the sampling temperature, over the full vocabulary: what importance ratios use.
        sampling_logprobs: [B, K, T] under the distribution actually drawn from (truncated).
        policy_logprobs: [B, K, T] under the plain policy at temperature 1.
    """

    tokens: Int[Array, "prompts samples time"]
    lengths: Int[Array, "prompts samples"]
    finish_reasons: Int[Array, "prompts samples"]
    behavior_logprobs: Float[Array, "prompts samples time"]
    sampling_logprobs: Float[Array, "prompts samples time"]
    policy_logprobs: Float[Array, "prompts samples time"]


def sample(
    model: Transformer,
    prompts: Sequence[Sequence[int]] | Int[Array, "prompts length"],
    *,
    num_samples: int,
    max_new_tokens: int,
    key: Array,
    prompt_lengths: Int[Array, " prompts"] | None = None,
    eos_ids: Sequence[int] | None = None,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    positions: Int[Array, " prompts"] | None = None,
    attempt: int = 0,
) -> Samples:
    """Draws `num_samples` completions of each prompt.

    Args:
        model: the policy.
        prompts: token lists, or a right-padded [prompts, length] array together with `prompt_lengths`. None may be empty.
        num_samples: completions a prompt (K).
        max_new_tokens: limit on a completion, EOS included (T).
        key: a JAX random key.
        prompt_lengths: [prompts], needed with an array; on the device they are taken as they are.
        eos_ids: tokens that end a completion; the model's own if None.
        temperature, top_k, top_p: as in `SamplingDistribution`; traced.
        positions: [prompts] places in the prompt stream, part of the address of each draw; 0, 1, 2, ... if None.
        attempt: part of the address too: another attempt gives fresh draws for the same prompt.

    Raises:
        ValueError: naming the argument, for an empty prompt, a number out of its domain, or a key of the wrong kind.
    """
    if prompt_lengths is None:
        prompts, prompt_lengths = pad_prompts(prompts)
    _check(prompts, prompt_lengths, num_samples, max_new_tokens, key, temperature, top_k, top_p)
    eos = np.asarray(model.config.eos_ids if eos_ids is None else eos_ids, np.int32).reshape(-1)
    positions = np.arange(len(prompt_lengths)) if positions is None else positions
    graph, params = nnx.split(model)
    distribution = SamplingDistribution(jnp.float32(temperature), jnp.int32(top_k), jnp.float32(top_p))
    return _sample(
        graph,
        params,
        jnp.asarray(prompts, jnp.int32),
        jnp.asarray(prompt_lengths, jnp.int32),
        distribution,
        jnp.asarray(eos),
        row_keys(key, jnp.asarray(positions), jnp.int32(attempt), num_samples),
        num_samples=num_samples,
        max_new_tokens=max_new_tokens,
    )


def pad_prompts(prompts: Sequence[Sequence[int]], length: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Right-pads token lists to [prompts, length] (the longest, if None) and returns it with the lengths [prompts]."""
    lengths = np.array([len(p) for p in prompts], np.int32)
    if len(prompts) == 0 or lengths.min() == 0:
        raise ValueError(
            "prompts must be a non-empty list of non-empty token lists: give an empty prompt at least a beginning-of-text token"
        )
    length = int(lengths.max()) if length is None else length
    if lengths.max() > length:
        raise ValueError(
            f"prompt {int(lengths.argmax())} has {lengths.max()} tokens, over the limit of {length}: raise the limit or shorten the prompt"
        )
    padded = np.zeros((len(prompts), length), np.int32)
    for row, prompt in zip(padded, prompts, strict=True):
        row[: len(prompt)] = prompt
    return padded, lengths


def _check(prompts, prompt_lengths, num_samples, max_new_tokens, key, temperature, top_k, top_p):
    if prompts.ndim != 2 or prompts.shape[0] != len(prompt_lengths):
        raise ValueError(f"prompts must be [prompts, length] with one length each, got {prompts.shape} and {len(prompt_lengths)} lengths")
    if not isinstance(prompt_lengths, jax.Array) and not all(0 < length <= prompts.shape[1] for length in prompt_lengths):
        raise ValueError(f"prompt_lengths must lie in 1..{prompts.shape[1]}, the width of prompts, got {list(map(int, prompt_lengths))}")
    if num_samples < 1 or max_new_tokens < 1:
        raise ValueError(f"num_samples and max_new_tokens must be at least 1, got {num_samples} and {max_new_tokens}")
    if not (isinstance(key, jax.Array) and jnp.issubdtype(key.dtype, jax.dtypes.prng_key) and key.ndim == 0):
        raise ValueError(f"key must be one typed random key, such as jax.random.key(0), got {key!r}")
    if not temperature >= 0 or top_k < 0 or not 0 < top_p <= 1:
        raise ValueError(f"temperature and top_k must be >= 0 and top_p in (0, 1], got {temperature=}, {top_k=} and {top_p=}")


@partial(jax.jit, static_argnames="num_samples")
def row_keys(key: Array, positions: Int[Array, " prompts"], attempt: Int[Array, ""], num_samples: int) -> Array:
    """One random key a completion, [prompts, samples], addressed by (position, attempt, sample)."""

    def one(position, index):
        return jax.random.fold_in(jax.random.fold_in(jax.random.fold_in(key, position), attempt), index)

    return jax.vmap(lambda p: jax.vmap(lambda i: one(p, i))(jnp.arange(num_samples)))(positions)


def _prefill(model: Transformer, prompts: Array, lengths: Array) -> tuple[Float[Array, "prompts width"], list[tuple[Array, Array]]]:
    """Hidden state of each prompt's last token, and every layer's keys and values [prompts, length, kv heads, head_dim]."""
    c = model.config
    positions = jnp.broadcast_to(jnp.arange(prompts.shape[1], dtype=jnp.int32), prompts.shape)
    visibility = Visibility.of(jnp.where(positions < lengths[:, None], 1, 0), positions)
    rotary, x, caches = Rotary.of(c, positions), model.embed_tokens(prompts), []
    for i, block in enumerate(model.blocks()):
        slides = c.slides(i)
        q, k, v = block.qkv(x, *rotary.tables(slides))
        caches.append((k, v))
        x = block.finish(x, block.attend(q, k, v, visibility, slides))
    last = jnp.take_along_axis(x, (lengths - 1)[:, None, None], axis=1)
    return model.final(last)[:, 0], caches


def _attend_shared(
    q: Float[Array, "prompts samples kv group dim"],
    prefix: tuple[Float[Array, "prompts length kv dim"], Float[Array, "prompts length kv dim"]],
    prefix_mask: Bool[Array, "prompts length"],
    own: tuple[Float[Array, "prompts samples time kv dim"], Float[Array, "prompts samples time kv dim"]],
    own_mask: Bool[Array, " time"],
    config: ModelConfig,
) -> Float[Array, "prompts samples kv group dim"]:
    """One query a completion against the prompt's shared cache and the completion's own, in one softmax."""
    f32 = {"preferred_element_type": jnp.float32}
    shared = jnp.einsum("bkngd,bpnd->bkngp", q, prefix[0], **f32)
    single = jnp.einsum("bkngd,bktnd->bkngt", q, own[0], **f32)
    scores = jnp.concatenate([shared, single], axis=-1) * config.attention_scale
    if config.attention_softcap:
        scores = config.attention_softcap * jnp.tanh(scores / config.attention_softcap)
    length = prefix[0].shape[1]
    seen = jnp.concatenate([prefix_mask, jnp.broadcast_to(own_mask, (len(prefix_mask), own_mask.size))], axis=-1)
    weights = jax.nn.softmax(jnp.where(seen[:, None, None, None, :], scores, -jnp.inf), axis=-1).astype(q.dtype)
    return jnp.einsum("bkngp,bpnd->bkngd", weights[..., :length], prefix[1]) + jnp.einsum(
        "bkngt,bktnd->bkngd", weights[..., length:], own[1]
    )


@partial(jax.jit, static_argnums=0, static_argnames=("num_samples", "max_new_tokens"))
def _sample(graph, params, prompts, lengths, distribution, eos, keys, *, num_samples, max_new_tokens) -> Samples:
    model: Transformer = nnx.merge(graph, params)
    blocks, config = model.blocks(), model.config
    batch, rows = prompts.shape[0], prompts.shape[0] * num_samples
    hidden, prefixes = _prefill(model, prompts, lengths)
    head = model.gathered_head(hidden.dtype)  # before the loop, which would gather it for every token
    prefix_mask = jnp.arange(prompts.shape[1]) < lengths[:, None]
    shape = (batch, num_samples, max_new_tokens)
    caches = [tuple(jnp.zeros((*shape, config.num_kv_heads, config.head_dim), k.dtype) for _ in range(2)) for k, _ in prefixes]

    def draw(logits, done, t):
        uniforms = jax.vmap(lambda key: jax.random.uniform(jax.random.fold_in(key, t), (2,)))(keys.reshape(rows))
        tokens, scores = distribution.sample(uniforms, logits.reshape(rows, -1))
        tokens = jnp.where(done, 0, tokens.reshape(batch, num_samples))
        return tokens, {name: jnp.where(done, 0.0, x.reshape(batch, num_samples)) for name, x in scores.items()}

    def record(out, t, tokens, scores, done):
        out = {
            name: jax.lax.dynamic_update_index_in_dim(out[name], {"tokens": tokens, **scores}[name], t, axis=2)
            if out[name].ndim == 3
            else out[name]
            for name in out
        }
        ended = ~done & (tokens[..., None] == eos).any(-1)
        return out | {"lengths": out["lengths"] + ~done, "stopped": out["stopped"] | ended}

    def decode(tokens, t, caches):
        positions = jnp.broadcast_to((lengths + t)[:, None], (batch, num_samples))
        rotary, x, new_caches = Rotary.of(config, positions), model.embed_tokens(tokens), []
        for i, (block, prefix, own) in enumerate(zip(blocks, prefixes, caches, strict=True)):
            q, k, v = block.qkv(x, *rotary.tables(config.slides(i)))
            own = tuple(jax.lax.dynamic_update_index_in_dim(cache, new, t, axis=2) for cache, new in zip(own, (k, v), strict=True))
            new_caches.append(own)
            time, place = jnp.arange(max_new_tokens), jnp.arange(prompts.shape[1])
            seen, before = time <= t, prefix_mask
            if config.slides(i):
                seen &= t - time < config.sliding_window
                before = before & ((lengths + t)[:, None] - place < config.sliding_window)
            x = block.finish(x, _attend_shared(q, prefix, before, own, seen, config))
        return model.logits(model.final(x), head), new_caches

    def step(carry):
        t, tokens, done, caches, out = carry
        logits, caches = decode(tokens, t - 1, caches)  # the token drawn before sits at index t - 1 of the completion
        tokens, scores = draw(logits, done, t)
        out = record(out, t, tokens, scores, done)
        return t + 1, tokens, done | out["stopped"], caches, out

    out = {name: jnp.zeros(shape, jnp.float32) for name in ("sampling", "behavior", "policy")}
    out |= {"tokens": jnp.zeros(shape, jnp.int32), "lengths": jnp.zeros(shape[:2], jnp.int32), "stopped": jnp.zeros(shape[:2], bool)}
    none_done = jnp.zeros(shape[:2], bool)
    logits = jnp.broadcast_to(model.logits(hidden, head)[:, None], (batch, num_samples, config.vocab_size))
    tokens, scores = draw(logits, none_done, 0)
    out = record(out, 0, tokens, scores, none_done)
    carry = (jnp.int32(1), tokens, out["stopped"], caches, out)
    out = jax.lax.while_loop(lambda c: (c[0] < max_new_tokens) & ~c[2].all(), step, carry)[-1]
    return Samples(
        tokens=out["tokens"],
        lengths=out["lengths"],
        finish_reasons=jnp.where(out["stopped"], FINISH_STOP, FINISH_LENGTH),
        behavior_logprobs=out["behavior"],
        sampling_logprobs=out["sampling"],
        policy_logprobs=out["policy"],
    )
