"""Costs of custom kernels, by name and shapes.

XLA sees nothing of what is inside them; one that is not listed here has no known cost.

Splash attention (`jax.experimental.pallas.ops.tpu.splash_attention`) visits the blocks of the
causal triangle: with T tokens and blocks of b, a share of (T / b + 1) / (2 T / b) of the square.
Forward there are two products of [T, T] by the width of a head, in the fused backward kernel five.
It reads its operands and writes its results; keys and values are read once for every block of
queries on the way. `models.prefix_attention` visits no more than that, and fewer where completions
do not see each other, which depends on the data; its backward pass is two kernels, of three and
four products.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable

from grre_jax.planner.program.hlo import Instruction, Shape

# Results or hints that cost nothing by themselves; asynchronous collectives are counted where they
# start.
FREE = frozenset(
    "AllocateBuffer ConcatBitcast AssumeGatherIndicesInBound GatherScatterIndicesBitpacked"
    " AsyncCollectiveStart AsyncCollectiveDone Sharding SPMDFullToShardShape SPMDShardToFullShape"
    " LayoutConstraint PrepareAsyncCallStart PrepareAsyncCallDone".split()
)

# Custom calls that rewrite an array: they read their operands and write their results, at most.
MOVING = frozenset({"ZeroCrop"})

# What `models.attention` and `models.prefix_attention` take where it divides the row.
SPLASH_BLOCK, PREFIX_BLOCK = 1024, 512

Cost = tuple[float, float]  # FLOPs, bytes


def _triangle(products: int, largest: int) -> Callable[[list[Shape], list[Shape]], Cost]:
    def cost(operands: list[Shape], results: list[Shape]) -> Cost:
        queries = max((s for s in operands if len(s.dims) >= 3), key=lambda s: s.elements)
        *batch, length, width = queries.dims
        sizes = range(128, min(length, largest) + 1, 128)
        blocks = length // max(size for size in sizes if length % size == 0)
        share = (blocks + 1) / (2 * blocks)
        moved = sum(s.hbm_bytes for s in operands + results)
        keys = sum(
            s.hbm_bytes
            for s in operands
            if len(s.dims) >= 3 and s.dims[-2:] == (length, width) and s is not queries
        )
        flops = products * 2.0 * math.prod(batch) * length * length * width * share
        return flops, moved + keys * max(0.0, (blocks + 1) / 2 - 1)

    return cost


# Name of the kernel, as a pattern, to its cost by the shapes of operands and results.
REGISTRY: dict[str, Callable[[list[Shape], list[Shape]], Cost]] = {
    r"splash_m[hq]a_fwd": _triangle(2, SPLASH_BLOCK),
    r"splash_m[hq]a_dkv": _triangle(5, SPLASH_BLOCK),
    r"splash_m[hq]a_dq": _triangle(3, SPLASH_BLOCK),
    r"prefix_attention_fwd": _triangle(2, PREFIX_BLOCK),
    r"prefix_attention_dkv": _triangle(4, PREFIX_BLOCK),
    r"prefix_attention_dq": _triangle(3, PREFIX_BLOCK),
}


def kernel_name(instruction: Instruction) -> str:
    """The name that a Pallas kernel was given, or the target of another custom call."""
    target = instruction.attribute("custom_call_target") or ""
    if target != "tpu_custom_call":
        return target
    match = re.search(r'"kernel_name":\s*"([^"]+)"|kernel_name = "([^"]+)"', instruction.attributes)
    named = next((g for g in match.groups() if g), "") if match else ""
    return named or instruction.op_name or instruction.name


def kernel_cost(
    instruction: Instruction, operands: list[Shape], results: list[Shape]
) -> Cost | None:
    """FLOPs and bytes of a custom call, or None where nothing is known of it."""
    name = kernel_name(instruction)
    if name in FREE:
        return 0.0, 0.0
    if name in MOVING:
        return 0.0, float(sum(shape.hbm_bytes for shape in operands + results))
    for pattern, cost in REGISTRY.items():
        if re.search(pattern, f"{name} {instruction.op_name} {instruction.name}"):
            return cost(*(Shape(parts=tuple(shapes)).leaves() for shapes in (operands, results)))
    return None
