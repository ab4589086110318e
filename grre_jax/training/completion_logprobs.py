"""Log-probs of stored completions under given parameters, for rescoring, the KL to the start and
ranking by likelihood.
"""

import dataclasses
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
from flax import nnx
from jax.sharding import Mesh
from jaxtyping import Array, Float

from grre_jax.models.logprobs import token_logprobs
from grre_jax.parallel import mesh as meshes, processes
from grre_jax.rollouts import Group
from grre_jax.training.data.pack import BatchShape, PackedBatch, pack

# Tokens of a packed row: the cost of attention grows with their square. Rows have 64, 128, 256 or
# 512 tokens, or a multiple of 512, so that data of any lengths compiles few programs.
LEAST_ROW_TOKENS = 64
ROW_TOKENS = 512
TOKENS_PER_CALL = 2048  # enough to keep products large; more only needs memory


@partial(jax.jit, static_argnums=0)
def _score(graph: Any, params: Any, rows: tuple[Array | None, ...], temperature: Array) -> Array:
    return token_logprobs(nnx.merge(graph, params), *rows, temperature)


def score_groups(
    graph: Any,
    params: Any,
    groups: Sequence[Group],
    mesh: Mesh,
    *,
    temperature: float = 1.0,
    groups_per_call: int = 16,
    pack_length: int = 0,
) -> list[Float[np.ndarray, " tokens"]]:
    """Computes the log-prob of every completion token of every group, 0 where the token's mask is
    0. The processes of a run pass the same groups, and each returns all log-probs.

    Args:
        graph, params: the two halves of a model.
        groups: tokenised groups.
        mesh: rows are cut over its data and fsdp axes.
        temperature: divides the logits.
        groups_per_call: groups packed at once.
        pack_length: tokens per packed row; 0 for a size that fits the groups, of few.

    Returns:
        Per group an array parallel to its `tokens`, float32 nats.
    """
    # The completions of an environment that did not begin have no tokens.
    numbers = [i for i, group in enumerate(groups) if len(group.tokens)]
    results = [np.zeros(0, np.float32) for _ in groups]
    if not numbers:
        return results
    scored = [groups[i] for i in numbers]
    shape = _shape_for(scored, groups_per_call, pack_length, meshes.row_devices(mesh))
    for start in range(0, len(scored), groups_per_call):
        chunk = scored[start : start + groups_per_call]
        batch = pack(chunk, shape, behavior_logprobs=False)
        scores = _scores(graph, params, batch, mesh, temperature)
        for i, row in zip(numbers[start:], _by_group(scores, batch, chunk), strict=False):
            results[i] = row
    return results


def _shape_for(
    groups: Sequence[Group], groups_per_call: int, pack_length: int, devices: int
) -> BatchShape:
    """Returns a shape that fits the groups. The programs depend on its rows and their tokens, which
    take few values.
    """
    prompt = max(len(g.prompt_tokens) for g in groups)
    new = max(int(g.lengths.max()) for g in groups)
    if not pack_length:
        # A row must hold the longest completion with its prompt. Beyond that short rows pack more
        # tightly: a long group is split over several.
        longest = max(len(g.prompt_tokens) + len(g.tokens) for g in groups)
        pack_length = _row_size(max(prompt + new, min(longest, ROW_TOKENS)))
    samples = max(len(g.lengths) for g in groups)
    whole = BatchShape.of_run(groups_per_call, samples, prompt, new, pack_length, 0)
    most = max(1, TOKENS_PER_CALL // pack_length)
    rows = min(_power_of_two(whole.rows), 1 << most.bit_length() - 1)
    rows = -(-rows // devices) * devices
    return dataclasses.replace(whole, rows=rows, micro_batches=-(-whole.rows // rows))


def _row_size(tokens: int) -> int:
    """Returns the least size of a row that holds this many tokens."""
    if tokens > ROW_TOKENS:
        return -(-tokens // ROW_TOKENS) * ROW_TOKENS
    return max(LEAST_ROW_TOKENS, _power_of_two(tokens))


def _power_of_two(least: int) -> int:
    return 1 << (least - 1).bit_length()


def _scores(
    graph: Any, params: Any, batch: PackedBatch, mesh: Mesh, temperature: float
) -> Float[np.ndarray, " places"]:
    """Returns the log-probs of the batch's tokens, without those of empty micro-batches at its
    end.
    """
    pieces = []
    for i, mask in enumerate(batch.mask):
        if not mask.any():
            break
        fields = (
            batch.tokens[i],
            batch.positions[i],
            batch.segment_ids[i],
            batch.prefix_ids[i],
            batch.sources[i],
        )
        rows = tuple(processes.put(x, meshes.rows(mesh)) for x in fields)
        with meshes.use(mesh):
            scores = _score(graph, params, rows, np.float32(temperature))
        pieces.append(processes.fetch(scores))
    return np.concatenate(pieces).reshape(-1)


def _by_group(
    scores: Float[np.ndarray, " places"], batch: PackedBatch, groups: Sequence[Group]
) -> list[Float[np.ndarray, " tokens"]]:
    """Returns the scores of a batch as arrays parallel to its groups' tokens."""
    mask = batch.mask.reshape(-1)[: scores.size]
    owner = batch.response_ids.reshape(-1)[: scores.size]
    # A response's tokens are in one row and in order; responses are numbered in the order of the
    # groups.
    order = np.argsort(np.where(mask, owner, np.iinfo(np.int32).max), kind="stable")
    values = scores[order[: int(mask.sum())]]
    at = 0
    results = []
    for group in groups:
        generated = group.mask.astype(bool)
        found = np.zeros(len(group.tokens), np.float32)
        found[generated] = values[at : at + int(generated.sum())]
        at += int(generated.sum())
        results.append(found)
    return results
