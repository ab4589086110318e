"""The token arrays of packed rows, of all groups of a step at once: a step of a small model is too short for a loop over groups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Int, Shaped

from grre_jax.rollouts.schema import Group
from grre_jax.training.filling import Filling


def packed_rows(groups: Sequence[Group], filling: Filling, carried: Sequence[str] = ()) -> dict[str, Shaped[np.ndarray, "rows length"]]:
    """What has one entry a token, of a step's groups in rows that are filled as `filling` says.

    Args:
        groups: one step's.
        filling: empty rows.
        carried: log-probs of the groups that go along; zeros where a group has none, as an expert's.

    Returns:
        tokens, positions, segment_ids, prefix_ids, response_ids, sources and mask, as `batches.PackedBatch` says, and the carried ones, by name.

    Raises:
        DataError: naming the group, if it does not fit.
    """
    total, length, share = len(filling.used), filling.length, filling.share
    # A piece is a prompt and completions of its group that lie behind it in one row. Of each: the group, the place of its first token among all rows', the
    # prompt's segment, how many completions.
    segments, pieces, numbers, response = [0] * total, [], [], 0
    for index, group in enumerate(groups):
        prompt, lengths = len(group.prompt_tokens), group.lengths.tolist()
        for row, piece in filling.place(group.group_id, prompt, lengths):
            size = prompt + sum(lengths[k] for k in piece)
            segments[row] += 1
            pieces.append((index, row * length + int(filling.used[row]) - size, segments[row], len(piece)))
            segments[row] += len(piece) * share
            numbers += [response + k for k in piece]
        response += len(lengths)
    owner, base, prompt_segment, count = np.array(pieces, np.int32).reshape(-1, 4).T
    prompts, number = [groups[index].prompt_tokens for index in owner], np.array(numbers, np.int32)
    prompt_size = np.array([len(prompt) for prompt in prompts], np.int32)
    prompt_end = base + prompt_size

    # Completions, in the order of the rows: in which piece each is, and where it begins, there and among the groups' tokens.
    lengths = _joined([group.lengths for group in groups])
    size, begin = lengths[number], _starts(lengths)[number]
    piece, first, before = np.repeat(np.arange(len(count)), count), _starts(count), _starts(size)
    start = prompt_end[piece] + before - before[first[piece]]
    segment = prompt_segment[piece] + share * (1 + np.arange(len(number), dtype=np.int32) - first[piece])

    # Tokens: where each is among all rows', and how far into its completion or prompt.
    into, prompt_into = _counted(size), _counted(prompt_size)
    at, prompt_at = np.repeat(start, size) + into, np.repeat(base, prompt_size) + prompt_into
    taken = np.repeat(begin, size) + into

    def rows(dtype: Any, of_completions: np.ndarray, of_prompts: np.ndarray | int = 0) -> np.ndarray:
        found = np.zeros(total * length, dtype)
        found[at], found[prompt_at] = of_completions, of_prompts
        return found.reshape(total, length)

    # A token is predicted where the one before it stands: a completion's first one at its prompt's end.
    sources = np.tile(np.arange(length, dtype=np.int32), total)
    sources[at] = at % length - 1
    sources[start] = (prompt_end[piece] - 1) % length
    prompt_segments = np.repeat(prompt_segment, prompt_size)
    return {
        "tokens": rows(np.int32, _joined([group.tokens for group in groups])[taken], _joined(prompts)),
        "positions": rows(np.int32, np.repeat(prompt_size[piece], size) + into, prompt_into),
        "segment_ids": rows(np.int32, np.repeat(segment, size), prompt_segments),
        "prefix_ids": rows(np.int32, np.repeat(prompt_segment[piece], size), prompt_segments),
        "response_ids": rows(np.int32, np.repeat(number, size)),
        "sources": sources.reshape(total, length),
        "mask": rows(bool, _joined([group.mask for group in groups])[taken]),
        **{name: rows(np.float32, _joined([_or_zeros(group, name) for group in groups])[taken]) for name in carried},
    }


def _joined(arrays: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate(arrays) if arrays else np.zeros(0, np.int32)


def _starts(sizes: Int[np.ndarray, " parts"]) -> Int[np.ndarray, " parts"]:
    """Where each part begins when they lie one after the other."""
    return np.cumsum(sizes, dtype=np.int32) - sizes


def _counted(sizes: Int[np.ndarray, " parts"]) -> Int[np.ndarray, " entries"]:
    """0, 1, 2, ... anew for each part."""
    return np.arange(int(sizes.sum()), dtype=np.int32) - np.repeat(_starts(sizes), sizes)


def _or_zeros(group: Group, name: str) -> Float[np.ndarray, " tokens"]:
    found = getattr(group, name)
    return np.zeros(len(group.tokens), np.float32) if found is None else found
