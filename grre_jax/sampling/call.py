"""A call of the sampler on the host: it fills prompt slots and resizes caches between programs."""

import dataclasses
from collections.abc import Iterator

import jax
import numpy as np
from jaxtyping import Bool, Int

from grre_jax.sampling.decoding import engine
from grre_jax.sampling.decoding.slots import Shape, Trace
from grre_jax.sampling.decoding.weights import Weights
from grre_jax.sampling.distributions.distribution import SamplingDistribution
from grre_jax.sampling.prompt_batch import PromptBatch, bucket, whole

# Once there are SHRINK times fewer completions left than decode slots, and at least LEAST_SLOTS
# slots, decoding continues in SHRINK times fewer slots.
SHRINK = 4
LEAST_SLOTS = 8
STEPS = 128  # most decode steps between two reports to the host
FIRST_COLUMNS = 64  # tokens that a slot's KV ring buffer has room for at first


class SamplerCall:
    """A call of the sampler, as an iteration over what its programs drew.

    Args:
        weights: of the model.
        batch: the prompts.
        distribution: of each token.
        max_concurrent: largest number of completions decoded side by side; all if None.
        cache_dtype: dtype of keys and values; the activations' if None.
        routes: record the experts of every token.

    Attributes:
        shape: sizes that the programs are compiled for.
        columns: tokens that a slot's ring buffer has room for now.
        prompt_routes: the indices of prompts that were prefilled together, [shards, some], and the
            experts of their tokens, [shards, some, length, layers, k]; of those so far, if they are
            recorded.

    Raises:
        ValueError: max_concurrent is outside its domain.
    """

    def __init__(
        self,
        weights: Weights,
        batch: PromptBatch,
        distribution: SamplingDistribution,
        max_concurrent: int | None = None,
        cache_dtype: str | None = None,
        routes: bool = False,
    ):
        if max_concurrent is not None:
            max_concurrent = whole("max_concurrent", max_concurrent, 1)
        self.weights = weights
        self.batch = batch
        self.distribution = distribution
        self.shape = call_shape(
            shards=batch.shards,
            prompts=batch.prompts_per_shard,
            samples=batch.samples,
            max_concurrent=max_concurrent,
            max_new_tokens=batch.max_new_tokens,
            prompt_tokens=batch.prompts.shape[1],
            cache_dtype=weights.cache_dtype(cache_dtype),
            routes=routes,
        )
        self.prompt_routes: list[tuple[np.ndarray, jax.Array]] = []
        self.columns = min(FIRST_COLUMNS, bucket(batch.max_new_tokens))
        self._next = np.zeros(self.shape.shards, np.int64)
        self._order = 0
        self._state = engine.new_state(self.shape, weights, self.columns)
        self._rotary = engine.prompt_rotary(weights.model.config, self.shape.prompt_tokens)

    def __iter__(self) -> Iterator[Trace]:
        free = np.ones((self.shape.shards, self.shape.prompt_slots), bool)
        first = True
        batch = self.shape.prefill_batch
        while True:
            while (free.any(1) & (self._left > 0)).any():
                self._fill(free, batch)
            counts = np.where(self._left > 0, batch, 0).astype(np.int32)
            # A step of many slots costs as much if few of them still decode.
            few = 0
            if not (self.shape.resident or counts.any() or self.shape.decode_slots < LEAST_SLOTS):
                few = self.shape.decode_slots // SHRINK
            self._state, trace, report = engine.advance(
                self.shape,
                self.weights,
                self._state,
                self.distribution,
                self.batch.eos,
                np.int32(self.batch.max_new_tokens),
                counts,
                np.int32(few),
                first,
            )
            # Before the wait for the report, so that what the caller does with the trace is queued
            # while the device decodes.
            yield trace
            busy, free, generated = jax.device_get(report)
            first = False
            free = np.array(free)  # a copy: JAX's own array cannot be written to
            if not busy and not (self._left > 0).any():
                return
            if 0 < busy <= few:
                # At most `few` completions are left, and no more prompts than that.
                held = min(few, self.shape.prompt_slots)
                smaller = dataclasses.replace(self.shape, decode_slots=few, prompt_slots=held)
                self._state = engine.compact_slots(smaller, self._state)
                self.shape = smaller
            # One more step would overwrite a column that the longest completion still attends to.
            if generated > self.columns:
                # Layer by layer, so that only one layer's old and new buffers exist at once.
                for layer, cache in enumerate(self._state.own):
                    self._state.own[layer] = engine.grow_ring(self.shape, cache)
                self.columns *= 2

    @property
    def _left(self) -> Int[np.ndarray, " shards"]:
        return self.batch.prompts_per_shard - self._next

    def _fill(self, free: Bool[np.ndarray, "shards prompt_slots"], batch: int) -> None:
        """Puts at most `batch` next prompts of every shard into its free prompt slots; clears their
        entries of `free`.
        """
        # Entries that stay out of range only pad: one program puts in any number of prompts.
        which = np.full((self.shape.shards, batch), self.batch.prompts_per_shard, np.int32)
        slots = np.full((self.shape.shards, batch), self.shape.prompt_slots, np.int32)
        for shard, room in enumerate(free):
            seats = np.flatnonzero(room)[: min(batch, self._left[shard])]
            which[shard, : len(seats)] = self._next[shard] + np.arange(len(seats))
            slots[shard, : len(seats)] = seats
            free[shard, seats] = False
            self._next[shard] += len(seats)
        new, tokens = self.batch.prompt_slots(which, self._order)
        self._order += batch
        self._state, routes = engine.prefill(
            self.shape, self.weights, self._state, self._rotary, new, tokens, slots
        )
        if routes is not None:
            self.prompt_routes.append((which, routes))


def call_shape(
    *,
    shards: int,
    prompts: int,
    samples: int,
    max_concurrent: int | None,
    max_new_tokens: int,
    prompt_tokens: int,
    cache_dtype: str,
    routes: bool = False,
) -> Shape:
    """Returns the sizes that the programs of a call are compiled for.

    Args:
        shards: parts that the prompts are cut into.
        prompts: prompts per shard.
        samples: completions per prompt.
        max_concurrent: completions decoded side by side, over all shards; all if None.
        max_new_tokens: longest completion.
        prompt_tokens: room for a prompt.
        cache_dtype: name of the dtype of keys and values.
        routes: record the experts of every token.
    """
    slots = prompts * samples
    if max_concurrent is not None:
        slots = min(slots, -(-max_concurrent // shards))
    resident = slots == prompts * samples
    # Enough that prompts whose last completions still run do not keep others waiting.
    held = max(1, -(-4 * slots // samples)) if samples > 1 else slots + max(1, slots // 4)
    return Shape(
        shards=shards,
        decode_slots=slots,
        prompt_slots=prompts if resident else min(prompts, held),
        samples=samples,
        steps=min(STEPS, bucket(max_new_tokens)),
        resident=resident,
        prompt_tokens=prompt_tokens,
        cache_dtype=cache_dtype,
        routes=routes,
    )
