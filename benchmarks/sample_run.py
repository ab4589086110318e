"""A call of the sampler taken apart: what it does before the first token of each completion is
drawn, its decode steps, and the memory of its caches.
"""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import jax
import numpy as np

from grre_jax import sampling
from grre_jax.models import Transformer


@dataclasses.dataclass(frozen=True)
class Taken:
    """What a call took.

    Args:
        prefill_seconds: until the first tokens are drawn; with fewer slots than completions, the
            first tokens of the first ones.
        decode_seconds: from there to the end.
        steps: tokens that a row was decoded or waited for, the first included.
        cache_bytes: of keys and values as allocated at the end, of prompts and rows, room that is
            not filled included.
    """

    prefill_seconds: float
    decode_seconds: float
    steps: int
    cache_bytes: int


def taken(
    model: Transformer | sampling.Weights,
    prompts: np.ndarray,
    *,
    group_size: int,
    max_new_tokens: int,
    limits: Any = None,
    max_concurrent: int | None = None,
) -> Taken:
    """Makes the call that `sampling.sample` makes of these arguments.

    Args:
        model: the policy, or its prepared weights.
        prompts: [prompts, length], none padded; nothing ends a completion but its limit.
        group_size, max_new_tokens, limits, max_concurrent: as for `sampling.sample`.
    """
    start = time.perf_counter()
    lengths = np.full(len(prompts), prompts.shape[1], np.int32)
    prepared = sampling.prepare_call(
        model if isinstance(model, sampling.Weights) else sampling.prepared(model),
        prompts,
        sampling.SamplingParams(max_new_tokens=max_new_tokens),
        key=jax.random.key(0),
        group_size=group_size,
        prompt_lengths=lengths,
        eos_ids=(),
        limits=limits,
    )
    call = sampling.SamplerCall(*prepared, max_concurrent=max_concurrent)
    moments = []
    for trace in call:
        jax.block_until_ready(trace)
        moments.append(time.perf_counter())
    return Taken(moments[0] - start, moments[-1] - moments[0], call.steps, call.cache_bytes)
