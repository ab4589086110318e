"""Trip counts of the `while` loops of an optimised HLO module: the compiler's annotation, else
from bound, start and step.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection

from grre_jax.planner.program.hlo import Computation, Instruction

_THROUGH = frozenset("copy bitcast convert copy-start copy-done reshape".split())


class Trips:
    """Trip counts in a module.

    Args:
        computations: the module's, by name.
    """

    def __init__(self, computations: dict[str, Computation]):
        self._computations = computations

    def count(self, computation: Computation, loop: Instruction) -> int | None:
        """The most iterations that a `while` of the computation can do, or None where that
        cannot be told.
        """
        match = re.search(r'known_trip_count":\{"n":"(\d+)"', loop.attributes)
        if match:
            return int(match.group(1))
        body, condition = (self._computations[loop.called(name)] for name in ("body", "condition"))
        counts = []
        for direction, element, limit in self._bounds(condition, computation, loop):
            start, step = self._start(computation, loop, element), self._step(body, element)
            if None not in (start, step, limit) and step:
                span = (limit - start) / step + (1 / abs(step) if direction in ("LE", "GE") else 0)
                counts.append(max(0, math.ceil(span)))
        return min(counts, default=None)

    def _bounds(
        self, condition: Computation, outer: Computation, loop: Instruction
    ) -> list[tuple[str, int, int | None]]:
        """(direction, element of the loop's tuple, limit) of every comparison of an element with
        a number.
        """
        found = []
        for where, instruction, bindings in self._comparisons(condition):
            sides = [self._value(where, name, bindings) for name in instruction.operands]
            direction = instruction.attribute("direction")
            if None in sides or direction not in ("LT", "LE", "GT", "GE", "NE"):
                continue
            (kind, value), (other_kind, other) = sides
            if kind == "element" and other_kind == "element":
                found.append((direction, value, self._start(outer, loop, other)))
            elif kind == "element":
                found.append((direction, value, other))
            elif other_kind == "element":
                found.append((direction, other, value))
        return found

    def _comparisons(self, condition: Computation):
        """Comparisons in a condition and in its fusions, with what the fusions' parameters are
        bound to.
        """
        for instruction in condition.instructions.values():
            if instruction.opcode == "compare":
                yield condition, instruction, {}
            elif instruction.opcode == "fusion":
                inner, bound = self._inside(condition, instruction)
                found = (i for i in inner.instructions.values() if i.opcode == "compare")
                yield from ((inner, i, bound) for i in found)

    def _inside(self, computation: Computation, fusion: Instruction) -> tuple[Computation, dict]:
        """Returns a fusion's computation, and the values that its parameters are bound to."""
        inner = self._computations[fusion.called("calls")]
        pairs = zip(inner.parameters, fusion.operands, strict=True)
        return inner, {p.name: self._value(computation, operand, {}) for p, operand in pairs}

    def _value(self, computation: Computation, name: str, bindings: dict) -> tuple[str, int] | None:
        """Returns the definition of a scalar: ("constant", its value), ("element", its index in
        the loop's tuple), or None.
        """
        instruction = _source(computation, name)
        if instruction.name in bindings:
            return bindings[instruction.name]
        if instruction.opcode == "constant" and re.fullmatch(r"-?\d+", instruction.literal.strip()):
            return "constant", int(instruction.literal)
        if instruction.opcode == "get-tuple-element":
            if computation.instructions[instruction.operands[0]].opcode == "parameter":
                return "element", int(instruction.attribute("index"))
        return None

    def _start(self, computation: Computation, loop: Instruction, element: int) -> int | None:
        """The number that an element of the loop's tuple starts as."""
        source = _source(computation, loop.operands[0], ("copy", "opt-barrier"))
        if source.opcode != "tuple":
            return None
        value = self._value(computation, source.operands[element], {})
        return value[1] if value and value[0] == "constant" else None

    def _step(self, body: Computation, element: int) -> int | None:
        """Returns the increment of an element per iteration."""
        root = body.instructions[body.root]
        if root.opcode != "tuple":
            return None
        computation, bindings, index = body, {}, 0
        instruction = _source(body, root.operands[element])
        if instruction.opcode == "get-tuple-element":
            index = int(instruction.attribute("index"))
            instruction = body.instructions[instruction.operands[0]]
        if instruction.opcode == "fusion":
            computation, bindings = self._inside(body, instruction)
            instruction = computation.instructions[computation.root]
            if instruction.opcode == "tuple":
                instruction = computation.instructions[instruction.operands[index]]
        if instruction.opcode not in ("add", "subtract"):
            return None
        sides = [self._value(computation, operand, bindings) for operand in instruction.operands]
        steps = [side[1] for side in sides if side and side[0] == "constant"]
        return (steps[0] if instruction.opcode == "add" else -steps[0]) if steps else None


def _source(
    computation: Computation, name: str, through: Collection[str] = _THROUGH
) -> Instruction:
    """Returns the instruction that a value comes from through those of some opcodes."""
    instruction = computation.instructions[name]
    while instruction.opcode in through:
        instruction = computation.instructions[instruction.operands[0]]
    return instruction
