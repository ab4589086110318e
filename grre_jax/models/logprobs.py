"""Log-probabilities of given tokens, without an array of [tokens, vocab].

The vocabulary is processed in blocks with an online log-sum-exp; the backward pass recomputes each
block of logits and writes each block of the head's gradient once, in place. Of a vocabulary of
several blocks the tokens that are not scored, prompts and padding, are left out, up to an eighth.
Training, rescoring and evaluation use these functions.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Bool, Float, Integer

from grre_jax.models.array_types import Ids, Routes, Stream
from grre_jax.models.blocked_attention import capped
from grre_jax.models.products import left_transposed_product, transposed
from grre_jax.models.transformer import Transformer
from grre_jax.parallel import mesh as meshes

VOCAB_BLOCK = 8192
TOKEN_SIZES = 8  # numbers of tokens that the head is compiled for, evenly spaced up to all
# Logit of an id that cannot be drawn. Finite, as 0 * -inf is NaN; exp(NO_LOGIT - x) is 0 for any
# logit x that a model computes.
NO_LOGIT = -1e30


def _block_logits(hidden: Array, weight: Array, softcap: float) -> Array:
    """Returns the logits [n, b] of some rows of the head."""
    logits = jnp.matmul(
        hidden, transposed(weight.astype(hidden.dtype)), preferred_element_type=jnp.float32
    )
    return capped(logits, softcap)


def _blocks(size: int, block: int) -> tuple[Array, Array]:
    """Returns the first row of each block, and the number of its rows that earlier blocks have too
    (the last block ends with the head).
    """
    firsts = jnp.arange(-(-size // block), dtype=jnp.int32) * block
    starts = jnp.minimum(firsts, size - block)
    return starts, firsts - starts


def _pick(
    logits: Array,
    targets: Array,
    start: Array | int,
    seen: Array | int,
) -> Array:
    """Returns the logits [n] of the targets among the rows from `start + seen` on, else 0."""
    local = targets - start
    inside = (local >= seen) & (local < logits.shape[1])
    index = jnp.clip(local, 0, logits.shape[1] - 1)[:, None]
    return jnp.where(inside, jnp.take_along_axis(logits, index, axis=1)[:, 0], 0.0)


def _local_ids(ids: Any, rows: int, axis: str | None) -> Any:
    """Returns ids counted from this device's first row of the head."""
    return ids if axis is None else ids - rows * jax.lax.axis_index(axis)


def _drawable(
    logits: Array,
    start: Array | int,
    count: Array | int | None,
) -> Array:
    """Returns logits of the rows from `start` on, NO_LOGIT from row `count` on if it is given."""
    if count is None:
        return logits
    return jnp.where(start + jnp.arange(logits.shape[1]) < count, logits, NO_LOGIT)


def _of_scored(function: Any, scored: Array, *arrays: Array) -> Any:
    """Applies a function to the tokens that are scored, rounded up to one of TOKEN_SIZES numbers.

    Args:
        function: of arrays [m, ...] of tokens; returns a tuple of such arrays, and one array of
            another shape.
        scored: [n] True for the tokens that count.
        arrays: [n, ...] of all tokens.

    Returns:
        As `function`, with 0 at the tokens that were left out.
    """
    n = scored.shape[0]
    order = jnp.argsort(~scored, stable=True)
    sizes = sorted({-(-n * eighth // TOKEN_SIZES) for eighth in range(1, TOKEN_SIZES + 1)})

    def of_first(size):
        indices = order[:size]
        per_token, sums = function(*(x[indices] for x in arrays))
        placed = (jnp.zeros((n, *x.shape[1:]), x.dtype).at[indices].set(x) for x in per_token)
        return tuple(placed), sums

    # Devices may take different branches: no function that is passed here exchanges anything.
    which = jnp.searchsorted(jnp.array(sizes), scored.sum())
    return jax.lax.switch(which, [partial(of_first, size) for size in sizes])


def _local_forward(block, softcap, num_ids, axis, hidden, head, targets, temperature, scored):
    """Returns ((log-probs, entropy), normaliser, probabilities or None) of this device's tokens.

    They are over all rows of the head, but the probabilities over this device's rows, and only if
    these are one block and without a cap. The vocabulary is cut over the mesh axis `axis`, if any.
    """
    block = min(block, head.shape[0])
    targets = _local_ids(targets, head.shape[0], axis)
    kept = None
    count = None if num_ids is None else _local_ids(num_ids, head.shape[0], axis)

    def logits_of(hidden, weight, start):
        return _drawable(_block_logits(hidden, weight, softcap) / temperature, start, count)

    if block == head.shape[0]:
        logits = logits_of(hidden, head, 0)
        top = logits.max(axis=1)
        kept = jnp.exp(logits - top[:, None])
        total = kept.sum(axis=1)
        weighted = (kept * logits).sum(axis=1)
        chosen = _pick(logits, targets, 0, 0)
    else:

        def sums(hidden, targets):
            def step(carry, at):
                top, total, weighted, chosen = carry
                start, seen = at
                rows = jax.lax.dynamic_slice_in_dim(head, start, block)
                logits = logits_of(hidden, rows, start)
                shown = jnp.where(jnp.arange(block) >= seen, logits, -jnp.inf)
                new_top = jnp.maximum(top, shown.max(axis=1))
                scale = jnp.exp(top - new_top)
                e = jnp.exp(shown - new_top[:, None])
                total = total * scale + e.sum(axis=1)
                # Not `shown`: 0 * -inf is NaN.
                weighted = weighted * scale + (e * logits).sum(axis=1)
                chosen = chosen + _pick(logits, targets, start, seen)
                return (new_top, total, weighted, chosen), None

            zero = jnp.zeros(targets.shape, jnp.float32)
            carry = (zero - jnp.inf, zero, zero, zero)
            return jax.lax.scan(step, carry, _blocks(head.shape[0], block))

        (top, total, weighted, chosen), _ = _of_scored(sums, scored, hidden, targets)
    if axis is not None:
        own_top = top
        top = jax.lax.pmax(top, axis)
        scale = jnp.exp(own_top - top)
        sums = (total * scale, weighted * scale, chosen)
        total, weighted, chosen = jax.lax.psum(sums, axis)
        kept = None if kept is None else kept * scale[:, None]
    normaliser = top + jnp.log(total)
    if kept is not None:
        # With a cap the backward pass computes the logits again, so keeping these saves nothing.
        kept = None if softcap else kept / total[:, None]
    # The entropy is log Z minus the mean logit.
    return (chosen - normaliser, normaliser - weighted / total), normaliser, kept


def _local_backward(
    block, softcap, num_ids, axis, hidden, head, targets, temperature, scored, normaliser, kept, g
):
    """Returns the gradients of this device's hidden states (float32, over its own rows of the head
    only) and of its rows of the head.
    """
    block = min(block, head.shape[0])
    targets = _local_ids(targets, head.shape[0], axis)
    g = g / temperature
    count = None if num_ids is None else _local_ids(num_ids, head.shape[0], axis)

    def products(hidden, targets, g, weight, start, probability, seen):
        onehot = (targets - start)[:, None] == jnp.arange(weight.shape[0])[None, :]
        d_logits = (onehot - probability) * g[:, None]
        if softcap:
            # The derivative of the cap is 1 - tanh^2, and needs the logits before the temperature.
            capped = _block_logits(hidden, weight, softcap) / softcap
            d_logits = d_logits * (1 - capped * capped)
        d_logits = d_logits.astype(hidden.dtype)
        d_weight = left_transposed_product(d_logits, hidden)
        # The rows that an earlier block has too are written again with the same values; their part
        # of the hidden states' gradient counts once.
        if seen is not None:
            weight = jnp.where((jnp.arange(block) >= seen)[:, None], weight, 0)
        weight = weight.astype(hidden.dtype)
        d_hidden = jnp.matmul(d_logits, weight, preferred_element_type=jnp.float32)
        return d_hidden, d_weight.astype(head.dtype)

    def probability_of(hidden, normaliser, weight, start):
        logits = _drawable(_block_logits(hidden, weight, softcap) / temperature, start, count)
        return jnp.exp(logits - normaliser[:, None])

    if block == head.shape[0]:
        if kept is None:
            kept = probability_of(hidden, normaliser, head, 0)
        return products(hidden, targets, g, head, 0, kept, None)

    def gradients(hidden, targets, normaliser, g):
        def step(carry, at):
            start, seen = at
            weight = jax.lax.dynamic_slice_in_dim(head, start, block)
            probability = probability_of(hidden, normaliser, weight, start)
            d_hidden, d_weight = products(hidden, targets, g, weight, start, probability, seen)
            d_head = jax.lax.dynamic_update_slice_in_dim(carry[1], d_weight, start, 0)
            return (carry[0] + d_hidden, d_head), None

        carry = (jnp.zeros(hidden.shape, jnp.float32), jnp.zeros_like(head))
        (d_hidden, d_head), _ = jax.lax.scan(step, carry, _blocks(head.shape[0], block))
        return (d_hidden,), d_head

    (d_hidden,), d_head = _of_scored(gradients, scored, hidden, targets, normaliser, g)
    return d_hidden, d_head


def _partition(hidden: Array, head: Array) -> tuple[P, P]:
    """Returns the partitions of the tokens and of the head."""
    rows = meshes.spec(head.shape, meshes.RULES["head"], meshes.current())
    return meshes.part(hidden.shape, "flat"), rows


def _whole_width(head: Array, axis: str | None, dtype: Any) -> Array:
    """Returns all columns of a device's rows of the head. On a mesh they are in the compute dtype:
    cast first, then gathered, so that bfloat16 halves the traffic.
    """
    if meshes.current() is None:
        return head
    head = head.astype(dtype)
    return head if axis is None else jax.lax.all_gather(head, axis, axis=1, tiled=True)


@partial(jax.custom_vjp, nondiff_argnums=(5, 6, 7))
def head_logprobs(
    hidden: Float[Array, "n d"],
    head: Float[Array, "v d"],
    targets: Integer[Array, " n"],
    temperature: Float[Array, ""],
    scored: Bool[Array, " n"],
    block: int = VOCAB_BLOCK,
    softcap: float = 0.0,
    num_ids: int | None = None,
) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
    """Computes the log-probability of each target under softmax(hidden @ head.T / temperature), and
    the entropy of that distribution, both in float32 nats.

    On a mesh the tokens are cut over the data, fsdp and sequence axes and the vocabulary over
    tensor; each device computes the logits of its own tokens and rows.

    Args:
        hidden: [n, d] final hidden states, any float dtype.
        head: [v, d] output projection.
        targets: [n] token ids in [0, v).
        temperature: positive scalar, traced.
        scored: [n] True for the tokens whose results are used: those of others are undefined and
            their cotangents must be 0.
        block: rows of the head per block of logits.
        softcap: logits become softcap * tanh(logits / softcap) before the temperature; 0 for none.
        num_ids: ids from this one on have no probability, and are no targets; None if all have.

    Returns:
        (logprobs [n], entropy [n]). Only the log-probs have a gradient; the cotangent of the
        entropy is ignored.
    """
    return _forward(hidden, head, targets, temperature, scored, block, softcap, num_ids)[0]


def _forward(hidden, head, targets, temperature, scored, block, softcap, num_ids):
    mesh = meshes.current()
    tokens, rows = _partition(hidden, head)
    flat = P(tokens[0])
    keeps = not softcap and head.shape[0] // (mesh.shape[rows[0]] if rows[0] else 1) <= block

    def local(hidden, head, *given):
        head = _whole_width(head, rows[1], hidden.dtype)
        return _local_forward(block, softcap, num_ids, rows[0], hidden, head, *given)

    specs = ((flat, flat), flat, P(tokens[0], rows[0]) if keeps else None)
    cuts = (tokens, rows, flat, P(), flat)
    compute = meshes.mapped(local, cuts, specs)
    outputs, normaliser, kept = compute(hidden, head, targets, temperature, scored)
    return outputs, (hidden, head, targets, temperature, scored, normaliser, kept)


def _backward(block, softcap, num_ids, residuals, cotangents):
    hidden, head, _, temperature, _, _, kept = residuals
    tokens, rows = _partition(hidden, head)
    # The gradient of the head is summed over the devices of other tokens; where its columns are cut
    # along one of these axes, each device gets the sum of its own columns.
    axes = tuple(axis for axis in tokens[0] or () if axis != rows[1])

    def local(hidden, head, *given):
        full_head = _whole_width(head, rows[1], hidden.dtype)
        d_hidden, d_head = _local_backward(
            block, softcap, num_ids, rows[0], hidden, full_head, *given
        )
        if rows[0] is not None:
            # Each device has the part of its own rows of the head, still in float32.
            d_hidden = jax.lax.psum(d_hidden, rows[0])
        if rows[1] is not None:
            d_head = jax.lax.psum_scatter(d_head, rows[1], scatter_dimension=1, tiled=True)
        return d_hidden.astype(hidden.dtype), jax.lax.psum(d_head.astype(head.dtype), axes)

    flat = P(tokens[0])
    cut = None if kept is None else P(tokens[0], rows[0])
    specs = (tokens, rows, flat, P(), flat, flat, cut, flat)
    gradients = meshes.mapped(local, specs, (tokens, rows))(*residuals, cotangents[0])
    return *gradients, None, jnp.zeros_like(temperature), None


head_logprobs.defvjp(_forward, _backward)


def _at_sources(hidden: Stream, sources: Ids) -> Stream:
    """Returns the hidden state that each token is predicted from, per device from its own rows."""

    def local(hidden, sources):
        return jnp.take_along_axis(hidden, sources[:, :, None], axis=1)

    specs = (meshes.part(hidden.shape, "whole_rows"), meshes.part(sources.shape, "tokens"))
    out = meshes.part(hidden.shape, "stream")
    return meshes.mapped(local, specs, out)(hidden, sources)


def token_logprobs(
    model: Transformer,
    tokens: Ids,
    positions: Ids | None = None,
    segment_ids: Ids | None = None,
    prefix_ids: Ids | None = None,
    sources: Ids | None = None,
    temperature: Float[Array, ""] | float = 1.0,
    scored: Bool[Array, "rows length"] | None = None,
    routes: Routes | None = None,
    everything: bool = False,
) -> Any:
    """Computes the log-probability of every token given the preceding ones, in float32 nats.

    Args:
        model: the transformer.
        tokens: [rows, length] token ids.
        positions: [rows, length]; see `Transformer.__call__`.
        segment_ids: [rows, length]; see `Transformer.__call__`.
        prefix_ids: [rows, length]; see `Transformer.__call__`.
        sources: [rows, length] column whose hidden state predicts each token: the column before it
            if None, the prompt's last column for the first token of a completion that shares its
            prompt.
        temperature: divisor of the logits; positive, traced.
        scored: [rows, length] True for the tokens to score; None for all. The fewer, the less it
            costs.
        routes: [rows, length, layers, k]; see `Transformer.forward`.
        everything: also return the entropy of the distribution that each token was drawn from, and
            what the routers did, as `Transformer.forward`.

    Returns:
        [rows, length] log-probs, or a tuple of these, the entropies and the routing if
        `everything`. Log-probs and entropies are 0 for tokens that are not scored, for the first
        column, and for any other token whose source is its own column.

    Examples:
        Log-probs of two completions, each behind a prompt of two tokens:

        >>> import jax.numpy as jnp
        >>> from flax import nnx
        >>> from grre_jax import models
        >>> config = models.ModelConfig(
        ...     vocab_size=16, hidden_size=8, intermediate_size=16,
        ...     num_layers=1, num_heads=2, num_kv_heads=1, head_dim=4, eos_ids=(15,),
        ... )
        >>> rows = jnp.array([[3, 4, 7, 15], [3, 4, 8, 15]])
        >>> scored = jnp.broadcast_to(jnp.arange(4) >= 2, rows.shape)
        >>> logprobs = nnx.jit(models.token_logprobs)(models.init(config), rows, scored=scored)
        >>> (logprobs < 0).tolist()
        [[False, False, True, True], [False, False, True, True]]
    """
    rows, length = tokens.shape
    hidden, router = model.forward(tokens, positions, segment_ids, prefix_ids, routes)
    columns = jnp.arange(length)
    if sources is None:
        sources = jnp.broadcast_to(jnp.maximum(columns - 1, 0), tokens.shape)
    hidden = _at_sources(hidden, sources).reshape(rows * length, -1)
    predicted = sources != columns
    scored = predicted if scored is None else scored & predicted
    temperature = jnp.asarray(temperature, jnp.float32)
    softcap = model.config.logit_softcap
    logprobs, entropy = head_logprobs(
        hidden,
        model.head_weight(),
        tokens.reshape(-1),
        temperature,
        scored.reshape(-1),
        VOCAB_BLOCK,
        softcap,
        model.num_ids,
    )
    logprobs, entropy = (
        jnp.where(scored, x.reshape(rows, length), 0.0) for x in (logprobs, entropy)
    )
    return (logprobs, entropy, router) if everything else logprobs
