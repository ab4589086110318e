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
from collections.abc import Iterator, Sequence

import jax
import numpy as np
from jaxtyping import Bool, Float, Int, Shaped, UInt16

from grre_jax.errors import DataError
from grre_jax.models.experts import UNKNOWN
from grre_jax.rollouts.schema import STORED_FIELDS, Group

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
        routes: [micro-batches, rows, row tokens, layers, k] experts of each token,
            `models.experts.UNKNOWN` for one without, or None if none are replayed.
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
    routes: UInt16[np.ndarray, "micro rows length layers k"] | None = None


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
        routes: layers and experts of a token that are replayed; empty if none are.
    """

    responses: int
    pack_length: int
    rows: int
    micro_batches: int
    share_prompts: bool = True
    turns: int = 1
    routes: tuple[int, ...] = ()

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
            groups = groups * samples
            samples = 1
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
        # Of groups of the largest size a row takes `whole`, or one of them fills rows of its own.
        groups_per_row = pack_length // group_tokens
        total_rows = (
            math.ceil(groups / groups_per_row)
            if groups_per_row
            else groups * math.ceil(samples / per_row)
        )
        # More rows than a step can fill would be computed empty.
        rows = min(rows or total_rows, total_rows)
        # A sharding cuts the rows evenly over the devices.
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
    experts = np.zeros(shape.responses, bool)
    response = 0
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
    packed = _packed_rows(groups, shape, carried, turns=turns, expert=expert)
    tokens = {
        name: x.reshape(shape.micro_batches, shape.rows, *x.shape[1:]) for name, x in packed.items()
    }
    prefix_ids = tokens.pop("prefix_ids")
    return PackedBatch(
        # None, not zeros: attention is then traced without the term of prefixes.
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


def _routes(group: Group, routes: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Returns the experts of the prompt's tokens and of the completions'."""
    prompt = len(group.prompt_tokens)
    size = prompt + len(group.tokens)
    if len(group.routes) != size * math.prod(routes):
        raise DataError(
            f"group {group.group_id}: routes: expected {routes[1]} experts at each of"
            f" {routes[0]} layers for {size} tokens, which training.replay_routes needs, got"
            f" {len(group.routes)} numbers: sample with sampling.record_routes, by a model of the"
            " same shape"
        )
    # Stored flat: of [tokens, layers, k], the prompt's tokens before the completions'.
    return np.split(group.routes.reshape(size, *routes), [prompt])


def _turn_rewards(
    groups: Sequence[Group], shape: BatchShape
) -> Float[np.ndarray, "responses turns"]:
    """Returns the rewards of turns, NaN behind the last turn. A completion without turns or
    observations is one turn.
    """
    result = np.full((shape.responses, shape.turns), np.nan, np.float32)
    first = 0
    for group in groups:
        counts = group.turn_counts
        rewards = group.turn_rewards
        if not len(counts):
            if not group.mask.all():
                raise DataError(
                    f"group {group.group_id} has observations and an empty field turn_counts, so"
                    " that the turns that this objective needs are unknown: leave the option of"
                    " turns out (objective.options.returns or filter)"
                )
            counts = np.ones(group.num_completions, np.int32)
            rewards = group.rewards
        if counts.max() > shape.turns:
            raise DataError(
                f"group {group.group_id} has a completion of {counts.max()} turns, over"
                f" sampling.max_turns = {shape.turns}: raise the limit"
            )
        # Stored without padding: turn after turn, completion after completion.
        for row in np.split(rewards, np.cumsum(counts)[:-1]):
            result[first, : len(row)] = row
            first += 1
    return result


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
            # `reduceat` needs spans that are not empty: every response has a token (`pack`).
            sums = np.add.reduceat(group.token_versions * group.mask, starts)
            versions = sums / np.maximum(np.add.reduceat(group.mask, starts, dtype=np.int64), 1)
        if (versions < 0).any():
            return None
        ages[first : first + len(versions)] = learner_version - versions
        first += len(versions)
    return ages


def _packed_rows(
    groups: Sequence[Group],
    batch: BatchShape,
    carried: Sequence[str],
    *,
    turns: bool,
    expert: bool,
) -> dict[str, Shaped[np.ndarray, "rows length ..."]]:
    """Packs everything that has one entry per token of a step's groups.

    Args:
        groups: one step's.
        batch: the run's batch shape.
        carried: fields of log-probs to include; zeros for a group without, as an expert's.
        turns: include the number of each token's turn, 0 outside of turns.
        expert: groups of an expert's completions alone need no routes.

    Returns:
        tokens, positions, segment_ids, prefix_ids, response_ids, sources and mask, as in
        `PackedBatch`, and turns, the carried ones and routes, by name.

    Raises:
        DataError: naming the group, if it does not fit.
    """
    routes = batch.routes
    shape = (batch.micro_batches * batch.rows, batch.pack_length)
    filling = Filling(*shape, batch.share_prompts)
    names = ("tokens", "positions", "segment_ids", "prefix_ids", "response_ids")
    packed = {name: np.zeros(shape, np.int32) for name in (*names, *("turns",) * turns)}
    packed["mask"] = np.zeros(shape, bool)
    # Padding is its own source, so that every source is an index within the row.
    packed["sources"] = np.tile(np.arange(filling.length, dtype=np.int32), (shape[0], 1))
    packed |= {name: np.zeros(shape, np.float32) for name in carried}
    if routes:
        # Where no experts are recorded the router chooses.
        packed["routes"] = np.full((*shape, *routes), UNKNOWN, np.uint16)
    segments = [0] * shape[0]
    response = 0
    for group in groups:
        prompt = len(group.prompt_tokens)
        lengths = group.lengths.tolist()
        offsets = group.offsets.tolist()
        of_tokens = {name: getattr(group, name) for name in ("tokens", "mask", *carried)}
        of_prompt = None
        if routes and not (expert and group.is_expert.all()):
            of_prompt, of_tokens["routes"] = _routes(group, routes)
        for row, members in filling.add(group.group_id, prompt, lengths):
            rows = {name: array[row] for name, array in packed.items()}
            end = int(filling.used[row]) - sum(lengths[k] for k in members)  # of the prompt
            span = slice(end - prompt, end)
            segments[row] += 1
            prefix = segments[row]
            rows["tokens"][span] = group.prompt_tokens
            rows["positions"][span] = np.arange(prompt)
            rows["segment_ids"][span] = prefix
            rows["prefix_ids"][span] = prefix
            if of_prompt is not None:
                rows["routes"][span] = of_prompt
            for k in members:
                span = slice(span.stop, span.stop + lengths[k])
                # A completion that shares its prompt is a segment of its own, else it continues the
                # prompt's.
                segments[row] += filling.share
                for name, values in of_tokens.items():
                    if values is not None:
                        rows[name][span] = values[offsets[k] : offsets[k + 1]]
                for number, (first, last) in enumerate(group.turns(k) if turns else ()):
                    rows["turns"][span][first:last] = number
                # Counted from the prompt's end, as if no other completion were in the row.
                rows["positions"][span] = np.arange(prompt, prompt + lengths[k])
                rows["segment_ids"][span] = segments[row]
                rows["prefix_ids"][span] = prefix
                rows["response_ids"][span] = response + k
                # A token is predicted at the one before it: the first one at the prompt's end.
                rows["sources"][span] -= 1
                # Without a prompt `end` may be 0: the remainder keeps the index within the row.
                rows["sources"][span.start] = (end - 1) % filling.length
        response += len(lengths)
    return packed


class Filling:
    """Rows that are filled group by group.

    A row is opened only if no open one has room, so empty rows are the last ones. No group opens
    more rows than it fills alone, and every row but the first begins with at most the rest of one
    group: the rows of the worst case (`BatchShape.of_run`) suffice.

    Args:
        rows: number of rows.
        length: tokens per row.
        share: completions of a group in one row share one copy of the prompt; else each has its
            own.
    """

    def __init__(self, rows: int, length: int, share: bool):
        self.used = np.zeros(rows, int)
        self.length = length
        self.share = share
        self._open = 0

    def add(
        self, group_id: str, prompt: int, lengths: Sequence[int]
    ) -> Iterator[tuple[int, list[int]]]:
        """Adds all completions of a group to the rows.

        Args:
            group_id: for messages.
            prompt: number of tokens of the prompt.
            lengths: number of tokens of each completion.

        Yields:
            (row, numbers of completions), each after the row has taken the prompt and these.

        Raises:
            DataError: naming the group, if a completion is too long for a row, or no row is left.
        """
        # The longest first, while there is room.
        rest = sorted(range(len(lengths)), key=lambda k: (-lengths[k], k))
        while rest:
            candidates = rest if self.share else rest[:1]
            row, members = self._choose(group_id, prompt, candidates, lengths)
            self.used[row] += prompt + sum(lengths[k] for k in members)
            rest = [k for k in rest if k not in members]
            yield row, sorted(members)

    def _choose(
        self, group_id: str, prompt: int, candidates: list[int], lengths: Sequence[int]
    ) -> tuple[int, list[int]]:
        room = self.length - self.used[: self._open]
        size = prompt + sum(lengths[k] for k in candidates)
        largest = int(room.max(initial=-1))
        if largest >= size:
            # Best fit: the row with the least room that suffices; others keep theirs for longer
            # groups.
            fits = np.flatnonzero(room >= size)
            return int(fits[room[fits].argmin()]), candidates
        last = self._open == len(self.used)
        # A second copy of the prompt is worth what it fills, if that is as much as the copy takes.
        if largest > prompt and (last or largest >= 2 * prompt):
            members = _fitting(candidates, lengths, largest - prompt)
            # Without a row to open, any part that fits is taken: the alternative is an error.
            if members and (last or sum(lengths[k] for k in members) >= prompt):
                return int(room.argmax()), members
        members = (
            candidates
            if size <= self.length
            else _fitting(candidates, lengths, self.length - prompt)
        )
        if last or not members:
            raise DataError(
                f"the step's groups do not fit {len(self.used)} rows of {self.length} tokens"
                f" (training.pack_length) at group {group_id}: a prompt or completion is over the"
                " run's limits"
            )
        self._open += 1
        return self._open - 1, members


def _fitting(candidates: list[int], lengths: Sequence[int], room: int) -> list[int]:
    """Returns the completions that fit, taken in their order."""
    members = []
    for k in candidates:
        if lengths[k] <= room:
            members.append(k)
            room -= lengths[k]
    return members


def require_logprobs(group: Group, name: str, where: str) -> None:
    """Refuses a group without log-probs that the run takes from the data.

    Args:
        group: to check.
        name: its field, behavior_logprobs, ref_logprobs or prox_logprobs.
        where: the group, for the message.

    Raises:
        DataError: the group has none.
    """
    if getattr(group, name) is None:
        role = {field: role for role, field in STORED_FIELDS.items()}.get(name, "behavior")
        raise DataError(
            f"{where}: expected {name}, which the fields objective.name and objective.stored of"
            f" this run need, got none. Compute them with `grre rollouts rescore --as {role}`, or"
            " choose an objective without a ratio, such as reinforce, red_drop, red_weight or"
            " asymre"
        )
