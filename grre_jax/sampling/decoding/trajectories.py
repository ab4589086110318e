"""The compiled programs of trajectories: prefill prompts, prefill observations, decode some steps.

A trajectory has a slot with its keys and values whether it is decoded or waits for an answer; those
of its prompt are stored once for all samples. Both are gathered when it gets a row, so that steps
read contiguous memory and all rows write the same column, in the room behind what was gathered;
`decode` puts the new columns into the slots too. (Gathering before every program was slower on a
CPU with short turns, in each of four pairs of runs: 1.5 to 2.4 times as long.) All else is on the
host, and comes with each call as a few integers a row.

The last token of a sequence is never in a cache: the next step of `decode` computes it and draws
from it. So prompts, samples and observations are continued alike, and a sequence that is cut needs
no change of its cache: columns beyond its tokens are not seen, and are written again.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, UInt32

from grre_jax.models.attention import attention
from grre_jax.models.blocked_attention import Visibility, blocked_attention
from grre_jax.models.config import ModelConfig
from grre_jax.models.rotary import Rotary
from grre_jax.parallel import mesh as meshes
from grre_jax.sampling.decoding.attention import SlotAddresses, VisibleTokens
from grre_jax.sampling.decoding.cache import Cache, width_for
from grre_jax.sampling.decoding.engine import computed_tokens, uniforms_at
from grre_jax.sampling.decoding.shards import Chosen, taken
from grre_jax.sampling.decoding.slots import CUT, KEY_WORDS, NONE, RUNNING, SCORES, STOPPED, Number
from grre_jax.sampling.decoding.weights import Weights
from grre_jax.sampling.distributions.distribution import SamplingDistribution

PerRow = Int[Array, "shards rows"]


class Kept(NamedTuple):
    """Keys and values of one layer, by slot, from which programs gather what they read.

    Attributes:
        keys, values: [slots, tokens, kv heads x head_dim], the slots of all shards. Heads are not
            an axis of their own: a TPU would pad them.
    """

    keys: Float[Array, "slots tokens kv_x_dim"]
    values: Float[Array, "slots tokens kv_x_dim"]

    @property
    def tokens(self) -> int:
        """Room of a slot, in tokens."""
        return self.keys.shape[1]

    def put(
        self,
        slot: Chosen,
        start: Chosen,
        keys: Float[Array, "rows tokens kv dim"],
        values: Float[Array, "rows tokens kv dim"],
    ) -> Kept:
        """Writes tokens into slots of each shard, from the token `start` on; a slot that is NONE
        takes none. The slots must have room.
        """
        # NONE becomes a number out of every shard's range, whose tokens the scatter drops.
        at = jnp.stack([jnp.where(slot == NONE, self.keys.shape[0], slot), start], axis=-1)
        numbers = jax.lax.ScatterDimensionNumbers((1, 2), (0,), (0, 1))

        def one(part, at, new):
            mode = jax.lax.GatherScatterMode.FILL_OR_DROP
            return jax.lax.scatter(part, at, new.astype(part.dtype), numbers, mode=mode)

        def put(x, new):
            parts, new = (y.reshape(slot.shape[0], -1, y.shape[1], x.shape[2]) for y in (x, new))
            return _on_mesh(jax.vmap(one)(parts, at, new).reshape(x.shape))

        return Kept(put(self.keys, keys), put(self.values, values))


class Rows(NamedTuple):
    """Rows of a program, as the host chose them.

    Attributes:
        slot: [shards, rows] the trajectory's slot; NONE for an idle row.
        prompt_slot: [shards, rows] slot of its prompt.
        before: [shards, rows] tokens of the prompt that are stored: all but the last.
        filled: [shards, rows] tokens of its own that are stored, the prompt's last counted first;
            also the index of the next token that is drawn.
        token: [shards, rows] the token after these.
        allowed: [shards, rows] most tokens that may be drawn.
        joined: [shards, rows] column of the room that was the next when the row was gathered.
        keys: [shards, rows, words] random key of the trajectory, as words.
    """

    slot: PerRow
    prompt_slot: PerRow
    before: PerRow
    filled: PerRow
    token: PerRow
    allowed: PerRow
    joined: PerRow
    keys: UInt32[Array, "shards rows words"]

    @property
    def first(self) -> Int[Array, " rows"]:
        """Position of each row's next token in its sequence."""
        return (self.before + self.filled).reshape(-1)

    def stored(
        self, prompts: Kept, own: Kept, heads: int
    ) -> tuple[Float[Array, "rows columns kv dim"], Float[Array, "rows columns kv dim"]]:
        """Returns keys and values of each row's prompt and of its own tokens behind it."""
        parts = [
            (taken(a, jnp.maximum(self.prompt_slot, 0)), taken(b, jnp.maximum(self.slot, 0)))
            for a, b in ((prompts.keys, own.keys), (prompts.values, own.values))
        ]
        joined = (jnp.concatenate(x, axis=1) for x in parts)
        keys, values = (_on_mesh(x.reshape(*x.shape[:2], heads, -1)) for x in joined)
        return keys, values

    def columns(
        self, prompts: Kept, own: Kept, new: int = 0
    ) -> tuple[Int[Array, "rows columns"], Bool[Array, "rows columns"]]:
        """Returns the position of each stored column's token in its row's sequence, and True for
        columns that hold one, if `new` tokens follow `filled`.
        """
        before = self.before.reshape(-1, 1)
        filled = self.filled.reshape(-1, 1)
        prompt, tokens = (jnp.arange(kept.tokens, dtype=jnp.int32) for kept in (prompts, own))
        there = jnp.concatenate([prompt < before, tokens < filled + new], axis=1)
        prompt = jnp.broadcast_to(prompt, (before.shape[0], prompts.tokens))
        return jnp.concatenate([prompt, before + tokens], axis=1), there


@partial(jax.jit, static_argnums=(0, 1, 2, 3))
def empty(config: ModelConfig, slots: int, tokens: int, dtype: str) -> list[Kept]:
    """Returns the stored keys and values of every layer, all zero."""
    shape = (slots, tokens, config.num_kv_heads * config.head_dim)
    zeros = [_on_mesh(jnp.zeros(shape, dtype)) for _ in range(2 * config.num_layers)]
    return [Kept(*pair) for pair in zip(zeros[::2], zeros[1::2], strict=True)]


@partial(jax.jit, static_argnums=1)
def grown(own: Kept, tokens: int) -> Kept:
    """Returns a layer's keys and values with room for more tokens."""
    more = ((0, 0), (0, tokens - own.tokens), (0, 0))
    return jax.tree.map(lambda x: _on_mesh(jnp.pad(x, more)), own)


def _on_mesh(x: Array) -> Array:
    return meshes.constrain(x, "keys")


@partial(jax.jit, donate_argnums=1)
def prefill_prompts(
    weights: Weights,
    prompts: list[Kept],
    tokens: Int[Array, "shards some length"],
    lengths: Chosen,
    slot: Chosen,
) -> list[Kept]:
    """Computes prompts and stores their keys and values; returns those of every layer.

    Args:
        weights, prompts: the policy, and the donated storage.
        tokens: [shards, some, length] right-padded token ids.
        lengths: [shards, some] tokens of each.
        slot: [shards, some] where they are stored; NONE for a row that pads the shape.
    """
    model = weights.model
    flat = tokens.reshape(-1, tokens.shape[-1])
    kept = []
    positions = jnp.broadcast_to(jnp.arange(flat.shape[1], dtype=jnp.int32), flat.shape)
    there = positions < lengths.reshape(-1, 1)
    visibility = Visibility.of(jnp.where(there, 1, 0), positions)
    rotary = Rotary.of(model.config, positions[:1])
    x = model.embed_tokens(flat)
    for i, (block, held) in enumerate(zip(weights.blocks, prompts, strict=True)):
        slides = model.config.slides(i)
        q, k, v = block.qkv(x, *rotary.tables(slides, model.config.rotates(i)))
        kept.append(held.put(slot, jnp.zeros_like(slot), k, v))
        x, _ = block.finish(x, attention(q, k, v, visibility, model.config, slides))
    return kept


@partial(jax.jit, donate_argnums=2)
def prefill_observations(
    weights: Weights,
    prompts: list[Kept],
    own: list[Kept],
    rows: Rows,
    tokens: Int[Array, "shards some length"],
) -> list[Kept]:
    """Computes tokens that follow the stored ones, and stores them too; returns every layer's own
    keys and values.

    Args:
        weights, prompts, own: the policy, the prompts' storage, and the donated own storage.
        rows: where the tokens go; only slots, `before` and `filled` are used.
        tokens: [shards, some, length] right-padded token ids. The padding is stored too, beyond
            what the trajectory sees.
    """
    model = weights.model
    c = weights.model.config
    flat = tokens.reshape(-1, tokens.shape[-1])
    kept = []
    positions, there = rows.columns(prompts[0], own[0], flat.shape[1])
    new = rows.first[:, None] + jnp.arange(flat.shape[1], dtype=jnp.int32)
    # A key is hidden from a query before it, so the columns are the positions.
    seen = Visibility(there.astype(jnp.int32), None, positions, positions)
    seen_by = Visibility(jnp.ones_like(new), None, new, new)
    rotary = Rotary.of(c, seen_by.positions)
    x = model.embed_tokens(flat)
    for i, (block, before, held) in enumerate(zip(weights.blocks, prompts, own, strict=True)):
        slides = c.slides(i)
        q, k, v = block.qkv(x, *rotary.tables(slides, c.rotates(i)))
        kept.append(held.put(rows.slot, rows.filled, k, v))
        # With the new ones: a store that is read before it is written is copied.
        keys, values = (x.astype(k.dtype) for x in rows.stored(before, kept[-1], c.num_kv_heads))
        window = c.sliding_window if slides else None
        attended = blocked_attention(
            q,
            keys,
            values,
            seen_by,
            seen,
            whole=False,
            window=window,
            scale=c.attention_scale,
            softcap=c.attention_softcap,
        )
        x, _ = block.finish(x, attended)
    return kept


@partial(jax.jit, static_argnums=(0, 1))
def gathered(
    config: ModelConfig, room: int, prompts: list[Kept], own: list[Kept], rows: Rows
) -> list[Cache]:
    """Returns every layer's cache of the rows: prompts, own tokens, and room for new ones."""
    more = ((0, 0), (0, room), (0, 0), (0, 0))
    caches = []
    stored = prompts[0].tokens + own[0].tokens
    width = width_for(stored + room, stored)
    for before, held in zip(prompts, own, strict=True):
        keys, values = (jnp.pad(x, more) for x in rows.stored(before, held, config.num_kv_heads))
        caches.append(Cache.of(keys, values, keys.dtype, width).on_mesh())
    return caches


@partial(jax.jit, donate_argnums=0)
def replaced(caches: list[Cache], new: list[Cache], at: Chosen) -> list[Cache]:
    """Returns the caches with new ones in some rows; `at` is out of range for none."""
    return [held.put_slots(at, rows).on_mesh() for held, rows in zip(caches, new, strict=True)]


@partial(jax.jit, static_argnums=0, donate_argnums=(3, 4))
def decode(
    steps: int,
    weights: Weights,
    prompts: list[Kept],
    own: list[Kept],
    caches: list[Cache],
    rows: Rows,
    start: Number,
    distribution: SamplingDistribution,
    eos: Int[Array, " ends"],
    enough: Number,
) -> tuple[list[Kept], list[Cache], Int[Array, "steps 2 shards rows"], Float[Array, "steps 3 *n"]]:
    """Decodes rows until `enough` of them have ended, at most `steps` steps, which write the room's
    columns from `start` on.

    Returns:
        Own keys and values; the rows' caches; [steps, 2, shards, rows] tokens, and RUNNING, STOPPED
        or CUT, or NONE for nothing drawn; [steps, 3, shards, rows] log-probs in nats, as SCORES.
    """
    model = weights.model
    c = weights.model.config
    size = rows.slot.shape
    blocks = weights.blocks
    before = prompts[0].tokens + own[0].tokens
    room = caches[0].tokens - before
    positions, since = _columns(rows, prompts[0], own[0], room, start)
    rotary = Rotary.of(c, jnp.arange(before + room))
    words = rows.keys.reshape(-1, KEY_WORDS)
    uniforms = jax.vmap(lambda n: uniforms_at(words, rows.filled.reshape(-1) + n))(
        jnp.arange(steps)
    )

    def body(carry):
        n, token, running, caches, integers, scores = carry
        newest = rows.first + n
        no_prompts = SlotAddresses(None, None)
        seen = since <= start + n
        visible = VisibleTokens(seen[:, :0], newest[:, None] - positions, seen, newest)
        column = before + start + n
        caches, hidden, _ = computed_tokens(
            model, blocks, rotary, token, visible, [], caches, column, no_prompts
        )
        logits = model.logits(hidden, weights.head)
        token, drawn = distribution.sample(uniforms[n], logits)
        token = token.astype(jnp.int32)
        stopped = (token[:, None] == eos).any(-1).reshape(size)
        code = jnp.where(stopped, STOPPED, jnp.where(n + 1 >= rows.allowed, CUT, RUNNING))
        code = jnp.where(running, code, NONE)
        integers = integers.at[n].set(jnp.stack([token.reshape(size), code]))
        scores = scores.at[n].set(jnp.stack([drawn[name].reshape(size) for name in SCORES]))
        return n + 1, token, code == RUNNING, caches, integers, scores

    def goes_on(carry):
        n, _, running, *_ = carry
        return (n < steps) & running.any() & ((rows.slot != NONE).sum() - running.sum() < enough)

    nothing = jnp.full((steps, 2, *size), NONE, jnp.int32), jnp.zeros((steps, 3, *size))
    carry = (jnp.int32(0), rows.token.reshape(-1), rows.slot != NONE, caches, *nothing)
    *_, caches, integers, scores = jax.lax.while_loop(goes_on, body, carry)
    kept = []
    for held, cache in zip(own, caches, strict=True):
        # As many as `steps`, a static size: those not written lie beyond a row's tokens.
        new = [jax.lax.dynamic_slice_in_dim(x, start, steps, axis=1) for x in cache.after(before)]
        kept.append(held.put(rows.slot, rows.filled, *new))
    return kept, caches, *(meshes.constrain(x, "whole") for x in (integers, scores))


def _columns(
    rows: Rows, prompts: Kept, own: Kept, room: int, start: Number
) -> tuple[Int[Array, "rows columns"], Int[Array, "rows columns"]]:
    """Returns the position of each column's token in its row's sequence, and the column of the room
    whose step is the first to see it: 0 if it was gathered, `room` if it belongs to another row.
    """
    before_joined = rows.filled - (start - rows.joined)  # the others were drawn since, in the room
    positions, there = rows._replace(filled=before_joined).columns(prompts, own)
    column = jnp.broadcast_to(jnp.arange(room, dtype=jnp.int32), (rows.slot.size, room))
    since = jnp.where(column >= rows.joined.reshape(-1, 1), column, room)
    positions = jnp.concatenate([positions, rows.first[:, None] + column - start], axis=1)
    return positions, jnp.concatenate([jnp.where(there, 0, room), since], axis=1)
