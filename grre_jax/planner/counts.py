"""Counts of a compiled program: collectives and the compiler's cycles, loops included.

`cost_analysis` counts the body of a loop once. Here a body counts as often as it runs. The counts
are read from the text of the optimised HLO module, as `jax.stages.Compiled.as_text` returns it.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections import Counter
from typing import NamedTuple

COLLECTIVES = (
    "all-gather",
    "all-reduce",
    "reduce-scatter",
    "all-to-all",
    "collective-permute",
    "ragged-all-to-all",
    "collective-broadcast",
)

_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) (?:\(.*\) -> .*)?\{\s*$")
# Opcodes are in lower case and follow a space; "T(8,128)" and "S(1)" of a layout do neither.
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = (.*?) ([a-z][\w\-]*)\((.*)$")
_CALLED = re.compile(r"\b(?:calls|to_apply|condition|body|\w+_computation)=%?([\w.\-]+)")
_ARRAY = re.compile(r"([a-z]\w*)\[([\d,<=]*)\]")


class Instruction(NamedTuple):
    """One line of a computation.

    Attributes:
        name: without the percent sign.
        opcode: such as "fusion".
        result: arrays, such as "(bf16[4,8]{1,0}, f32[])".
        operands: names, or the literal of a constant.
        attributes: rest of the line.
    """

    name: str
    opcode: str
    result: str
    operands: str
    attributes: str

    def find(self, pattern: str) -> str:
        """Returns the first group of a pattern in the attributes; empty if it does not occur."""
        match = re.search(pattern, self.attributes)
        return match.group(1) if match else ""

    def called(self) -> list[str]:
        """Returns the names of the computations that the instruction runs."""
        names = _CALLED.findall(self.attributes)
        return names or re.findall(r"[\w.\-]+", self.find(r"branch_computations=\{([^}]*)\}"))


Computation = dict[str, Instruction]


def parse(text: str) -> tuple[dict[str, Computation], str]:
    """Reads the text of an HLO module.

    Returns:
        Computations by name, and the name of the entry. The instructions of a computation are by
        name, in their order.
    """
    computations: dict[str, Computation] = {}
    entry = name = ""
    for line in text.splitlines():
        if header := _COMPUTATION.match(line):
            marked, name = header.groups()
            computations[name] = {}
            entry = name if marked else entry
        elif name and (match := _INSTRUCTION.match(line)):
            label, result, opcode, rest = match.groups()
            operands, _, attributes = rest.partition(")")
            computations[name][label] = Instruction(label, opcode, result, operands, attributes)
    return computations, entry


@dataclasses.dataclass
class Counts:
    """Counts of a program, or of a part of it, on one device.

    Attributes:
        cycles: the compiler's estimates, which include neither collectives nor custom kernels; 0 on
            a platform whose compiler estimates none.
        collectives: number by kind.
        moved: bytes of whole arrays by the same: as gathered, or as they are to be reduced.
        unbounded: names of loops whose trips cannot be read, counted once.
    """

    cycles: int = 0
    collectives: Counter = dataclasses.field(default_factory=Counter)
    moved: Counter = dataclasses.field(default_factory=Counter)
    unbounded: set[str] = dataclasses.field(default_factory=set)

    def add(self, other: Counts, times: int = 1) -> None:
        """Adds a part that runs `times` times."""
        self.cycles += times * other.cycles
        for counter in ("collectives", "moved"):
            for key, value in getattr(other, counter).items():
                getattr(self, counter)[key] += times * value
        self.unbounded |= other.unbounded


def count(text: str, idle: tuple[str, ...] = ()) -> Counts:
    """Counts a program.

    Args:
        text: optimised HLO module of one device.
        idle: scopes of conditionals that take their cheapest branch; the others take their most
            expensive one.
    """
    computations, entry = parse(text)
    return _Program(computations, idle).count(entry)


@dataclasses.dataclass
class _Program:
    computations: dict[str, Computation]
    idle: tuple[str, ...]
    counts: dict[str, Counts] = dataclasses.field(default_factory=dict)

    def count(self, name: str) -> Counts:
        """Returns the counts of a computation that runs once."""
        if name not in self.counts:
            self.counts[name] = Counts()
            computation = self.computations[name]
            for instruction in computation.values():
                self._add(self.counts[name], instruction, computation)
        return self.counts[name]

    def _add(self, counts: Counts, instruction: Instruction, computation: Computation) -> None:
        opcode = instruction.opcode
        kind = opcode.removesuffix("-start")
        if opcode in ("while", "conditional", "call", "async-start"):
            self._add_parts(counts, instruction)
        elif kind in COLLECTIVES:
            _add_collective(counts, instruction, kind, computation)
        elif opcode != "fusion" or not self._add_collective_fusion(counts, instruction):
            counts.cycles += int(instruction.find(r'"estimated_cycles":"(\d+)"') or 0)

    def _add_parts(self, counts: Counts, instruction: Instruction) -> None:
        parts = [self.count(name) for name in instruction.called()]
        if instruction.opcode == "conditional":
            place = instruction.find('op_name="([^"]*)"')
            choose = min if any(scope in place for scope in self.idle) else max
            parts = [choose(parts, key=lambda part: (part.cycles, part.moved.total()))]
        elif instruction.opcode == "async-start":
            # It runs beside other instructions, so that its cycles add no time.
            parts = [dataclasses.replace(part, cycles=0) for part in parts]
        trips = self._trips(instruction) if instruction.opcode == "while" else 1
        if not trips:
            counts.unbounded.add(instruction.name)
        for part in parts:
            counts.add(part, trips or 1)

    def _trips(self, loop: Instruction) -> int:
        """Returns the trips of a loop: the compiler's annotation, else the limit in its condition.
        Loops of JAX count from 0 in steps of 1.
        """
        trips = loop.find(r'known_trip_count":\{"n":"(\d+)"')
        return int(trips or self._limit(loop.find(r"condition=%?([\w.\-]+)")))

    def _limit(self, name: str) -> int:
        """Returns the least positive constant of a computation, else of those that it calls."""
        instructions = self.computations[name].values()
        constants = [i.operands for i in instructions if i.opcode == "constant"]
        numbers = [int(text) for text in constants if text.isdigit() and int(text)]
        called = [self._limit(inner) for i in instructions for inner in i.called()]
        return min(numbers or filter(None, called), default=0)

    def _add_collective_fusion(self, counts: Counts, fusion: Instruction) -> bool:
        """Adds the collectives in a fusion: the start or the end of one, or whole ones. Returns
        False if the fusion is to be counted by its own work.
        """
        (name,) = fusion.called()
        inner = self.computations[name]
        collectives = [i for i in inner.values() if i.opcode in COLLECTIVES]
        marks = " ".join(i.attributes for i in inner.values())
        if "AsyncCollectiveDone" in marks:
            return True
        if not collectives:
            return False
        if "AsyncCollectiveStart" in marks:
            collectives = collectives[:1]
        elif "async_collective_fusion_config" in collectives[0].attributes:
            return False  # a collective that started before goes on beside the fusion's work
        for collective in collectives:
            kind = "reduce-scatter" if "all-reduce-scatter" in name else collective.opcode
            _add_collective(counts, collective, kind, inner)
        return True


def _add_collective(
    counts: Counts, instruction: Instruction, kind: str, computation: Computation
) -> None:
    shapes = instruction.result
    if instruction.opcode == "reduce-scatter":
        operands = re.findall(r"[\w.\-]+", instruction.operands)
        shapes = " ".join(computation[name].result for name in operands)
    arrays = _ARRAY.findall(shapes)
    if instruction.opcode.endswith("-start") and kind != "all-reduce" and len(arrays) > 1:
        # (operands, results, contexts), of which the contexts are scalars.
        arrays = [(dtype, dims) for dtype, dims in arrays if dims]
        arrays = arrays[len(arrays) // 2 :]
    counts.collectives[kind] += 1
    counts.moved[kind] += sum(_bytes(dtype, dims) for dtype, dims in arrays)


def _bytes(dtype: str, dims: str) -> int:
    """Returns the size of an array in bytes, without the padding of a layout."""
    bits = int(re.search(r"\d+", f"{dtype} 8").group())  # "pred" has none
    return math.prod(int(number) for number in re.findall(r"\d+", dims)) * bits // 8
