"""Groups become fixed-shape arrays: prompts and completions packed into rows by segment ids.

A group's completions share one copy of their prompt (see `models.blocked_attention.Visibility`), so a prompt is computed once for its K completions, and
rows are filled with as many groups as fit. Shapes depend on the limits of the run and never on the data: a run compiles one step. Rows that stay
empty form micro-batches of their own, which the step skips.

Where a platform's attention kernel knows segments alone (TPU), prompts need not be shared: each completion then has a copy of its prompt in one segment with it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Bool, Float, Int

from grre_jax.errors import DataError
from grre_jax.objectives import Objective
from grre_jax.parallel import mesh as meshes
from grre_jax.parallel import processes
from grre_jax.rollouts.schema import Group
from grre_jax.training.filling import Filling


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class PackedBatch:
    """One step's data. Token arrays are [micro-batches, rows, row tokens]; response arrays are [responses] of the whole step.

    Attributes:
        tokens, positions, segment_ids, prefix_ids, sources: as in `models.token_logprobs`; segment 0 is padding. prefix_ids is None where prompts are not shared.
        mask: True on the tokens that the policy generated.
        response_ids: which response a token belongs to (0 where the mask is False).
        old_logprobs: behaviour log-probs, or None if any group lacks them.
        rewards: [responses].
        group_ids: [responses]; -1 on padding responses.
        ref_logprobs: log-probs under the reference policy, or None; the step fills them in.
        staleness: [responses] how many versions behind the learner the policy was that sampled, or None if that is not known of all.
    """

    tokens: Int[np.ndarray, "micro rows length"]
    positions: Int[np.ndarray, "micro rows length"]
    segment_ids: Int[np.ndarray, "micro rows length"]
    prefix_ids: Int[np.ndarray, "micro rows length"] | None
    sources: Int[np.ndarray, "micro rows length"]
    mask: Bool[np.ndarray, "micro rows length"]
    response_ids: Int[np.ndarray, "micro rows length"]
    old_logprobs: Float[np.ndarray, "micro rows length"] | None
    rewards: Float[np.ndarray, " responses"]
    group_ids: Int[np.ndarray, " responses"]
    ref_logprobs: Float[np.ndarray, "micro rows length"] | None = None
    staleness: Float[np.ndarray, " responses"] | None = None


@dataclasses.dataclass(frozen=True)
class BatchShape:
    """The static shape of a run's batches.

    Args:
        responses: responses a step, padding included.
        row_tokens: tokens a row.
        rows: rows a micro-batch; a multiple of the devices that rows are sharded over.
        micro_batches: how many micro-batches the largest possible step needs.
        share_prompts: the completions of a group that lie in one row share one copy of their prompt.
    """

    responses: int
    row_tokens: int
    rows: int
    micro_batches: int
    share_prompts: bool = True

    @classmethod
    def of_run(
        cls,
        groups: int,
        samples: int,
        prompt_tokens: int,
        new_tokens: int,
        row_tokens: int,
        rows: int,
        devices: int = 1,
        share_prompts: bool = True,
    ) -> BatchShape:
        """The shape that holds any step of `groups` groups of up to `samples` completions within the token limits.

        `row_tokens=0` takes the size of one whole group (of one prompt and completion where prompts are not shared); `rows=0` takes one micro-batch for the whole step.
        """
        if not share_prompts:  # every completion with its prompt is a group of its own
            groups, samples = groups * samples, 1
        group_tokens = prompt_tokens + samples * new_tokens
        row_tokens = row_tokens or group_tokens
        # The worst case of first-fit packing: a row is left when the next completion no longer fits, each piece with its own copy of the prompt.
        per_row = (row_tokens - prompt_tokens) // new_tokens
        if per_row < 1:
            raise ValueError(
                f"row_tokens={row_tokens} cannot hold one prompt of {prompt_tokens} and one completion of {new_tokens} tokens: raise training.row_tokens or lower the limits"
            )
        whole = row_tokens // group_tokens
        total_rows = math.ceil(groups / whole) if whole else groups * math.ceil(samples / per_row)
        rows = min(rows or total_rows, total_rows)
        rows = math.ceil(rows / devices) * devices
        return cls(groups * samples, row_tokens, rows, math.ceil(total_rows / rows), share_prompts)


def pack(groups: Sequence[Group], shape: BatchShape, *, behavior_logprobs: bool = True, learner_version: int | None = None) -> PackedBatch:
    """Packs the groups of one step.

    Args:
        groups: one step's groups, tokenised, every response with at least one token.
        shape: the run's batch shape.
        behavior_logprobs: carry the stored log-probs; False leaves `old_logprobs` None, for objectives that do not need them.
        learner_version: the version of the policy that trains, in the same count as the data's; None leaves `staleness` None.

    Raises:
        DataError: naming the group, if it does not fit the shape or lacks the behaviour log-probs asked for.
    """
    total_rows, length = shape.micro_batches * shape.rows, shape.row_tokens
    ints = {name: np.zeros((total_rows, length), np.int32) for name in ("tokens", "positions", "segment_ids", "prefix_ids", "response_ids")}
    sources = np.broadcast_to(np.arange(length, dtype=np.int32), (total_rows, length)).copy()
    mask = np.zeros((total_rows, length), bool)
    old = np.zeros((total_rows, length), np.float32) if behavior_logprobs else None
    rewards, group_ids = np.zeros(shape.responses, np.float32), np.full(shape.responses, -1, np.int32)
    filling, segments, response = Filling(total_rows, length, shape.share_prompts), np.zeros(total_rows, int), 0
    for index, group in enumerate(groups):
        if behavior_logprobs and group.behavior_logprobs is None:
            raise DataError(
                f"group {group.group_id} has no behaviour log-probs and this objective needs them: take an objective without a ratio (such as reinforce, red_drop, red_weight, asymre)"
            )
        count = len(group.lengths)
        if response + count > shape.responses:
            raise DataError(
                f"group {group.group_id} brings the step to {response + count} responses, over the limit of {shape.responses}: raise sampling.num_samples"
            )
        rewards[response : response + count], group_ids[response : response + count] = group.rewards, index
        offsets = np.concatenate([[0], np.cumsum(group.lengths)])
        for row, piece in filling.place(group.group_id, len(group.prompt_tokens), group.lengths):
            at = int(filling.used[row]) - len(group.prompt_tokens) - int(group.lengths[piece].sum())
            prompt_end = at + len(group.prompt_tokens)
            segments[row] += 1
            prompt_segment = segments[row]
            ints["tokens"][row, at:prompt_end] = group.prompt_tokens
            ints["positions"][row, at:prompt_end] = np.arange(prompt_end - at)
            ints["segment_ids"][row, at:prompt_end] = ints["prefix_ids"][row, at:prompt_end] = prompt_segment
            start = prompt_end
            for k in piece:
                stop, span = start + int(group.lengths[k]), slice(offsets[k], offsets[k + 1])
                segments[row] += shape.share_prompts
                ints["tokens"][row, start:stop] = group.tokens[span]
                ints["positions"][row, start:stop] = prompt_end - at + np.arange(stop - start)
                ints["segment_ids"][row, start:stop], ints["prefix_ids"][row, start:stop] = segments[row], prompt_segment
                ints["response_ids"][row, start:stop] = response + k
                sources[row, start:stop] = np.arange(start - 1, stop - 1)
                sources[row, start] = prompt_end - 1
                mask[row, start:stop] = group.mask[span]
                if old is not None:
                    old[row, start:stop] = group.behavior_logprobs[span]
                start = stop
        response += count

    def shaped(x):
        return x.reshape(shape.micro_batches, shape.rows, length)

    prefix_ids = ints.pop("prefix_ids")
    return PackedBatch(
        **{name: shaped(x) for name, x in ints.items()},
        prefix_ids=shaped(prefix_ids) if shape.share_prompts else None,
        sources=shaped(sources),
        mask=shaped(mask),
        old_logprobs=None if old is None else shaped(old),
        rewards=rewards,
        group_ids=group_ids,
        staleness=None if learner_version is None else _staleness(groups, shape.responses, learner_version),
    )


def _staleness(groups: Sequence[Group], responses: int, learner_version: int) -> Float[np.ndarray, " responses"] | None:
    """How many versions old each response is, 0 on padding; None where a response does not say which policy sampled it."""
    versions = np.concatenate([group.policy_version for group in groups]) if groups else np.zeros(0, int)
    if (versions < 0).any():
        return None
    return np.concatenate([learner_version - versions, np.zeros(responses - versions.size)]).astype(np.float32)


def place(groups: Sequence[Group], shape: BatchShape, objective: Objective, mesh: Mesh, learner_version: int | None = None) -> PackedBatch:
    """Packs the groups of one step as `pack` does, onto the devices: rows cut over the mesh, responses everywhere.

    The processes of a run all give the same groups; each moves what lies on its own devices.

    Behaviour log-probs come along wherever all groups have them, even if the objective needs none: the metrics then say how far the policy has moved
    from the data.

    Raises:
        DataError: as `pack`.
    """
    batch = pack(
        groups,
        shape,
        behavior_logprobs="old_logprobs" in objective.requires or all(g.behavior_logprobs is not None for g in groups),
        learner_version=learner_version,
    )
    cut, whole = meshes.rows(mesh, axis=1), meshes.replicated(mesh)
    return jax.tree.map(lambda x: processes.put(x, cut if x.ndim == 3 else whole), batch)
