"""FLOPs of products in HLO: `dot` and `convolution` (the TPU compiler turns the one into the
other).

A multiply and an add are two. What a convolution multiplies with padding or with the holes of a
dilation is not counted, so that a product has the same FLOPs in either spelling. Elementwise
arithmetic and reductions count nothing: on the chips here their cost is the memory they touch.
"""

from __future__ import annotations

import math
import re

from grre_jax.planner.program.hlo import Computation, Instruction, Shape

# Passes over the matrix unit of a float32 product, by the precision asked for.
_PASSES = {"default": 1, "high": 3, "highest": 6}


def product_flops(instruction: Instruction, shapes: list[Shape]) -> float:
    """FLOPs of a dot or a convolution with operands of the given shapes."""
    if instruction.opcode == "dot":
        contracted = [
            int(i) for i in (instruction.attribute("lhs_contracting_dims") or "").split(",") if i
        ]
        return 2.0 * instruction.shape.elements * math.prod(shapes[0].dims[i] for i in contracted)
    return _convolution(instruction, *shapes)


def passes(instruction: Instruction, shapes: list[Shape]) -> int:
    """Returns the number of passes of a product through the matrix unit: more than one for
    float32 operands at a higher precision than the default.
    """
    precision = (instruction.attribute("operand_precision") or "default").split(",")
    wide = all(shape.dtype in ("f32", "f64") for shape in shapes[:2])
    return max(_PASSES[word.strip()] for word in precision) if wide else 1


def _convolution(instruction: Instruction, left: Shape, kernel: Shape) -> float:
    labels = re.match(r"(\w+)_(\w+)->(\w+)", instruction.attribute("dim_labels"))
    at_left, at_kernel, at_out = labels.groups()
    window = instruction.attribute("window") or ""
    spatial = sum(letter.isdigit() for letter in at_out)

    def numbers(name: str, default: str) -> list[str]:
        match = re.search(rf"\b{name}=(\S+)", window)
        return match.group(1).split("x") if match else [default] * spatial

    names = {"size": "1", "stride": "1", "pad": "0_0", "lhs_dilate": "1", "rhs_dilate": "1"}
    windows = zip(*(numbers(*item) for item in names.items()), strict=True)
    pairs = 1
    for i, numerals in enumerate(windows):
        sizes = left.dims[at_left.index(str(i))], instruction.shape.dims[at_out.index(str(i))]
        pairs *= _valid_pairs(*sizes, *(int(numeral.split("_")[0]) for numeral in numerals))
    out = instruction.shape.dims
    sizes = out[at_out.index("b")], out[at_out.index("f")], kernel.dims[at_kernel.index("i")]
    return 2.0 * math.prod(sizes) * pairs


def _valid_pairs(length, out, size, stride, low, left_dilation, kernel_dilation) -> int:
    """Pairs of an output position and a window position that meet an element of the input, along
    one spatial dimension.
    """
    reach = (length - 1) * left_dilation
    count = 0
    for w in range(size):
        # The outputs o with 0 <= o * stride + shift <= reach, on an element and not in a hole.
        shift = w * kernel_dilation - low
        first = max(0, math.ceil(-shift / stride))
        last = min(out - 1, (reach - shift) // stride)
        step = left_dilation // math.gcd(stride, left_dilation)
        met = (o for o in range(first, first + step) if (o * stride + shift) % left_dilation == 0)
        count += len(range(next(met, last + 1), last + 1, step))
    return count


def computation_flops(computations: dict[str, Computation], name: str) -> tuple[float, float]:
    """(FLOPs, FLOPs times passes) of the products inside a fusion's computation, nested fusions
    included.
    """
    total = weighted = 0.0
    computation = computations[name]
    for instruction in computation.instructions.values():
        if instruction.opcode in ("dot", "convolution"):
            shapes = computation.operand_shapes(instruction)
            flops = product_flops(instruction, shapes)
            total, weighted = total + flops, weighted + flops * passes(instruction, shapes)
        elif instruction.opcode == "fusion":
            inner = computation_flops(computations, instruction.called("calls"))
            total, weighted = total + inner[0], weighted + inner[1]
    return total, weighted
