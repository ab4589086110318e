"""Completions as they grow."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Int

from grre_jax.models.transformer import Transformer
from grre_jax.sampling.call import SamplerCall
from grre_jax.sampling.decoding.slots import NONE
from grre_jax.sampling.decoding.state import SCORES
from grre_jax.sampling.decoding.weights import Weights
from grre_jax.sampling.sampler import check_decode, prepare_call
from grre_jax.sampling.text.stop_strings import StopStrings
from grre_jax.sampling_params import SamplingParams


@dataclasses.dataclass(frozen=True)
class Piece:
    """New tokens of a completion.

    Attributes:
        prompt: index of the prompt, as given.
        sample: index of the completion among the prompt's.
        tokens: [new] token ids.
        logprobs: [new] log-prob of each in nats, by "sampling", "behavior" and "policy".
        finish: "" before the last piece, then "stop" or "length".
    """

    prompt: int
    sample: int
    tokens: np.ndarray
    logprobs: dict[str, np.ndarray]
    finish: str


def stream(
    model: Transformer | Weights,
    prompts: Sequence[Sequence[int]] | Int[Array, "prompts length"],
    params: SamplingParams,
    *,
    key: Array,
    steps: int = 16,
    max_concurrent: int | None = None,
    cache_dtype: str | None = None,
    decode: Callable[[list[int]], str] | None = None,
    **options: Any,
) -> Iterator[list[Piece]]:
    """Draws the completions of `sample`, piece by piece, in one process.

    Args:
        model, prompts, params, key, max_concurrent, cache_dtype, decode: as for `sample`. A
            completion that contains a stop string gives up its slot after the piece with it.
        steps: most decode steps between two pieces of a completion.
        **options: group_size, prompt_lengths, eos_ids, positions, attempt and limits, as for
            `sample`.

    Returns:
        An iterator over the pieces of each program, in the order of the decode slots; none is
        empty.

    Raises:
        ValueError: as for `sample`, or `steps` is below 1.
    """
    # Not a generator itself: a bad argument raises at the call.
    if steps < 1:
        raise ValueError(f"steps must be at least 1, got {steps}")
    check_decode(params, decode)
    prepared = prepare_call(model, prompts, params, key, **options)
    call = SamplerCall(*prepared, max_concurrent, cache_dtype, steps)
    return _pieces(call, StopStrings(params.stop, decode) if params.stop else None)


def _pieces(call: SamplerCall, stops: StopStrings | None) -> Iterator[list[Piece]]:
    so_far: dict[tuple[int, int], list[int]] = {}
    for trace in call:
        integers, scores = (np.asarray(x) for x in jax.device_get((trace.integers, trace.scores)))
        ended = np.zeros((call.shape.shards, call.shape.decode_slots), bool)
        pieces = []
        for shard, slot in np.ndindex(*ended.shape):
            drawn = integers[:, :, shard, slot]
            for steps in _by_completion(drawn):
                prompt, drawn_sample = int(drawn[steps[0], 1]), int(drawn[steps[0], 2])
                prompt += shard * call.batch.prompts_per_shard
                tokens, finish = drawn[steps, 0], ("", "stop", "length")[drawn[steps[-1], 4]]
                before = so_far.setdefault((prompt, drawn_sample), [])
                before.extend(tokens.tolist())
                kept = stops and stops(prompt, drawn_sample, np.asarray(before, np.int32))
                if kept is not None:
                    ended[shard, slot] = not finish
                    # Earlier pieces cannot be taken back, and a piece has at least one token.
                    earlier = len(before) - len(tokens)
                    steps, finish = steps[: max(1, kept - earlier)], "stop"
                logprobs = {name: scores[steps, i, shard, slot] for i, name in enumerate(SCORES)}
                pieces.append(Piece(prompt, drawn_sample, drawn[steps, 0], logprobs, finish))
                if finish:
                    del so_far[prompt, drawn_sample]
        if ended.any():
            call.release(ended)
        if pieces:
            yield pieces


def _by_completion(drawn: Int[np.ndarray, "steps five"]) -> list[Int[np.ndarray, " some"]]:
    """Returns the steps at which a slot drew tokens, grouped by completion."""
    live = np.flatnonzero(drawn[:, 1] != NONE)
    begins = np.flatnonzero(drawn[live, 3] == 0)
    return [part for part in np.split(live, begins) if len(part)]
