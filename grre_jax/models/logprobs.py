"""Log-probabilities of given tokens without ever holding [tokens, vocab].

The vocabulary is walked in blocks with an online log-sum-exp; the backward pass computes each block of logits again and writes each block of the
head's gradient once, in place. Training, rescoring and evaluation all come through here.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from grre_jax.models.transformer import Transformer

VOCAB_BLOCK = 8192


def _block_logits(hidden: Float[Array, "n d"], weight: Float[Array, "b d"], temperature: Float[Array, ""]) -> Float[Array, "n b"]:
    logits = jax.lax.dot_general(hidden, weight.astype(hidden.dtype), (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32)
    return logits / temperature


def _walk(size: int, block: int) -> tuple[Int[Array, " k"], Int[Array, " k"]]:
    """Where each block of rows begins, and how many of its rows an earlier one has seen already: the last block ends with the head."""
    firsts = jnp.arange(-(-size // block), dtype=jnp.int32) * block
    starts = jnp.minimum(firsts, size - block)
    return starts, firsts - starts


def _pick(
    logits: Float[Array, "n b"], targets: Int[Array, " n"], start: Int[Array, ""] | int, seen: Int[Array, ""] | int
) -> Float[Array, " n"]:
    local = targets - start
    inside = (local >= seen) & (local < logits.shape[1])
    value = jnp.take_along_axis(logits, jnp.clip(local, 0, logits.shape[1] - 1)[:, None], axis=1)[:, 0]
    return jnp.where(inside, value, 0.0)


@partial(jax.custom_vjp, nondiff_argnums=(4,))
def head_logprobs(
    hidden: Float[Array, "n d"],
    head: Float[Array, "v d"],
    targets: Int[Array, " n"],
    temperature: Float[Array, ""],
    block: int = VOCAB_BLOCK,
) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
    """Log-probability of each target under softmax(hidden @ head.T / temperature), and the entropy of that distribution, both in float32 nats.

    Args:
        hidden: [n, d] final hidden states, any float dtype.
        head: [v, d] output projection.
        targets: [n] token ids in [0, v).
        temperature: positive scalar, traced.
        block: how many rows of the head are held as logits at once.

    Returns:
        (logprobs [n], entropy [n]). Only the log-probs carry gradient: entropy is a measurement here (its cotangent is ignored).
    """
    return _forward(hidden, head, targets, temperature, block)[0]


def _forward(hidden, head, targets, temperature, block):
    n, block = hidden.shape[0], min(block, head.shape[0])

    def step(carry, at):
        top, total, weighted, chosen = carry
        start, seen = at
        logits = _block_logits(hidden, jax.lax.dynamic_slice_in_dim(head, start, block), temperature)
        fresh = jnp.arange(block) >= seen
        shown = jnp.where(fresh, logits, -jnp.inf)
        new_top = jnp.maximum(top, shown.max(axis=1))
        scale = jnp.exp(top - new_top)
        e = jnp.exp(shown - new_top[:, None])
        value = _pick(logits, targets, start, seen)
        return (new_top, total * scale + e.sum(axis=1), weighted * scale + (e * logits).sum(axis=1), chosen + value), None

    carry = (jnp.full(n, -jnp.inf, jnp.float32), *(jnp.zeros(n, jnp.float32) for _ in range(3)))
    if block == head.shape[0]:
        carry, _ = step(carry, (0, 0))
    else:
        carry, _ = jax.lax.scan(step, carry, _walk(head.shape[0], block))
    top, total, weighted, chosen = carry
    normaliser = top + jnp.log(total)
    outputs = (chosen - normaliser, normaliser - weighted / total)
    return outputs, (hidden, head, targets, temperature, normaliser)


def _backward(block, residuals, cotangents):
    hidden, head, targets, temperature, normaliser = residuals
    g, block = cotangents[0] / temperature, min(block, head.shape[0])

    def step(carry, at):
        d_hidden, d_head = carry
        start, seen = at
        weight = jax.lax.dynamic_slice_in_dim(head, start, block)
        probability = jnp.exp(_block_logits(hidden, weight, temperature) - normaliser[:, None])
        onehot = (targets - start)[:, None] == jnp.arange(block)[None, :]
        d_logits = ((onehot - probability) * g[:, None]).astype(hidden.dtype)
        # The rows that an earlier block has seen are written again as they were; what they add to the hidden states is counted once.
        d_weight = jax.lax.dot_general(d_logits, hidden, (((0,), (0,)), ((), ())), preferred_element_type=jnp.float32)
        weight = jnp.where((jnp.arange(block) >= seen)[:, None], weight, 0).astype(hidden.dtype)
        d_hidden += jax.lax.dot_general(d_logits, weight, (((1,), (0,)), ((), ())), preferred_element_type=jnp.float32)
        return (d_hidden, jax.lax.dynamic_update_slice_in_dim(d_head, d_weight.astype(head.dtype), start, 0)), None

    carry = (jnp.zeros(hidden.shape, jnp.float32), jnp.zeros_like(head))
    if block == head.shape[0]:
        (d_hidden, d_head), _ = step(carry, (0, 0))
    else:
        (d_hidden, d_head), _ = jax.lax.scan(step, carry, _walk(head.shape[0], block))
    return d_hidden.astype(hidden.dtype), d_head, None, jnp.zeros_like(temperature)


head_logprobs.defvjp(_forward, _backward)


def token_logprobs(
    model: Transformer,
    tokens: Int[Array, "rows length"],
    positions: Int[Array, "rows length"] | None = None,
    segment_ids: Int[Array, "rows length"] | None = None,
    prefix_ids: Int[Array, "rows length"] | None = None,
    sources: Int[Array, "rows length"] | None = None,
    temperature: Float[Array, ""] | float = 1.0,
    with_entropy: bool = False,
) -> Float[Array, "rows length"] | tuple[Float[Array, "rows length"], Float[Array, "rows length"]]:
    """log p(token | what comes before it) for every token of every row, in float32 nats.

    Args:
        model: the transformer.
        tokens: [rows, length] token ids.
        positions, segment_ids, prefix_ids: as in `Transformer.__call__`.
        sources: the column whose hidden state predicts each token: the column before it if None, the prompt's last column for the first
            token of a completion that shares its prompt.
        temperature: the logits are divided by it; positive, traced.
        with_entropy: also return the entropy of the distribution each token was drawn from.

    Returns:
        [rows, length]; the first column has no predecessor and is 0 (as is any token that names itself as its source).
    """
    rows, length = tokens.shape
    hidden = model(tokens, positions, segment_ids, prefix_ids)
    columns = jnp.arange(length)
    if sources is None:
        sources = jnp.broadcast_to(jnp.maximum(columns - 1, 0), tokens.shape)
    hidden = jnp.take_along_axis(hidden, sources[:, :, None], axis=1)
    logprobs, entropy = head_logprobs(
        hidden.reshape(rows * length, -1), model.head_weight(), tokens.reshape(-1), jnp.asarray(temperature, jnp.float32)
    )
    scored = sources != columns
    logprobs = jnp.where(scored, logprobs.reshape(rows, length), 0.0)
    return (logprobs, jnp.where(scored, entropy.reshape(rows, length), 0.0)) if with_entropy else logprobs
