"""The prompts of a sampler call, validated and laid out for its programs."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, UInt32

from grre_jax.models.config import ModelConfig
from grre_jax.parallel import mesh as meshes
from grre_jax.sampling.decoding.slots import KEY_KIND, KEY_WORDS, NONE, PromptSlots

# EOS ids are padded to a multiple of this, so that another number of them rarely compiles.
ENDS = 32
INT32 = 2**31


@dataclasses.dataclass(frozen=True)
class PromptBatch:
    """Prompts and the completions requested of each, cut into shards along the first axis.

    Attributes:
        prompts: [prompts, length] right-padded token ids.
        lengths: [prompts] tokens of each.
        counts: [prompts] completions requested; 0 for prompts that only pad a shape.
        limits: [prompts, samples] longest completions, in tokens.
        keys: [prompts, samples, words] random key of each completion, as words of a key of kind
            `slots.KEY_KIND`.
        eos: [ends] tokens that end a completion, padded with NONE.
        samples: most completions per prompt.
        max_new_tokens: longest completion, in tokens.
        shards: parts that the prompts are cut into.
        given: prompts without those that pad a shape.
    """

    prompts: Int[Array, "prompts length"]
    lengths: Int[Array, " prompts"]
    counts: Int[Array, " prompts"]
    limits: Int[Array, "prompts samples"]
    keys: UInt32[Array, "prompts samples words"]
    eos: Int[Array, " ends"]
    samples: int
    max_new_tokens: int
    shards: int
    given: int

    @property
    def prompts_per_shard(self) -> int:
        """Prompts per shard, padding included."""
        return self.prompts.shape[0] // self.shards

    def prompt_slots(
        self, which: Int[np.ndarray, "shards some"], order: int
    ) -> tuple[PromptSlots, Int[Array, "shards some length"]]:
        """Returns prompts of every shard as new prompt slots, and their tokens.

        Args:
            which: [shards, some] indices of prompts; one out of range gives a prompt without
                completions.
            order: number of the first new slot; the others follow it.
        """
        return _prompt_slots(
            (self.prompts, self.lengths, self.counts, self.limits, self.keys),
            which,
            np.int32(order),
        )


@jax.jit
def _prompt_slots(arrays: Any, which: Array, order: Array) -> tuple[PromptSlots, Array]:
    shards = which.shape[0]
    parts = [x.reshape(shards, -1, *x.shape[1:]) for x in arrays]
    there = which < parts[0].shape[1]
    index = jnp.where(there, which, 0)
    tokens, lengths, counts, limits, keys = (jax.vmap(lambda x, i: x[i])(x, index) for x in parts)
    zero = jnp.zeros_like(index)
    orders = jnp.broadcast_to(order + jnp.arange(which.shape[1], dtype=jnp.int32), which.shape)
    counts = jnp.where(there, counts, 0)
    return PromptSlots(index, lengths, counts, zero, zero, orders, limits, keys), tokens


def make_prompt_batch(
    config: ModelConfig,
    prompts: Sequence[Sequence[int]] | Array,
    group_size: int,
    max_new_tokens: int,
    key: Array,
    prompt_lengths: Array | None,
    eos_ids: Sequence[int] | None,
    positions: Array | None,
    attempt: int,
    limits: Any,
) -> PromptBatch:
    """Validates arguments of `sample` and lays them out.

    Raises:
        ValueError: an argument outside its domain; the message names it.
    """
    listed = prompt_lengths is None
    if listed:
        prompts, prompt_lengths = pad_prompts(prompts, start=config.start_id)
        prompts = np.pad(prompts, ((0, 0), (0, bucket(prompts.shape[1]) - prompts.shape[1])))
    group_size = whole("group_size", group_size, 1)
    max_new_tokens = whole("max_new_tokens", max_new_tokens, 1)
    check_prompts(prompts, prompt_lengths, config.vocab_size, key)
    given = len(prompt_lengths)
    limits = _limits(limits, given, group_size, max_new_tokens)
    positions = _positions(positions, given)
    counts = np.full(given, group_size, np.int32)
    mesh = meshes.current()
    shards = 1 if mesh is None else int(np.prod([mesh.shape[axis] for axis in meshes.ROWS]))
    if not isinstance(prompts, jax.Array):
        fill = -given % shards if not listed else -(-bucket(given, 1) // shards) * shards - given
        prompts, prompt_lengths, positions, counts, limits = (
            np.concatenate([x, np.repeat(x[-1:], fill, 0)])
            for x in (prompts, np.asarray(prompt_lengths), np.asarray(positions), counts, limits)
        )
        counts[given:] = 0
    elif given % shards:
        shards = 1
    attempt = jnp.int32(whole("attempt", attempt, 0))
    return PromptBatch(
        prompts=jnp.asarray(prompts, jnp.int32),
        lengths=jnp.asarray(prompt_lengths, jnp.int32),
        counts=jnp.asarray(counts),
        limits=jnp.asarray(limits),
        keys=completion_keys(of_kind(key), jnp.asarray(positions), attempt, group_size),
        eos=padded_ends(config.eos_ids if eos_ids is None else eos_ids),
        samples=group_size,
        max_new_tokens=max_new_tokens,
        shards=shards,
        given=given,
    )


def bucket(size: int, least: int = 16) -> int:
    """Returns the next of 1, 2, 3, 4, 6, 8, 12, 16, 24, ... from `least` on, so that another size
    rarely compiles.
    """
    power = max(least, 1 << max(0, size - 1).bit_length())
    return power * 3 // 4 if power % 4 == 0 and power > least and size <= power * 3 // 4 else power


def pad_prompts(
    prompts: Sequence[Sequence[int]], length: int | None = None, start: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Right-pads token lists.

    Args:
        prompts: lists of token ids.
        length: width of the result; that of the longest list if None.
        start: token that replaces an empty list.

    Returns:
        [prompts, length] token ids and their [prompts] lengths, int32.

    Raises:
        ValueError: something else than lists of token ids, an empty one without `start`, or one
            longer than `length`.

    Examples:
        >>> from grre_jax import sampling
        >>> tokens, lengths = sampling.pad_prompts([[3, 4, 5], [6]])
        >>> tokens.tolist(), lengths.tolist()
        ([[3, 4, 5], [6, 0, 0]], [3, 1])
    """
    try:
        prompts = [np.asarray(p if len(p) or start is None else [start]) for p in prompts]
    except TypeError as error:
        raise ValueError(
            f"prompts must be lists of token ids, one list per prompt, got {prompts!r:.100}"
        ) from error
    for index, prompt in enumerate(prompts):
        if prompt.ndim != 1 or (len(prompt) and prompt.dtype.kind not in "iu"):
            raise ValueError(
                f"prompt {index} must be a list of token ids, whole numbers, got {prompt!r:.100}"
            )
    lengths = np.array([len(p) for p in prompts], np.int32)
    if len(prompts) == 0 or lengths.min() == 0:
        raise ValueError(
            "prompts must be a non-empty list, and an empty prompt needs a model with a"
            " beginning-of-text token (bos_token_id): give it at least one token"
        )
    length = int(lengths.max()) if length is None else length
    if lengths.max() > length:
        raise ValueError(
            f"prompt {int(lengths.argmax())} has {lengths.max()} tokens, over the limit of"
            f" {length}: raise the limit or shorten the prompt"
        )
    padded = np.zeros((len(prompts), length), np.int32)
    for row, prompt in zip(padded, prompts, strict=True):
        row[: len(prompt)] = prompt
    return padded, lengths


def whole(name: str, value: Any, least: int) -> int:
    """Returns the argument as an int of at least `least` that fits 32 bits.

    Raises:
        ValueError: it is something else; the message names the argument.
    """
    try:
        found = operator.index(value)
    except TypeError:
        found = least - 1
    if not least <= found < INT32:
        raise ValueError(
            f"{name} must be a whole number from {least} to {INT32 - 1}, got {value!r}"
        )
    return found


def of_kind(key: Array) -> Array:
    """Returns the key, or one of KEY_KIND made of its bits."""
    if str(jax.random.key_impl(key)) == KEY_KIND:
        return key
    return jax.random.wrap_key_data(jax.random.bits(key, KEY_WORDS, jnp.uint32), impl=KEY_KIND)


def padded_ends(ids: Sequence[int]) -> Int[Array, " ends"]:
    """Returns the tokens that end a completion, padded with NONE.

    Raises:
        ValueError: something else than token ids.
    """
    found = np.asarray(list(dict.fromkeys(np.ravel(ids).tolist())))
    if len(found) and (
        found.dtype.kind not in "iu" or not ((found >= -INT32) & (found < INT32)).all()
    ):
        raise ValueError(f"eos_ids must be token ids, whole numbers, got {ids!r}")
    padding = np.full(-len(found) % ENDS if len(found) else ENDS, NONE, np.int32)
    return jnp.asarray(np.concatenate([found.astype(np.int32), padding]))


def _positions(positions: Any, given: int) -> Any:
    if positions is None:
        return np.arange(given)
    found = positions if isinstance(positions, jax.Array) else np.asarray(positions)
    if found.shape != (given,) or not jnp.issubdtype(found.dtype, jnp.integer):
        raise ValueError(
            f"positions must be [{given}] whole numbers, one per prompt, got {found.dtype} of shape"
            f" {found.shape}"
        )
    if not isinstance(found, jax.Array) and not ((found >= -INT32) & (found < 2 * INT32)).all():
        raise ValueError(f"positions must fit 32 bits, got {found.min()} to {found.max()}")
    return found


def check_prompts(prompts: Any, prompt_lengths: Any, vocab: int, key: Any) -> None:
    """Checks padded prompts, their lengths and the key.

    Raises:
        ValueError: an argument outside its domain; the message names it.
    """
    if getattr(prompts, "ndim", 0) != 2 or prompts.shape[0] != len(prompt_lengths):
        found = getattr(prompts, "shape", type(prompts).__name__)
        raise ValueError(
            "prompts must be [prompts, length] with one length each, or lists without"
            f" prompt_lengths, got {found} and {len(prompt_lengths)} lengths"
        )
    if not isinstance(prompt_lengths, jax.Array) and not all(
        0 < length <= prompts.shape[1] for length in prompt_lengths
    ):
        raise ValueError(
            f"prompt_lengths must lie in 1..{prompts.shape[1]}, the width of prompts, got"
            f" {list(map(int, prompt_lengths))}"
        )
    if not isinstance(prompts, jax.Array):  # not checked if on the device
        outside = np.argwhere((prompts < 0) | (prompts >= vocab))
        outside = [
            at
            for at in outside
            if isinstance(prompt_lengths, jax.Array) or at[1] < prompt_lengths[at[0]]
        ]
        if outside:
            prompt, index = outside[0]
            raise ValueError(
                f"prompt {prompt} has token {prompts[prompt, index]} at index {index}, and the"
                f" model's tokens are 0 to {vocab - 1}: its tokenizer must be the model's"
            )
    if not (
        isinstance(key, jax.Array)
        and jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
        and key.ndim == 0
    ):
        raise ValueError(
            f"key must be one typed random key, such as jax.random.key(0), got {key!r}"
        )


def _limits(
    limits: Any, prompts: int, samples: int, most: int
) -> Int[np.ndarray, "prompts samples"]:
    if limits is None:
        return np.full((prompts, samples), most, np.int32)
    found = np.asarray(limits)
    if (
        found.shape not in ((prompts,), (prompts, samples))
        or found.dtype.kind not in "iu"
        or not ((found >= 1) & (found <= most)).all()
    ):
        raise ValueError(
            f"limits must be [{prompts}] or [{prompts}, {samples}] whole numbers from 1 to"
            f" max_new_tokens = {most}, got {found.dtype} of shape {found.shape}:"
            f" {found.tolist()!r:.100}"
        )
    return np.broadcast_to(found.reshape(prompts, -1), (prompts, samples)).astype(np.int32)


@partial(jax.jit, static_argnames="group_size")
def completion_keys(
    key: Array, positions: Int[Array, " prompts"], attempt: Int[Array, ""], group_size: int
) -> UInt32[Array, "prompts samples words"]:
    """Returns the words of a random key per completion, addressed by position, attempt, sample."""

    def one(position, index):
        return jax.random.key_data(
            jax.random.fold_in(
                jax.random.fold_in(jax.random.fold_in(key, position), attempt), index
            )
        )

    return jax.vmap(lambda p: jax.vmap(lambda i: one(p, i))(jnp.arange(group_size)))(positions)
