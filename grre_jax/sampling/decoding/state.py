"""Sizes that the sampler's programs are compiled for, the state between programs, and results."""

import dataclasses
from typing import NamedTuple

from jaxtyping import Array, Float, Int, UInt16

from grre_jax.sampling.decoding.attention import SlotAddresses
from grre_jax.sampling.decoding.cache import Cache
from grre_jax.sampling.decoding.slots import DecodeSlots, Number, PromptSlots

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
