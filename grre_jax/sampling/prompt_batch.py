"""The prompts of a sampler call, validated and laid out for its programs."""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, UInt32

from grre_jax.models.config import ModelConfig
from grre_jax.parallel import mesh as meshes
from grre_jax.sampling.decoding.shards import picked
from grre_jax.sampling.decoding.slots import KEY_KIND, NONE, PromptSlots

# EOS ids are padded to a multiple of this, so that another number of them rarely compiles.
ENDS = 32
INT32 = 2**31


class PromptBatch(NamedTuple):
    """Prompts and the completions requested of each, cut into shards along the first axis.

    Attributes:
        prompts: [prompts, length] right-padded token ids.
        lengths: [prompts] tokens of each.
        counts: [prompts] completions requested; 0 for prompts that only pad a shape.
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
        arrays = self.prompts, self.lengths, self.counts, self.keys
        return _prompt_slots(arrays, which, np.int32(order))


@jax.jit
def _prompt_slots(arrays: Any, which: Array, order: Array) -> tuple[PromptSlots, Array]:
    shards = which.shape[0]
    parts = [x.reshape(shards, -1, *x.shape[1:]) for x in arrays]
    there = which < parts[0].shape[1]
    index = jnp.where(there, which, 0)
    tokens, lengths, counts, keys = (picked(x, index) for x in parts)
    zero = jnp.zeros_like(index)
    orders = jnp.broadcast_to(order + jnp.arange(which.shape[1], dtype=jnp.int32), which.shape)
    counts = jnp.where(there, counts, 0)
    return PromptSlots(index, lengths, counts, zero, zero, orders, keys), tokens


def make_prompt_batch(
    config: ModelConfig,
    prompts: Sequence[Sequence[int]] | Array,
    group_size: int,
    max_new_tokens: int,
    key: Array,
    *,
    prompt_lengths: Array | None = None,
    eos_ids: Sequence[int] | None = None,
    positions: Any = None,
    attempt: int = 0,
) -> PromptBatch:
    """Validates arguments of `sample` and lays them out.

    Raises:
        ValueError: an argument outside its domain; the message names it.
    """
    mesh = meshes.current()
    shards = 1 if mesh is None else meshes.row_devices(mesh)
    count = len(prompts)
    positions = np.arange(count) if positions is None else positions
    if not isinstance(positions, jax.Array):
        positions = _host_positions(positions, count)
    counts = np.full(count, group_size, np.int32)
    if prompt_lengths is None:
        prompts, prompt_lengths = pad_prompts(prompts, config=config)
        # The padding repeats the last prompt, a valid one, and asks for no completion of it.
        fill = -(-bucket(count, 1) // shards) * shards - count
        columns = bucket(prompts.shape[1]) - prompts.shape[1]
        prompts = np.pad(np.pad(prompts, ((0, 0), (0, columns))), ((0, fill), (0, 0)), "edge")
        prompt_lengths = np.pad(prompt_lengths, (0, fill), "edge")
        positions = np.pad(np.asarray(positions), (0, fill), "edge")
        counts = np.pad(counts, (0, fill))
    elif count % shards:
        # Arrays are taken as they are, and JAX does not cut rows into unequal parts.
        shards = 1
    return PromptBatch(
        prompts=jnp.asarray(prompts, jnp.int32),
        lengths=jnp.asarray(prompt_lengths, jnp.int32),
        counts=jnp.asarray(counts),
        keys=completion_keys(
            checked_key(key), jnp.asarray(positions), jnp.int32(attempt), group_size
        ),
        eos=padded_ends(config.eos_ids if eos_ids is None else eos_ids),
        samples=group_size,
        max_new_tokens=max_new_tokens,
        shards=shards,
        given=count,
    )


def bucket(size: int, least: int = 16) -> int:
    """Returns the next of 1, 2, 3, 4, 6, 8, 12, 16, 24, ... from `least` on, so that another size
    rarely compiles.
    """
    power = max(least, 1 << max(0, size - 1).bit_length())
    # Beyond `least`, less than half of the size is added; powers of two alone may double it.
    return power * 3 // 4 if power % 4 == 0 and power > least and size <= power * 3 // 4 else power


def pad_prompts(
    prompts: Sequence[Sequence[int]], length: int | None = None, config: ModelConfig | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Right-pads token lists.

    Args:
        prompts: lists of token ids.
        length: width of the result; that of the longest list if None.
        config: of the model, whose beginning-of-text token replaces an empty list.

    Returns:
        [prompts, length] token ids and their [prompts] lengths, int32.

    Raises:
        ValueError: something else than lists of token ids, of the model's vocabulary if its config
            is given, an empty one without a token to replace it, or one longer than `length`.

    Examples:
        >>> from grre_jax import sampling
        >>> tokens, lengths = sampling.pad_prompts([[3, 4, 5], [6]])
        >>> tokens.tolist(), lengths.tolist()
        ([[3, 4, 5], [6, 0, 0]], [3, 1])
    """
    begin = [] if config is None or config.start_id is None else [config.start_id]
    vocab = INT32 if config is None else config.vocab_size
    arrays = [np.asarray(prompt if np.size(prompt) else begin) for prompt in prompts]
    lengths = np.array([x.size for x in arrays], np.int32)
    length = int(lengths.max(initial=0)) if length is None else length
    padded = np.zeros((len(arrays), length), np.int32)
    for index, x in enumerate(arrays):
        sized = x.ndim == 1 and x.dtype.kind in "iu" and 0 < x.size <= length
        if not (sized and 0 <= x.min() and x.max() < vocab):
            raise ValueError(
                f"prompts: expected lists of 1 to {length} token ids from 0 to {vocab - 1} (an"
                " empty one needs a model with bos_token_id), got"
                f" {prompts[index]!r:.100} as prompt {index}"
            )
        padded[index, : x.size] = x
    if not arrays:
        raise ValueError("prompts: expected at least one, got none")
    return padded, lengths


def whole(name: str, value: Any, least: int) -> int:
    """Returns the argument as an int of at least `least` that fits 32 bits.

    Raises:
        ValueError: it is something else; the message names the argument.
    """
    if not isinstance(value, int | np.integer) or not least <= value < INT32:
        raise ValueError(f"{name}: expected int from {least} to {INT32 - 1}, got {value!r}")
    return int(value)


def checked_key(key: Array) -> Array:
    """Returns the key.

    Raises:
        ValueError: it is not a typed random key of KEY_KIND.
    """
    if not (isinstance(key, jax.Array) and str(key.dtype) == "key<fry>"):
        raise ValueError(f"key: expected jax.random.key(seed, impl={KEY_KIND!r}), got {key!r}")
    return key


def padded_ends(ids: Sequence[int]) -> Int[Array, " ends"]:
    """Returns the tokens that end a completion, padded with NONE.

    Raises:
        ValueError: something else than token ids.
    """
    ends = np.unique(np.asarray(ids))
    if ends.size and ends.dtype.kind not in "iu":
        raise ValueError(f"eos_ids: expected token ids, got {ids!r}")
    room = max(-(-ends.size // ENDS), 1) * ENDS
    return jnp.asarray(np.pad(ends.astype(np.int32), (0, room - ends.size), constant_values=NONE))


def _host_positions(positions: Any, given: int) -> Int[np.ndarray, " prompts"]:
    array = np.asarray(positions)
    if (
        array.shape != (given,)
        or array.dtype.kind not in "iu"
        # With or without a sign: fold_in reads the same 32 bits.
        or not ((-INT32 <= array) & (array < 2 * INT32)).all()
    ):
        raise ValueError(
            f"positions: expected {given} integers of 32 bits, one per prompt, got {positions!r}"
        )
    return array


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
