"""Stage 3 of the road of the data, packing.

In: the groups of a step, tokenised, and the run's `BatchShape`. Out: a `PackedBatch` of NumPy
arrays of that fixed shape, prompts and completions packed into rows by segment ids.

A group's completions share one copy of their prompt (see `models.blocked_attention.Visibility`), so
a prompt is computed once for its K completions, and rows are filled with as many groups as fit.
Shapes depend on the limits of the run and never on the data: a run compiles one step. Empty rows
are the last ones, and the step skips micro-batches without tokens.

Where a row holds one completion there is nothing to share: `share_prompts` False gives each
completion a copy of its prompt in its own segment, and attention needs no prefixes.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Bool, Float, Int, Shaped

from grre_jax.errors import DataError
from grre_jax.rollouts.schema import Group
from grre_jax.training.data.checks import require_logprobs
from grre_jax.training.data.row_filling import Filling

_TokenInts = Int[np.ndarray, "micro rows length"]
_TokenFloats = Float[np.ndarray, "micro rows length"]
_Responses = Float[np.ndarray, " responses"]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class PackedBatch:
    """One step's data.

    Token arrays are [micro-batches, rows, row tokens]; response arrays are [responses] of the whole
    step.

    Attributes:
        tokens, positions, segment_ids, prefix_ids, sources: as in `models.token_logprobs`; segment
            0 is padding. prefix_ids is None where prompts are not shared.
        mask: True on the tokens that the policy generated.
        response_ids: the response that a token belongs to; 0 if the mask is False.
        old_logprobs: behaviour log-probs, or None if any group lacks them.
        rewards: [responses].
        group_ids: [responses]; -1 on padding responses.
        ref_logprobs: log-probs under the reference policy, or None; the step fills them in.
        prox_logprobs: log-probs under the proximal policy, or None if that is the policy at the
            start of the update.
        staleness: [responses] age in versions of the policy that sampled, the mean over the tokens
            of several; None if any is unknown.
        expert: [responses] True for an expert's, or None if the objective does not use it.
        components: [responses] each, the components of the reward that the objective reads.
        turns: the turn that a token belongs to, from 0, or None if the objective reads none.
        turn_rewards: [responses, turns], NaN behind the last turn of each, or None.
    """

    tokens: _TokenInts
    positions: _TokenInts
    segment_ids: _TokenInts
    prefix_ids: _TokenInts | None
    sources: _TokenInts
    mask: Bool[np.ndarray, "micro rows length"]
    response_ids: _TokenInts
    old_logprobs: _TokenFloats | None
    rewards: _Responses
    group_ids: Int[np.ndarray, " responses"]
    ref_logprobs: _TokenFloats | None = None
    prox_logprobs: _TokenFloats | None = None
    staleness: _Responses | None = None
    expert: Bool[np.ndarray, " responses"] | None = None
    components: tuple[_Responses, ...] = ()
    turns: _TokenInts | None = None
    turn_rewards: Float[np.ndarray, "responses turns"] | None = None


@dataclasses.dataclass(frozen=True)
class BatchShape:
    """The static shape of a run's batches.

    Args:
        responses: responses per step, padding included.
        pack_length: tokens per row.
        rows: rows per micro-batch; a multiple of the devices that rows are sharded over.
        micro_batches: micro-batches that the largest possible step needs.
        share_prompts: the completions of a group in one row share one copy of their prompt.
        turns: largest number of turns of a response.
    """

    responses: int
    pack_length: int
    rows: int
    micro_batches: int
    share_prompts: bool = True
    turns: int = 1

    @classmethod
    def of_run(
        cls,
        groups: int,
        samples: int,
        prompt_tokens: int,
        new_tokens: int,
        pack_length: int,
        rows: int,
        devices: int = 1,
        share_prompts: bool = True,
        turns: int = 1,
    ) -> BatchShape:
        """Returns the shape that fits any step of `groups` groups of up to `samples` completions
        within the token limits.

        Args:
            groups: per step.
            samples: completions per group.
            prompt_tokens: largest number of tokens of a prompt.
            new_tokens: largest number of tokens of a completion.
            pack_length: tokens per row; 0 for one whole group (one prompt and completion if prompts
                are not shared).
            rows: rows per micro-batch; 0 for one micro-batch per step.
            devices: that rows are sharded over.
            share_prompts, turns: as the fields.

        Raises:
            ValueError: a row cannot take one prompt and completion.
        """
        if not share_prompts:  # every completion with its prompt is a group of its own
            groups, samples = groups * samples, 1
        group_tokens = prompt_tokens + samples * new_tokens
        pack_length = pack_length or group_tokens
        # The worst case of first-fit packing: a row is closed when the next completion no longer
        # fits, and each piece has its own copy of the prompt.
        per_row = (pack_length - prompt_tokens) // new_tokens
        if per_row < 1:
            raise ValueError(
                f"pack_length={pack_length} cannot hold one prompt of {prompt_tokens} and one"
                f" completion of {new_tokens} tokens: raise training.pack_length or lower the"
                " limits"
            )
        whole = pack_length // group_tokens
        total_rows = math.ceil(groups / whole) if whole else groups * math.ceil(samples / per_row)
        rows = min(rows or total_rows, total_rows)
        rows = math.ceil(rows / devices) * devices
        micro_batches = math.ceil(total_rows / rows)
        return cls(groups * samples, pack_length, rows, micro_batches, share_prompts, turns)


def pack(
    groups: Sequence[Group],
    shape: BatchShape,
    *,
    behavior_logprobs: bool = True,
    learner_version: int | None = None,
    expert: bool = False,
    stored: Sequence[str] = (),
    components: Sequence[str] = (),
    turns: bool = False,
) -> PackedBatch:
    """Packs the groups of one step.

    Args:
        groups: one step's groups, tokenised, every response with at least one token.
        shape: the run's batch shape.
        behavior_logprobs: carry the stored log-probs; False leaves `old_logprobs` None.
        learner_version: the version of the policy that trains, in the same count as the data's;
            None leaves `staleness` None.
        expert: mark the responses that are an expert's. A group of an expert's alone then needs no
            behaviour log-probs: no policy of this run sampled it.
        stored: the fields of the groups, of ref_logprobs and prox_logprobs, that the batch carries.
        components: of the reward that the batch carries, by name.
        turns: carry the turns of tokens, and the rewards of turns.

    Raises:
        DataError: naming the group, if it does not fit the shape or lacks what the batch carries.
    """
    carried = ("behavior_logprobs",) * behavior_logprobs + tuple(stored)
    rewards = np.zeros(shape.responses, np.float32)
    carried_components = tuple(np.zeros(shape.responses, np.float32) for _ in components)
    group_ids = np.full(shape.responses, -1, np.int32)
    experts, response = np.zeros(shape.responses, bool), 0
    for index, group in enumerate(groups):
        end = response + len(group.lengths)
        needs = behavior_logprobs and not (expert and group.is_expert.all())
        for name in carried if needs else stored:
            require_logprobs(group, name, f"group {group.group_id}")
        if end > shape.responses:
            raise DataError(
                f"group {group.group_id} brings the step to {end} responses, over the limit of"
                f" {shape.responses}: raise sampling.group_size"
            )
        rewards[response:end] = group.rewards
        group_ids[response:end] = index
        experts[response:end] = group.is_expert
        for values, name in zip(carried_components, components, strict=True):
            if name not in group.components:
                raise DataError(
                    f"group {group.group_id} has no reward component {name!r}, which field"
                    f" objective.options.components names; it has {sorted(group.components)}"
                )
            values[response:end] = group.components[name]
        response = end
    filling = Filling(shape.micro_batches * shape.rows, shape.pack_length, shape.share_prompts)
    tokens = {
        name: x.reshape(shape.micro_batches, shape.rows, shape.pack_length)
        for name, x in packed_rows(groups, filling, carried + ("turns",) * turns).items()
    }
    prefix_ids = tokens.pop("prefix_ids")
    return PackedBatch(
        prefix_ids=prefix_ids if shape.share_prompts else None,
        old_logprobs=tokens.pop("behavior_logprobs", None),
        **tokens,
        rewards=rewards,
        group_ids=group_ids,
        staleness=_staleness(groups, shape.responses, learner_version),
        expert=experts if expert else None,
        components=carried_components,
        turn_rewards=_turn_rewards(groups, shape) if turns else None,
    )


def _turn_rewards(
    groups: Sequence[Group], shape: BatchShape
) -> Float[np.ndarray, "responses turns"]:
    """Returns the rewards of turns, NaN where there is none. A completion without turns or
    observations is one turn.
    """
    found, first = np.full((shape.responses, shape.turns), np.nan, np.float32), 0
    for group in groups:
        counts, rewards = group.turn_counts, group.turn_rewards
        if not len(counts):
            if not group.mask.all():
                raise DataError(
                    f"group {group.group_id} has observations and an empty field turn_counts, so"
                    " that the turns that this objective needs are unknown: import its source again"
                    " with grre rollouts import --tokenizer, or leave the option of turns out"
                    " (objective.options.returns or filter)"
                )
            counts, rewards = np.ones(group.num_completions, np.int32), group.rewards
        if counts.max() > shape.turns:
            raise DataError(
                f"group {group.group_id} has a completion of {counts.max()} turns, over"
                f" sampling.max_turns = {shape.turns}: raise the limit"
            )
        found[first + np.repeat(np.arange(len(counts)), counts), _counted(counts)] = rewards
        first += len(counts)
    return found


def _turns_of(group: Group) -> Int[np.ndarray, " tokens"]:
    """Returns the number of each token's turn in its completion, 0 outside of turns."""
    found = np.zeros(len(group.tokens), np.int32)
    if not len(group.turn_counts):
        return found
    starts, ends = group.turn_tokens.reshape(-1, 2).T
    starts, sizes = starts + np.repeat(group.offsets[:-1], group.turn_counts), ends - starts
    at = np.repeat(starts, sizes) + _counted(sizes)
    found[at] = np.repeat(_counted(group.turn_counts), sizes)
    return found


def _staleness(
    groups: Sequence[Group], responses: int, learner_version: int | None
) -> _Responses | None:
    """Returns the age of each response in versions, 0 on padding; None if the version of the
    learner or of any response is unknown.
    """
    if learner_version is None:
        return None
    ages = np.zeros(responses, np.float32)
    first = 0
    for group in groups:
        versions = group.policy_version
        if len(group.token_versions) and not (group.token_versions < 0).any():
            # The mean over the sampled tokens, which have versions of their own.
            starts = group.offsets[:-1]
            sums = np.add.reduceat(group.token_versions * group.mask, starts)
            versions = sums / np.maximum(np.add.reduceat(group.mask, starts, dtype=np.int64), 1)
        if (versions < 0).any():
            return None
        ages[first : first + len(versions)] = learner_version - versions
        first += len(versions)
    return ages


def _pieces(groups: Sequence[Group], filling: Filling) -> tuple[Int[np.ndarray, "*pieces"], ...]:
    """Fills the rows with the groups, in order.

    Returns:
        Of each piece, a prompt with completions of its group behind it in one row, in the order of
        packing: index of the group; address of the first token among those of all rows; segment of
        the prompt in its row; number of completions. And the numbers of the responses, piece after
        piece.

    Raises:
        DataError: naming the group, if it does not fit.
    """
    segments, pieces, responses, first = [0] * len(filling.used), [], [], 0
    for index, group in enumerate(groups):
        prompt, lengths = len(group.prompt_tokens), group.lengths.tolist()
        for row, taken in filling.add(group.group_id, prompt, lengths):
            size = prompt + sum(lengths[k] for k in taken)
            start = row * filling.length + int(filling.used[row]) - size
            segments[row] += 1
            pieces.append((index, start, segments[row], len(taken)))
            segments[row] += len(taken) * filling.share
            responses += [first + k for k in taken]
        first += len(lengths)
    columns = np.array(pieces, np.int32).reshape(-1, 4).T
    return *columns, np.array(responses, np.int32)


def packed_rows(
    groups: Sequence[Group], filling: Filling, carried: Sequence[str] = ()
) -> dict[str, Shaped[np.ndarray, "rows length"]]:
    """Packs everything that has one entry per token of a step's groups.

    Args:
        groups: one step's.
        filling: empty rows.
        carried: "turns" and log-probs of the groups to include; zeros for a group without, as an
            expert's.

    Returns:
        tokens, positions, segment_ids, prefix_ids, response_ids, sources and mask, as in
        `PackedBatch`, and the carried ones, by name.

    Raises:
        DataError: naming the group, if it does not fit.
    """
    total, length, share = len(filling.used), filling.length, filling.share
    owner, base, prompt_segment, count, number = _pieces(groups, filling)
    prompts = [groups[index].prompt_tokens for index in owner]
    prompt_size = np.array([len(prompt) for prompt in prompts], np.int32)
    prompt_end = base + prompt_size

    # Completions, in the order of the rows: the piece of each, and the address of its first token
    # among the rows' tokens and among the groups'.
    lengths = _joined([group.lengths for group in groups])
    size, begin = lengths[number], _starts(lengths)[number]
    piece, first, before = np.repeat(np.arange(len(count)), count), _starts(count), _starts(size)
    start = prompt_end[piece] + before - before[first[piece]]
    rank = np.arange(len(number), dtype=np.int32) - first[piece]  # within its piece
    segment = prompt_segment[piece] + share * (1 + rank)

    # Tokens: the address of each among the rows', and its index in its completion or prompt.
    into, prompt_into = _counted(size), _counted(prompt_size)
    at, prompt_at = np.repeat(start, size) + into, np.repeat(base, prompt_size) + prompt_into
    taken = np.repeat(begin, size) + into

    def rows(dtype: Any, of_completions: np.ndarray, of_prompts: Any = 0) -> np.ndarray:
        found = np.zeros(total * length, dtype)
        found[at], found[prompt_at] = of_completions, of_prompts
        return found.reshape(total, length)

    # A token is predicted at the one before it: a completion's first one at its prompt's end.
    sources = np.tile(np.arange(length, dtype=np.int32), total)
    sources[at] = at % length - 1
    sources[start] = (prompt_end[piece] - 1) % length
    segments = np.repeat(prompt_segment, prompt_size)
    tokens = _joined([group.tokens for group in groups])
    mask = _joined([group.mask for group in groups])
    packed = {
        "tokens": rows(np.int32, tokens[taken], _joined(prompts)),
        "positions": rows(np.int32, np.repeat(prompt_size[piece], size) + into, prompt_into),
        "segment_ids": rows(np.int32, np.repeat(segment, size), segments),
        "prefix_ids": rows(np.int32, np.repeat(prompt_segment[piece], size), segments),
        "response_ids": rows(np.int32, np.repeat(number, size)),
        "sources": sources.reshape(total, length),
        "mask": rows(bool, mask[taken]),
    }
    for name in carried:
        values = _joined([_of_tokens(group, name) for group in groups])
        packed[name] = rows(np.int32 if name == "turns" else np.float32, values[taken])
    return packed


def _joined(arrays: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate(arrays) if arrays else np.zeros(0, np.int32)


def _starts(sizes: Int[np.ndarray, " parts"]) -> Int[np.ndarray, " parts"]:
    """Returns the index of each part's first entry in their concatenation."""
    return np.cumsum(sizes, dtype=np.int32) - sizes


def _counted(sizes: Int[np.ndarray, " parts"]) -> Int[np.ndarray, " entries"]:
    """Returns 0, 1, 2, ... of each part, concatenated."""
    return np.arange(int(sizes.sum()), dtype=np.int32) - np.repeat(_starts(sizes), sizes)


def _of_tokens(group: Group, name: str) -> Shaped[np.ndarray, " tokens"]:
    found = _turns_of(group) if name == "turns" else getattr(group, name)
    return np.zeros(len(group.tokens), np.float32) if found is None else found
