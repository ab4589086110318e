"""Assignment of prompts to prompt slots and of completions to decode slots.

A prompt slot holds a prompt whose KV cache is kept; a decode slot decodes one completion of one
prompt slot. A decode slot whose completion ends takes the next waiting one, of the prompt slot that
was filled first, so that a prompt's completions run together and its slot is soon free again. All
of this is a few integers per slot, computed on the device inside the decoding loop.

All arrays have the shards of the mesh in front. Each shard has its own slots, and nothing is
exchanged between shards.
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, UInt16, UInt32

from grre_jax.sampling.decoding.attention import SlotAddresses
from grre_jax.sampling.decoding.cache import Cache
from grre_jax.sampling.decoding.shards import picked

NONE = -1  # the prompt slot of an idle decode slot, the prompt of a prompt slot never filled
# Kind and words of completions' random keys: the only one of jax's kinds whose draws for many keys
# at once depend on each key alone.
KEY_KIND = "threefry2x32"
KEY_WORDS = 2

Number = Int[Array, ""]  # of tokens, steps, columns
PerSlot = Int[Array, "shards slots"]
PerPrompt = Int[Array, "shards prompt_slots"]


class DecodeSlots(NamedTuple):
    """Completions that are decoded side by side.

    Attributes:
        prompt_slot: [shards, slots] prompt slot of the completion's prompt; NONE if idle.
        sample: [shards, slots] index of the completion among its prompt's.
        generated: [shards, slots] tokens drawn so far.
        token: [shards, slots] the last token drawn.
    """

    prompt_slot: PerSlot
    sample: PerSlot
    generated: PerSlot
    token: PerSlot

    @property
    def active(self) -> Bool[Array, "shards slots"]:
        """True for slots that decode a completion."""
        return self.prompt_slot != NONE


class PromptSlots(NamedTuple):
    """Prompts whose KV caches are kept.

    Attributes:
        prompt: [shards, prompt_slots] index of the prompt in the call; NONE if never filled.
        length: [shards, prompt_slots] tokens of the prompt.
        requested: [shards, prompt_slots] completions requested of it.
        started, finished: [shards, prompt_slots] completions that have begun and that have ended.
        order: [shards, prompt_slots] when the slot was filled: 0, 1, 2, ...
        keys: [shards, prompt_slots, samples, words] random key of each completion, as words.
    """

    prompt: PerPrompt
    length: PerPrompt
    requested: PerPrompt
    started: PerPrompt
    finished: PerPrompt
    order: PerPrompt
    keys: UInt32[Array, "shards prompt_slots samples words"]

    @property
    def waiting(self) -> PerPrompt:
        """Completions that have not begun."""
        return self.requested - self.started

    @property
    def free(self) -> Bool[Array, "shards prompt_slots"]:
        """True for slots whose completions have all ended."""
        return self.finished == self.requested


def at_decode_slots(x: Array, slots: DecodeSlots) -> Array:
    """Takes [shards, prompt_slots, ...] at each decode slot's prompt slot; any entry if idle."""
    return picked(x, jnp.maximum(slots.prompt_slot, 0))


def at_completions(x: Array, slots: DecodeSlots) -> Array:
    """Takes [shards, prompt_slots, samples, ...] at each decode slot's completion."""
    index = jnp.maximum(slots.prompt_slot, 0) * x.shape[2] + slots.sample
    return picked(x.reshape(x.shape[0], -1, *x.shape[3:]), index)


def assign_all(prompts: PromptSlots, samples: int) -> DecodeSlots:
    """Returns a decode slot per completion, number prompt slot x samples + sample; idle if the
    prompt has fewer completions.
    """
    shards, count = prompts.prompt.shape
    prompt_slot, sample = (
        jnp.broadcast_to(x, (shards, count * samples))
        for x in jnp.divmod(jnp.arange(count * samples, dtype=jnp.int32), samples)
    )
    zero = jnp.zeros_like(prompt_slot)
    mask = sample < jnp.repeat(prompts.requested, samples, axis=1)
    return DecodeSlots(jnp.where(mask, prompt_slot, NONE), sample, zero, zero)


def assign_waiting(slots: DecodeSlots, prompts: PromptSlots) -> tuple[DecodeSlots, PromptSlots]:
    """Gives the waiting completions to idle decode slots, the earliest prompt slot's first."""
    waiting = prompts.waiting
    idle = ~slots.active
    # Waiting completions are numbered in the order of their prompt slots, and idle decode slots
    # from 0; equal numbers belong together.
    earlier = prompts.order[:, None, :] < prompts.order[:, :, None]
    before = jnp.where(earlier, waiting[:, None, :], 0).sum(-1)
    rank = jnp.cumsum(idle, axis=1, dtype=jnp.int32) - 1
    assignment = (
        idle[..., None]
        & (rank[..., None] >= before[:, None])
        & (rank[..., None] < (before + waiting)[:, None])
    )
    begins = assignment.any(-1)
    prompt_slot = assignment.argmax(-1).astype(jnp.int32)
    sample = rank + picked(prompts.started - before, prompt_slot)
    new = DecodeSlots(
        jnp.where(begins, prompt_slot, slots.prompt_slot),
        jnp.where(begins, sample, slots.sample),
        *(jnp.where(begins, 0, x) for x in (slots.generated, slots.token)),
    )
    started = prompts.started + assignment.sum(1, dtype=jnp.int32)
    return new, prompts._replace(started=started)


def release(
    slots: DecodeSlots, prompts: PromptSlots, ended: Bool[Array, "shards slots"]
) -> tuple[DecodeSlots, PromptSlots]:
    """Makes decode slots idle and counts their completions as finished."""
    here = slots.prompt_slot[..., None] == jnp.arange(prompts.prompt.shape[1])
    here = here & ended[..., None]
    slots = slots._replace(prompt_slot=jnp.where(ended, NONE, slots.prompt_slot))
    finished = prompts.finished + here.sum(1, dtype=jnp.int32)
    return slots, prompts._replace(finished=finished)


def slot_addresses(slots: DecodeSlots, prompts: PromptSlots) -> SlotAddresses:
    """Returns the decode slot of each completion and the completion of each decode slot."""
    shards, count, samples = prompts.keys.shape[:3]
    active = slots.active
    completion = slots.prompt_slot * samples + slots.sample
    # Out of range, so that an idle slot takes no completion's entry below.
    completion = jnp.where(active, completion, count * samples)
    numbers = jnp.arange(slots.prompt_slot.shape[1], dtype=jnp.int32)
    slot_of_completion = jax.vmap(
        lambda at: jnp.zeros(count * samples, jnp.int32).at[at].set(numbers, mode="drop")
    )(completion)
    return SlotAddresses(slot_of_completion, jnp.where(slots.active, completion, 0))


RUNNING, STOPPED, CUT = 0, 1, 2  # what a drawn token did to its completion
SCORES = ("sampling", "behavior", "policy")


@dataclasses.dataclass(frozen=True)
class Shape:
    """Sizes that the programs are compiled for.

    Args:
        shards: parts that the slots are cut into, one per group of devices.
        decode_slots: completions decoded side by side, per shard.
        prompt_slots: prompts held, per shard.
        samples: most completions per prompt.
        steps: most decode steps of one call of `advance`.
        resident: every completion has a decode slot from the start, so none is refilled.
        prompt_tokens: room for a prompt.
        cache_dtype: name of the dtype of keys and values.
        routes: record the experts of every token.
    """

    shards: int
    decode_slots: int
    prompt_slots: int
    samples: int
    steps: int
    resident: bool
    prompt_tokens: int
    cache_dtype: str
    routes: bool = False

    @property
    def prompt_in_ring(self) -> bool:
        """True if every decode slot has a prompt to itself, whose cache then precedes the slot's
        ring buffer: one product in place of two.
        """
        return self.resident and self.samples == 1

    @property
    def prefill_batch(self) -> int:
        """Prompts per shard that are prefilled at once: as many as come free together, or all if
        none will be replaced.
        """
        return self.prompt_slots if self.resident else max(1, self.prompt_slots // 4)

    @property
    def prompt_columns(self) -> int:
        """Columns of a slot's own cache that precede its ring buffer."""
        return self.prompt_tokens if self.prompt_in_ring else 0


class State(NamedTuple):
    """Everything that is kept between two programs.

    Attributes:
        step: decode steps so far; the newest column of the ring buffers is step mod their length.
        decode_slots, prompt_slots: assignment of completions and prompts.
        addresses: decode slots by completion and back; both None if all are resident.
        hidden: [shards x prompt_slots, width] hidden state of each prompt's last token, from which
            a completion's first token is drawn.
        prefix: each layer's cache of the prompts; empty if they precede the ring buffers.
        own: each layer's ring buffers of the decode slots' own tokens.
    """

    step: Number
    decode_slots: DecodeSlots
    prompt_slots: PromptSlots
    addresses: SlotAddresses
    hidden: Float[Array, "prompt_slots width"]
    prefix: list[Cache]
    own: list[Cache]


class Trace(NamedTuple):
    """Draws of some steps.

    Attributes:
        integers: [steps, 5, shards, slots] the token, the prompt's index (NONE: nothing was drawn),
            the sample, the token's index in its completion, and RUNNING, STOPPED or CUT.
        scores: [steps, 3, shards, slots] log-probs "sampling", "behavior" and "policy", in nats.
        routes: [steps, shards, slots, layers, k] experts of the token before the drawn one, if it
            is of the same completion; None if they are not recorded.
    """

    integers: Int[Array, "steps five shards slots"]
    scores: Float[Array, "steps three shards slots"]
    routes: UInt16[Array, "steps shards slots layers k"] | None = None
