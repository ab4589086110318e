"""The compiled programs of the sampler: prefill prompts, decode some steps, resize caches.

State stays on the device and is donated from program to program. `advance` decodes up to a number
of steps in one loop and refills decode slots inside it. It returns early when every decode slot is
idle, when one needs a longer KV ring buffer, or when prompt slots are free for prompts that wait on
the host. Every number (temperature, truncation, EOS ids, limits, keys) is traced; a program depends
only on the sizes in `Shape`, the length of prompts and the length of the ring buffers.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, UInt16, UInt32

from grre_jax.models.attention import attention
from grre_jax.models.blocked_attention import Visibility
from grre_jax.models.config import ModelConfig
from grre_jax.models.experts import UNKNOWN, Routing
from grre_jax.models.rotary import Rotary
from grre_jax.models.transformer import Block, Transformer
from grre_jax.parallel import mesh as meshes
from grre_jax.sampling.decoding.attention import SlotAddresses, VisibleTokens, attend
from grre_jax.sampling.decoding.cache import MANY_QUERIES, Cache, width_for
from grre_jax.sampling.decoding.shards import Chosen, picked, placed, taken
from grre_jax.sampling.decoding.slots import (
    CUT,
    KEY_KIND,
    KEY_WORDS,
    NONE,
    RUNNING,
    SCORES,
    STOPPED,
    DecodeSlots,
    Number,
    PromptSlots,
    Shape,
    State,
    Trace,
    assign_all,
    assign_waiting,
    at_completions,
    at_decode_slots,
    release,
    slot_addresses,
)
from grre_jax.sampling.decoding.weights import Weights
from grre_jax.sampling.distributions.distribution import SamplingDistribution


@partial(jax.jit, static_argnums=(0, 2))
def new_state(shape: Shape, weights: Weights, columns: int) -> State:
    """Returns a state without prompts: idle decode slots and empty caches of `columns` tokens."""
    c = weights.model.config
    size = (shape.shards, shape.prompt_slots)

    def caches(count, tokens, width):
        dtype = jnp.dtype(shape.cache_dtype)
        return [
            Cache.empty(count, c.num_kv_heads, c.head_dim, tokens, dtype, width).on_mesh()
            for _ in range(c.num_layers)
        ]

    slots = DecodeSlots(
        *(jnp.full((shape.shards, shape.decode_slots), fill, jnp.int32) for fill in (NONE, 0, 0, 0))
    )
    prompts = PromptSlots(
        # Of length 1, so that the last position of a prompt slot never filled is 0 and not -1.
        *(jnp.full(size, fill, jnp.int32) for fill in (NONE, 1, 0, 0, 0, 0)),
        jnp.zeros((*size, shape.samples, KEY_WORDS), jnp.uint32),
    )
    hidden = jnp.zeros((shape.shards * shape.prompt_slots, c.hidden_size), weights.dtype)
    addresses = SlotAddresses(None, None) if shape.resident else slot_addresses(slots, prompts)
    # Queries of a step, per prompt and key head.
    queries = shape.samples * (c.num_heads // c.num_kv_heads)
    width = width_for(shape.prompt_tokens) if queries < MANY_QUERIES else shape.prompt_tokens
    prefix = []
    if not shape.prompt_in_ring:
        prefix = caches(shape.shards * shape.prompt_slots, shape.prompt_tokens, width)
    own_tokens = shape.prompt_columns + columns
    own_width = width_for(own_tokens, shape.prompt_columns)
    own_caches = caches(shape.shards * shape.decode_slots, own_tokens, own_width)
    hidden = meshes.constrain(hidden, "rows")
    return State(jnp.int32(0), slots, prompts, addresses, hidden, prefix, own_caches)


@partial(jax.jit, static_argnums=(0, 1))
def prompt_rotary(config: ModelConfig, length: int) -> Rotary:
    """Returns the rotary tables of a prompt, [1, length]; in a separate program, since `prefill`
    would compute the cosines again for every layer, prompt and head.
    """
    return Rotary.of(config, jnp.arange(length, dtype=jnp.int32)[None])


@partial(jax.jit, static_argnums=0, donate_argnums=2)
def prefill(
    shape: Shape,
    weights: Weights,
    state: State,
    rotary: Rotary,
    new: PromptSlots,
    tokens: Int[Array, "shards some length"],
    prompt_slot: Chosen,
) -> tuple[State, UInt16[Array, "shards some length layers k"] | None]:
    """Computes some prompts and puts them into prompt slots.

    Args:
        shape, weights, state, rotary: sizes, weights, the donated state, and `prompt_rotary`.
        new: [shards, some, ...] the prompts; `started` and `finished` are 0.
        tokens: [shards, some, length] right-padded token ids.
        prompt_slot: [shards, some] slot of each; out of range for a prompt that pads the shape.

    Returns:
        The state, and the experts of the prompts' tokens, UNKNOWN for padding; None if they are not
        recorded.
    """
    model = weights.model
    c = model.config
    flat = tokens.reshape(-1, tokens.shape[-1])
    lengths = new.length.reshape(-1)
    positions = jnp.broadcast_to(jnp.arange(flat.shape[1], dtype=jnp.int32), flat.shape)
    there = positions < lengths[:, None]
    visibility = Visibility.of(jnp.where(there, 1, 0), positions)
    at_end = (lengths - 1)[:, None, None]
    last_layer = c.num_layers - 1
    x = model.embed_tokens(flat)
    filled = []
    routes = []
    for i, (block, held) in enumerate(
        zip(weights.blocks, state.own if shape.prompt_in_ring else state.prefix, strict=True)
    ):
        slides = c.slides(i)
        q, k, v = block.qkv(x, *rotary.tables(slides, c.rotates(i)))
        new_tokens = Cache.of(k, v, held.keys.dtype, min(held.width, flat.shape[1]))
        if shape.prompt_in_ring:
            put_in = held.begin(new_tokens)
        else:
            put_in = held.put_slots(prompt_slot, new_tokens)
        filled.append(put_in.on_mesh())
        attended = attention(q, k, v, visibility, c, slides)
        # After the last layer only the last token is needed.
        if i == last_layer and not shape.routes:
            x = jnp.take_along_axis(x, at_end, axis=1)
            attended = jnp.take_along_axis(attended, at_end[..., None, None], axis=1)
        x, routing = block.finish(x, attended)
        routes.append(routing)
    x = jnp.take_along_axis(x, at_end, axis=1) if shape.routes else x
    last = model.final(x)[:, 0]

    old_hidden = state.hidden.reshape(shape.shards, shape.prompt_slots, -1)
    last = last.reshape(*prompt_slot.shape, -1).astype(state.hidden.dtype)
    hidden = placed(old_hidden, prompt_slot, last)
    prompts = jax.tree.map(lambda x, y: placed(x, prompt_slot, y), state.prompt_slots, new)
    slots = assign_all(prompts, shape.samples) if shape.resident else state.decode_slots
    state = state._replace(
        decode_slots=slots,
        prompt_slots=prompts,
        hidden=meshes.constrain(hidden.reshape(state.hidden.shape), "rows"),
        **{"own" if shape.prompt_in_ring else "prefix": filled},
    )
    if not shape.routes:
        return state, None
    chosen = stacked_routes(routes).reshape(*flat.shape, c.num_layers, -1)
    chosen = jnp.where(there[..., None, None], chosen, UNKNOWN)
    return state, chosen.reshape(*tokens.shape, *chosen.shape[2:])


@partial(jax.jit, static_argnums=(0, 8), donate_argnums=2)
def advance(
    shape: Shape,
    weights: Weights,
    state: State,
    distribution: SamplingDistribution,
    eos: Int[Array, " ends"],
    limit: Number,
    wanted: Int[Array, " shards"],
    few: Number,
    first: bool = False,
) -> tuple[State, Trace, tuple[Number, Array, Number]]:
    """Decodes up to shape.steps steps.

    Args:
        shape, weights: of the call.
        state: donated.
        distribution: of a token.
        eos: [ends] tokens that end a completion, padded with NONE.
        limit: longest completion, in tokens.
        wanted: [shards] prompt slots that must be free for the loop to return to the host, which
            fills them; one is enough if decode slots would be idle. 0: no prompts wait.
        few: completions left at which the loop returns, so that the host can continue with fewer
            decode slots; 0 for none, and if all are resident.
        first: make a single step, which draws the first token of every completion.

    Returns:
        The state; what was drawn; and for the host, the same on every device: how many completions
        run or wait, the prompt slots that are free, and the tokens of the longest that runs.
    """
    model = weights.model
    blocks = weights.blocks
    steps = 1 if first else shape.steps
    trace = _no_draws(shape, steps, model.config)
    # Before the loop, which would compute the cosines again for every layer and head.
    columns = state.own[0].tokens - shape.prompt_columns
    rotary = Rotary.of(model.config, jnp.arange(shape.prompt_tokens + columns, dtype=jnp.int32))
    # Without refills every slot's random numbers are known before the loop, and computing them
    # together costs less.
    ahead = None
    if shape.resident:
        ahead = _uniforms(state, jnp.arange(steps, dtype=jnp.int32))

    def body(carry):
        n, state, trace = carry
        state = state if shape.resident else _refilled(state)
        routes = None
        if first:
            # No completion has a token to decode yet: its first is drawn from its prompt's last.
            hidden = _hidden_at_slots(state).reshape(-1, state.hidden.shape[-1])
        else:
            state, hidden, routes = _decoded(shape, model, blocks, rotary, state)
        logits = model.logits(hidden, weights.head)
        uniforms = _uniforms(state, jnp.zeros(1, jnp.int32))[0] if ahead is None else ahead[n]
        state, integers, scores = _drawn(shape, state, uniforms, logits, distribution, eos, limit)
        recorded = trace.routes
        if recorded is not None and routes is not None:
            recorded = recorded.at[n].set(routes.reshape(recorded.shape[1:]))
        trace = Trace(trace.integers.at[n].set(integers), trace.scores.at[n].set(scores), recorded)
        return n + 1, state, trace

    def goes_on(carry):
        n, state, _ = carry
        room = (n < steps) & (_longest(state) <= columns)
        if shape.resident:
            return room & state.decode_slots.active.any()
        return room & (_busy(shape, state) > few) & ~_host_is_wanted(state, wanted)

    carry = (jnp.int32(0), state, trace)
    _, state, trace = body(carry) if first else jax.lax.while_loop(goes_on, body, carry)
    report = (_busy(shape, state), state.prompt_slots.free, _longest(state))
    return state, trace, jax.tree.map(lambda x: meshes.constrain(x, "whole"), report)


def _no_draws(shape: Shape, steps: int, config: ModelConfig) -> Trace:
    size = (shape.shards, shape.decode_slots)
    integers = jnp.full((steps, 5, *size), NONE, jnp.int32)
    routes = None
    if shape.routes:
        of_token = (config.num_layers, config.experts_per_token)
        routes = jnp.full((steps, *size, *of_token), UNKNOWN, jnp.uint16)
    return Trace(integers, jnp.zeros((steps, 3, *size), jnp.float32), routes)


def stacked_routes(routes: list[Routing]) -> UInt16[Array, "tokens layers k"]:
    """Returns the experts of each token at every layer."""
    return jnp.stack([routing.chosen for routing in routes], axis=1).astype(jnp.uint16)


def _busy(shape: Shape, state: State) -> Array:
    """Returns the number of completions that run or wait."""
    running = state.decode_slots.active.sum()
    # `assign_all` does not count its completions as started.
    return running + (0 if shape.resident else state.prompt_slots.waiting.sum())


def _longest(state: State) -> Array:
    """Returns the tokens of the longest running completion."""
    return jnp.where(state.decode_slots.active, state.decode_slots.generated, 0).max()


def _host_is_wanted(state: State, wanted: Array) -> Array:
    """True if a shard has the wanted free prompt slots, or one while decode slots would be idle."""
    free = state.prompt_slots.free.sum(1)
    starved = (~state.decode_slots.active).sum(1) > state.prompt_slots.waiting.sum(1)
    return ((wanted > 0) & ((free >= wanted) | (starved & (free > 0)))).any()


def _refilled(state: State) -> State:
    """Gives waiting completions to idle decode slots; computes nothing without any."""

    def refill(slots, prompts, _):
        slots, prompts = assign_waiting(slots, prompts)
        return slots, prompts, slot_addresses(slots, prompts)

    needed = ((~state.decode_slots.active).any(1) & (state.prompt_slots.waiting > 0).any(1)).any()
    slots, prompts, addresses = jax.lax.cond(
        needed, refill, lambda *same: same, state.decode_slots, state.prompt_slots, state.addresses
    )
    return state._replace(decode_slots=slots, prompt_slots=prompts, addresses=addresses)


def _hidden_at_slots(state: State) -> Array:
    hidden = state.hidden.reshape(*state.prompt_slots.prompt.shape, -1)
    return at_decode_slots(hidden, state.decode_slots)


def _decoded(
    shape: Shape, model: Transformer, blocks: list[Block], rotary: Rotary, state: State
) -> tuple[State, Array, Array | None]:
    """Computes the last token of every decode slot; returns the state with its keys and values,
    its hidden state, and its experts if there are any.
    """
    slots = state.decode_slots
    prompts = state.prompt_slots
    columns = state.own[0].tokens - shape.prompt_columns
    lengths = at_decode_slots(prompts.length, slots).reshape(-1)
    generated = slots.generated.reshape(-1)
    positions = lengths + generated - 1
    # All slots write one column a step: its age in steps is a distance in tokens, and columns older
    # than a slot's completion are left from the one before.
    column = state.step % columns
    ago = ((column - jnp.arange(columns)) % columns)[None]
    prompt_column = jnp.arange(shape.prompt_tokens)
    in_prompt = prompt_column < prompts.length.reshape(-1)[:, None]
    own = ago < generated[:, None]
    if shape.prompt_in_ring:
        ago = jnp.concatenate(
            [positions[:, None] - prompt_column, jnp.broadcast_to(ago, own.shape)], axis=1
        )
        own = jnp.concatenate([in_prompt, own], axis=1)
    visible = VisibleTokens(prefix=in_prompt, own_age=ago, own=own, positions=positions)
    caches, hidden, routes = computed_tokens(
        model,
        blocks,
        rotary,
        slots.token.reshape(-1),
        visible,
        state.prefix,
        state.own,
        shape.prompt_columns + column,
        state.addresses,
    )
    state = state._replace(step=state.step + 1, own=caches)
    # A completion that begins had nothing to decode: it continues its prompt's last token.
    first = _hidden_at_slots(state).reshape(hidden.shape)
    return state, jnp.where((generated == 0)[:, None], first, hidden), routes


def computed_tokens(
    model: Transformer,
    blocks: list[Block],
    rotary: Rotary,
    tokens: Int[Array, " slots"],
    visible: VisibleTokens,
    prefix: list[Cache],
    own: list[Cache],
    column: Number,
    addresses: SlotAddresses,
) -> tuple[list[Cache], Float[Array, "slots width"], UInt16[Array, "slots layers k"] | None]:
    """Computes one token of every slot; returns the slots' caches with it, its hidden state, and
    its experts if there are any.

    Args:
        model, blocks, rotary: the policy, its layers, and the tables of positions 0, 1, 2, ...
        tokens: [slots] the tokens.
        visible: what they attend to.
        prefix, own: caches of each layer; no prefix if `own` begins with the prompts.
        column: of the tokens in `own`.
        addresses: prompt of each slot.
    """
    c = model.config
    caches = []
    routes = []
    rotary = rotary.at(visible.positions[:, None])
    x = model.embed_tokens(tokens[:, None])
    for i, (block, before, held) in enumerate(
        zip(blocks, prefix or [None] * len(blocks), own, strict=True)
    ):
        q, k, v = block.qkv(x, *rotary.tables(c.slides(i), c.rotates(i)))
        caches.append(held.write(column, k, v))
        attended = attend(q[:, 0], before, caches[-1], visible, addresses, c, c.slides(i))
        x, routing = block.finish(x, attended[:, None])
        routes.append(routing)
    return caches, model.final(x)[:, 0], stacked_routes(routes) if c.num_experts else None


def _uniforms(state: State, ahead: Array) -> Array:
    """Returns the random numbers of every slot's draws, each `ahead` steps from now, addressed by
    the completion's key and the token's index.
    """
    slots = state.decode_slots
    words = at_completions(state.prompt_slots.keys, slots).reshape(slots.generated.size, -1)
    return jax.vmap(lambda step: uniforms_at(words, slots.generated.reshape(-1) + step))(ahead)


def uniforms_at(
    words: UInt32[Array, "rows words"], index: Int[Array, " rows"]
) -> Float[Array, "rows 2"]:
    """Returns the random numbers of a draw per row, addressed by the words of the row's key and
    the index of the token.
    """
    keys = jax.random.wrap_key_data(words, impl=KEY_KIND)
    return jax.vmap(lambda key, at: jax.random.uniform(jax.random.fold_in(key, at), (2,)))(
        keys, index
    )


def _drawn(
    shape: Shape,
    state: State,
    uniforms: Array,
    logits: Array,
    distribution: SamplingDistribution,
    eos: Array,
    limit: Array,
) -> tuple[State, Array, Array]:
    """Draws a token for every slot and ends the completions that it ends; returns the state and
    the step's part of `Trace`.
    """
    slots = state.decode_slots
    prompts = state.prompt_slots
    tokens, scores = distribution.sample(uniforms, logits)
    tokens = tokens.reshape(slots.generated.shape).astype(jnp.int32)
    active = slots.active
    generated = slots.generated + 1
    stopped = active & (tokens[..., None] == eos).any(-1)
    cut = active & ~stopped & (generated >= limit)
    prompt = jnp.where(active, at_decode_slots(prompts.prompt, slots), NONE)
    code = jnp.where(stopped, STOPPED, jnp.where(cut, CUT, RUNNING))
    integers = jnp.stack([tokens, prompt, slots.sample, slots.generated, code])
    slots = slots._replace(
        token=jnp.where(active, tokens, 0), generated=jnp.where(active, generated, 0)
    )
    if shape.resident:
        # No prompt slot is filled again, so its finished completions need no count.
        prompt_slot = jnp.where(stopped | cut, NONE, slots.prompt_slot)
        slots = slots._replace(prompt_slot=prompt_slot)
    else:
        slots, prompts = release(slots, prompts, stopped | cut)
    state = state._replace(decode_slots=slots, prompt_slots=prompts)
    return state, integers, jnp.stack([scores[name].reshape(active.shape) for name in SCORES])


@partial(jax.jit, static_argnums=0)
def grow_ring(shape: Shape, own: Cache) -> Cache:
    """Returns a layer's ring buffers of twice the length."""
    return own.grown(shape.prompt_columns).on_mesh()


@partial(jax.jit, static_argnums=0)
def compact_slots(smaller: Shape, state: State) -> State:
    """Moves the active slots into a state of the `smaller` shape, which must have room for them."""
    slots = state.decode_slots
    prompts = state.prompt_slots
    kept = jnp.argsort(~slots.active, axis=1, stable=True)[:, : smaller.decode_slots]
    order = jnp.argsort(prompts.free, axis=1, stable=True)
    rank = jnp.argsort(order, axis=1).astype(jnp.int32)
    in_use = order[:, : smaller.prompt_slots]
    moved = jnp.where(
        slots.active,
        at_decode_slots(rank, slots),
        NONE,
    )
    slots = slots._replace(prompt_slot=moved)
    slots = jax.tree.map(lambda x: picked(x, kept), slots)
    prompts = jax.tree.map(lambda x: picked(x, in_use), prompts)
    prefix = [cache.take_slots(in_use).on_mesh() for cache in state.prefix]
    own_caches = [cache.take_slots(kept).on_mesh() for cache in state.own]
    return State(
        state.step,
        slots,
        prompts,
        slot_addresses(slots, prompts),
        meshes.constrain(taken(state.hidden, in_use), "rows"),
        prefix,
        own_caches,
    )
