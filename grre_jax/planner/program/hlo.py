"""Reads the text of an optimised HLO module: computations, instructions, shapes with their
layout and memory space, replica groups.

Only what a cost model needs is interpreted; every other attribute of an instruction stays text
(`Instruction.attributes`). The format is the one of XLA's `HloModule::ToString`, as
`jax.stages.Compiled.as_text()` returns it.
"""

from __future__ import annotations

import dataclasses
import math
import re
from functools import cached_property

import numpy as np

# Bits of an element.
BITS = {f"{kind}{bits}": bits for kind in "su" for bits in (2, 4, 8, 16, 32, 64)}
_OTHERS = {
    0: "token opaque",
    4: "f4e2m1fn",
    8: "pred f8e5m2 f8e4m3 f8e4m3fn f8e4m3b11fnuz f8e3m4 f8e5m2fnuz f8e4m3fnuz f8e8m0fnu",
    16: "f16 bf16",
    32: "f32",
    64: "f64 c64",
    128: "c128",
}
BITS |= {name: bits for bits, names in _OTHERS.items() for name in names.split()}


@dataclasses.dataclass(frozen=True)
class Shape:
    """An array, or a tuple of shapes.

    Attributes:
        dtype: element type; "" for a tuple.
        dims: sizes.
        order: dimensions from minor to major.
        tile: the layout's first tile over the minor dimensions, () if there is none.
        space: memory space: 0 is the device's main memory (HBM on a TPU), others are on the chip or
            on the host.
        parts: a tuple's shapes; None for an array.
    """

    dtype: str = ""
    dims: tuple[int, ...] = ()
    order: tuple[int, ...] = ()
    tile: tuple[int, ...] = ()
    space: int = 0
    parts: tuple[Shape, ...] | None = None

    @property
    def elements(self) -> int:
        """Returns the number of elements of an array."""
        return math.prod(self.dims)

    @cached_property
    def bytes(self) -> int:
        """Bytes in memory, the padding of the tiles included; of a tuple, the sum."""
        if self.parts is not None:
            return sum(part.bytes for part in self.parts)
        given = len(self.order) == len(self.dims)
        sizes = [self.dims[i] for i in (self.order if given else reversed(range(len(self.dims))))]
        for i, tile in enumerate(reversed(self.tile)):
            if i < len(sizes):
                sizes[i] = math.ceil(sizes[i] / tile) * tile
        return math.prod(sizes) * BITS[self.dtype] // 8

    @property
    def hbm_bytes(self) -> int:
        """Bytes of what lies in main memory."""
        if self.parts is not None:
            return sum(part.hbm_bytes for part in self.parts)
        return self.bytes if self.space == 0 else 0

    def leaves(self) -> list[Shape]:
        """The arrays, in order."""
        if self.parts is None:
            return [self]
        return [leaf for part in self.parts for leaf in part.leaves()]


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One line of a computation.

    Attributes:
        name: without the percent sign.
        opcode: such as "fusion".
        shape: of the result.
        operands: names.
        literal: what stands between the parentheses where it is no operands: a constant's value, a
            parameter's number.
        attributes: the rest of the line.
    """

    name: str
    opcode: str
    shape: Shape
    operands: tuple[str, ...]
    literal: str
    attributes: str

    def attribute(self, name: str) -> str | None:
        """The text of an attribute: a word, or what stands in its braces, brackets or quotes."""
        match = re.search(rf"(?:^|[ ,]){name}=", self.attributes)
        if match is None:
            return None
        rest = self.attributes[match.end() :]
        if rest[:1] == '"':
            return rest[1 : rest.index('"', 1)]
        return rest[1 : _closing(rest, 0)] if rest[:1] == "{" else re.match(r"[^ ,]*", rest).group()

    def called(self, name: str) -> str:
        """The computation that an attribute names."""
        return self.attribute(name).lstrip("%")

    @property
    def op_name(self) -> str:
        """The place in the program that the instruction comes from, by JAX's name; empty if
        unknown.
        """
        match = re.search(r'op_name="([^"]*)"', self.attributes)
        return match.group(1) if match else ""


@dataclasses.dataclass
class Computation:
    """A list of instructions in their order of execution, where the module is scheduled.

    Attributes:
        name: without the percent sign.
        instructions: by name, in order.
        root: the name of the result.
    """

    name: str
    instructions: dict[str, Instruction] = dataclasses.field(default_factory=dict)
    root: str = ""

    @cached_property
    def users(self) -> dict[str, list[Instruction]]:
        """The instructions that take each value."""
        users: dict[str, list[Instruction]] = {name: [] for name in self.instructions}
        for instruction in self.instructions.values():
            for operand in dict.fromkeys(instruction.operands):
                if operand in users:
                    users[operand].append(instruction)
        return users

    @cached_property
    def parameters(self) -> list[Instruction]:
        """By number."""
        found = [i for i in self.instructions.values() if i.opcode == "parameter"]
        return sorted(found, key=lambda i: int(i.literal))

    def operand_shapes(self, instruction: Instruction) -> list[Shape]:
        """The shapes of an instruction's operands."""
        return [self.instructions[name].shape for name in instruction.operands]


@dataclasses.dataclass
class Module:
    """Computations by name, and which of them is the program."""

    computations: dict[str, Computation]
    entry: str


_ARRAY = re.compile(r"([a-z][a-z0-9]*)\[([0-9,<= ]*)\](?:\{([^{}]*)\})?")
_INSTRUCTION = re.compile(r"^\s+(ROOT )?%?([\w.\-]+) = (.*)$")
_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) (?:\(.*\) -> .*)?\{\s*$")
_NAMES = re.compile(r"%([\w.\-]+)")


def _closing(text: str, start: int) -> int:
    """Returns the index at which the bracket at `start` is closed."""
    pairs, depth, quoted = {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}, 0, False
    for i in range(start, len(text)):
        quoted ^= text[i] == '"' and text[i - 1] != "\\"
        depth += 0 if quoted else pairs.get(text[i], 0)
        if depth == 0:
            return i
    raise ValueError(f"bracket never closed: {text[start : start + 80]!r}")


def parse_shape(text: str) -> Shape:
    """A shape such as `bf16[8,128]{1,0:T(8,128)(2,1)S(1)}` or `(f32[2], s32[])`."""
    text = re.sub(r"/\*.*?\*/", "", text).strip()
    if text.startswith("("):
        parts, depth, start = [], 0, 1
        for i, letter in enumerate(text):
            depth += (letter in "([{") - (letter in ")]}")
            if (letter == "," and depth == 1) or depth == 0:
                if text[start:i].strip():
                    parts.append(parse_shape(text[start:i]))
                start = i + 1
        return Shape(parts=tuple(parts))
    match = _ARRAY.match(text)
    if match is None:
        raise ValueError(f"not a shape: {text[:80]!r}")
    dtype, dims, layout = match.groups()
    if dtype not in BITS:
        raise ValueError(f"element type {dtype!r} of {text[:80]!r} is not known")
    order, _, rest = (layout or "").partition(":")
    tile, space = re.search(r"T\(([\d,]*)\)", rest), re.search(r"S\((\d+)\)", rest)
    dims = tuple(int(d.replace("<=", "")) for d in dims.split(",") if d.strip())
    order = tuple(int(d) for d in order.split(",") if d.strip().isdigit())
    tiles = tuple(int(t) for t in tile.group(1).split(",") if t) if tile else ()
    return Shape(dtype, dims, order, tiles, int(space.group(1)) if space else 0)


def _parse_instruction(name: str, text: str) -> Instruction:
    end = _closing(text, 0) + 1 if text.startswith("(") else _ARRAY.match(text).end()
    opcode, start = text[end:].lstrip().split("(", 1)[0], text.index("(", end)
    stop = _closing(text, start)
    inside = text[start + 1 : stop]
    shape, operands = parse_shape(text[:end]), tuple(_NAMES.findall(inside))
    return Instruction(name, opcode, shape, operands, inside, text[stop + 1 :].lstrip(", "))


def parse(text: str) -> Module:
    """The module of an HLO text.

    Raises:
        ValueError: the text holds no entry computation, or a line that is no HLO.
    """
    computations, current, entry = {}, None, ""
    for line in text.splitlines():
        header = _COMPUTATION.match(line)
        if header:
            current = computations[header.group(2)] = Computation(header.group(2))
            entry = header.group(2) if header.group(1) else entry
            continue
        match = _INSTRUCTION.match(line)
        if match is None or current is None:
            continue
        current.instructions[match.group(2)] = _parse_instruction(match.group(2), match.group(3))
        current.root = match.group(2) if match.group(1) else current.root
    if not entry:
        raise ValueError("the text holds no ENTRY computation: it is no HLO module")
    return Module(computations, entry)


def replica_groups(instruction: Instruction, devices: int) -> list[list[int]]:
    """The groups of device numbers that a collective runs within.

    All of the printed forms are read: lists, `[2,4]<=[4,2]T(1,0)` and `mesh['a'=2,'b'=4] {'b'}`.
    """
    match = re.search(r"replica_groups=", instruction.attributes)
    rest = instruction.attributes[match.end() :] if match else "{}"
    if rest.startswith("{"):
        inner = rest[1 : _closing(rest, 0)]
        found = re.findall(r"\{([\d, ]+)\}", inner)
        groups = [[int(i) for i in group.split(",")] for group in found]
        return groups or [list(range(devices))]
    if rest.startswith("["):
        form = re.match(r"\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", rest)
        sizes = [int(d) for d in form.group(1).split(",")]
        return _iota(form.group(2), form.group(3)).reshape(sizes).tolist()
    return _mesh_groups(rest)


def _iota(dims: str, permutation: str | None) -> np.ndarray:
    sizes = [int(d) for d in dims.split(",")]
    numbers = np.arange(math.prod(sizes)).reshape(sizes)
    return numbers.transpose([int(p) for p in permutation.split(",")]) if permutation else numbers


def _mesh_groups(text: str) -> list[list[int]]:
    """`mesh['a'=2,'b'=4], device_ids=(...) {'a', 'b':(2)2}`: groups over the named axes, or over
    a part (before, size) of one.
    """
    end = _closing(text, 4)
    sizes = {n: int(s) for n, s in re.findall(r"'([^']+)'=(\d+)", text[4:end])}
    rest = text[end + 1 :]
    axes = rest[rest.index("{") :]
    axes = axes[: _closing(axes, 0)]
    order = re.match(r"[^{]*?\(\[([\d,]+)\](?:T\(([\d,]+)\))?\)", rest)
    numbers = _iota(*order.groups()) if order else np.arange(math.prod(sizes.values()))
    found = re.findall(r"'([^']+)':\((\d+)\)(\d+)", axes)
    shape, chosen, parts = [], [], {n: (int(b), int(s)) for n, b, s in found}
    whole = set(re.findall(r"'([^']+)'(?!:)", axes))
    for name, size in sizes.items():
        before, inside = parts.get(name, (1, size))
        shape += [before, inside, size // before // inside]
        chosen += [False, name in whole or name in parts, False]
    numbers = numbers.reshape(shape)
    keep, group = [i for i, c in enumerate(chosen) if not c], [i for i, c in enumerate(chosen) if c]
    width = math.prod(shape[i] for i in group)
    return numbers.transpose(keep + group).reshape(-1, width).tolist()
