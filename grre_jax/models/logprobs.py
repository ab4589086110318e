"""Log-probabilities of given tokens without ever holding [tokens, vocab].

The vocabulary is walked in blocks with an online log-sum-exp; the backward pass computes each block of logits again and writes each block of the
head's gradient once. Training, rescoring and evaluation all come through here.
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


def _blocks(head: Float[Array, "v d"], block: int) -> tuple[Float[Array, "k b d"], Float[Array, "r d"]]:
    """The head as equal blocks and the remainder (which may be empty)."""
    full = head.shape[0] // block
    return head[: full * block].reshape(full, block, head.shape[1]), head[full * block :]


def _pick(logits: Float[Array, "n b"], targets: Int[Array, " n"], offset: Int[Array, ""] | int) -> tuple[Array, Array]:
    local = targets - offset
    inside = (local >= 0) & (local < logits.shape[1])
    value = jnp.take_along_axis(logits, jnp.clip(local, 0, logits.shape[1] - 1)[:, None], axis=1)[:, 0]
    return jnp.where(inside, value, 0.0), inside


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
    n = hidden.shape[0]
    blocks, rest = _blocks(head, block)

    def step(carry, weight, offset):
        top, total, weighted, chosen = carry
        logits = _block_logits(hidden, weight, temperature)
        new_top = jnp.maximum(top, logits.max(axis=1))
        scale = jnp.exp(top - new_top)
        e = jnp.exp(logits - new_top[:, None])
        value, _ = _pick(logits, targets, offset)
        return new_top, total * scale + e.sum(axis=1), weighted * scale + (e * logits).sum(axis=1), chosen + value

    carry = (jnp.full(n, -jnp.inf, jnp.float32), *(jnp.zeros(n, jnp.float32) for _ in range(3)))
    offsets = jnp.arange(blocks.shape[0]) * block
    if blocks.shape[0]:
        carry = jax.lax.scan(lambda c, x: (step(c, *x), None), carry, (blocks, offsets))[0]
    if rest.shape[0]:
        carry = step(carry, rest, blocks.shape[0] * block)
    top, total, weighted, chosen = carry
    normaliser = top + jnp.log(total)
    outputs = (chosen - normaliser, normaliser - weighted / total)
    return outputs, (hidden, head, targets, temperature, normaliser)


def _backward(block, residuals, cotangents):
    hidden, head, targets, temperature, normaliser = residuals
    g = cotangents[0]
    blocks, rest = _blocks(head, block)

    def step(weight, offset):
        probability = jnp.exp(_block_logits(hidden, weight, temperature) - normaliser[:, None])
        local = targets - offset
        onehot = local[:, None] == jnp.arange(weight.shape[0])[None, :]
        d_logits = ((onehot - probability) * (g / temperature)[:, None]).astype(hidden.dtype)
        d_hidden = jax.lax.dot_general(d_logits, weight.astype(hidden.dtype), (((1,), (0,)), ((), ())), preferred_element_type=jnp.float32)
        d_weight = jax.lax.dot_general(d_logits, hidden, (((0,), (0,)), ((), ())), preferred_element_type=jnp.float32)
        return d_hidden, d_weight.astype(weight.dtype)

    d_hidden, pieces = jnp.zeros(hidden.shape, jnp.float32), []
    if blocks.shape[0]:
        offsets = jnp.arange(blocks.shape[0]) * block

        def body(total, x):
            d, w = step(*x)
            return total + d, w

        d_hidden, d_blocks = jax.lax.scan(body, d_hidden, (blocks, offsets))
        pieces.append(d_blocks.reshape(-1, head.shape[1]))
    if rest.shape[0]:
        d, w = step(rest, blocks.shape[0] * block)
        d_hidden, pieces = d_hidden + d, [*pieces, w]
    d_head = pieces[0] if len(pieces) == 1 else jnp.concatenate(pieces)
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
