"""Tokens a second and memory of the sampler by the number of completions decoded side by side: a
roofline by arithmetic, which needs no compiler.

A decode step reads the weights once for all of its rows and each row's cache, so wider calls share
the weights until the caches take longer, or memory ends. Completions reach their limit, and caches
are read whole, as in the program that `grre compile` compiles.
"""

from __future__ import annotations

import dataclasses

from grre_jax.planner.abstract import AbstractRun
from grre_jax.planner.hardware import interconnect
from grre_jax.planner.hardware.topology import Topology
from grre_jax.sampling.decoding.state import Shape
from grre_jax.sampling.memory import row_bytes, token_bytes, weights_bytes
from grre_jax.sampling.prompt_batch import bucket
from grre_jax.training.actors.calls import Call, state_bytes

# Times that a decode step's float32 logits pass main memory (counted in a compiled program).
LOGIT_PASSES = 12
# Reductions over the tensor axis in a decode step: after attention and after the SwiGLU.
REDUCTIONS = 2


@dataclasses.dataclass(frozen=True)
class Point:
    """The sampler at one width.

    Attributes:
        rows: completions decoded side by side on the chips that share them.
        seconds: of a decode step.
        tokens_per_second_per_chip: new tokens, without prefill.
        bytes: on one chip, with weights and train state.
        fits: whether these are within what a program may use.
        resource: "FLOPs", "HBM" or "links", which takes most of the step.
    """

    rows: int
    seconds: float
    tokens_per_second_per_chip: float
    bytes: float
    fits: bool
    resource: str


def decode_seconds(run: AbstractRun, slice_: Topology, shape: Shape, rows: int) -> dict[str, float]:
    """Returns the seconds of a decode step by the resource that binds: products with the weights
    take the larger of FLOPs and bytes.

    Args:
        run, slice_: the run on its chips.
        shape: of the call; its number of slots is replaced.
        rows: completions decoded side by side on the chips that share them.
    """
    chip, model, tensor = slice_.chip, run.model, run.mesh.shape["tensor"]
    settings, dtype = run.config.sampling, str(run.model_dtype())
    held = shape.prompt_slots / shape.decode_slots * shape.prompt_tokens
    cached = bucket(settings.max_new_tokens) + held
    flops = rows * model.flops_per_token(0) / tensor / chip.peak_flops
    weights = weights_bytes(model, settings.weight_dtype or dtype, tensor) / chip.hbm_bandwidth
    moved = rows * cached * token_bytes(model, shape.cache_dtype, tensor)
    moved += rows * model.vocab_size / tensor * 4 * LOGIT_PASSES
    links = 0.0
    if tensor > 1:
        stride = run.mesh.shape.get("sequence", 1)  # the only axis of the mesh within tensor's
        group, reduced = range(0, tensor * stride, stride), rows * model.hidden_size * 2
        once = interconnect.seconds("all-reduce", reduced, group, slice_.torus(run.mesh))
        links = REDUCTIONS * model.num_layers * once
    found = {"FLOPs": 0.0, "HBM": moved / chip.hbm_bandwidth, "links": links}
    found["FLOPs" if flops > weights else "HBM"] += max(flops, weights)
    return found


def curve(run: AbstractRun, slice_: Topology, call: Call, capacity: float) -> list[Point]:
    """Returns the sampler at 1, 2, 4, ... prompts a device up to all of a call, and at the call's
    own width.

    Args:
        run, slice_: the run on its chips.
        call: of the run.
        capacity: bytes of a chip that a program may use.
    """
    shape, samples = run.shape_of(call), call.settings.group_size
    everything = call.filled(shape.shards) // shape.shards * samples
    widths = {samples * 2**power for power in range(12) if samples * 2**power < everything}
    return [
        point(run, slice_, call, rows, capacity)
        for rows in sorted(widths | {everything, shape.decode_slots})
    ]


def point(run: AbstractRun, slice_: Topology, call: Call, rows: int, capacity: float) -> Point:
    """Returns the sampler at one width; see `curve`."""
    devices = run.shape_of(call).shards
    shape = dataclasses.replace(
        call, rows=rows, settings=dataclasses.replace(call.settings, max_concurrent=0)
    ).shape(devices, str(run.model_dtype()))
    tensor, seconds = run.mesh.shape["tensor"], decode_seconds(run, slice_, shape, rows)
    row = row_bytes(
        run.model,
        samples=call.settings.group_size,
        prompt_tokens=shape.prompt_tokens,
        max_new_tokens=call.settings.max_new_tokens,
        cache_dtype=shape.cache_dtype,
        tensor=tensor,
    )
    needed = state_bytes(run.config, run.model, run.mesh, run.copies) + rows * row
    dtype = call.settings.weight_dtype or str(run.model_dtype())
    needed += weights_bytes(run.model, dtype, tensor)
    total, chips = sum(seconds.values()), run.mesh.devices.size / devices
    return Point(
        rows, total, rows / total / chips, needed, needed <= capacity, max(seconds, key=seconds.get)
    )


def best(points: list[Point]) -> Point:
    """Returns the fastest point that fits; of those that do not, the smallest."""
    fitting = [point for point in points if point.fits]
    return max(fitting or points[:1], key=lambda point: point.tokens_per_second_per_chip)
