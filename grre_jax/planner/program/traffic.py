"""Bytes that an instruction of a scheduled HLO module moves through main memory.

An instruction reads its operands and writes its result, once each: what happens inside a fusion
stays on the chip. Three things move less than that: a slice touches its part of the operand alone,
an update in place writes its part alone, and views (tuples, bitcasts) move nothing. Arrays that the
compiler put into on-chip memory cost nothing here; the copies that bring them there are
instructions of their own and do.
"""

from __future__ import annotations

from grre_jax.planner.program.hlo import Computation, Instruction, Shape

# Results that are a view of something, or nothing at all.
VIEWS = frozenset(
    "parameter constant tuple get-tuple-element bitcast after-all opt-barrier partition-id"
    " replica-id add-dependency domain token".split()
)
_ELEMENTWISE_VIEWS = frozenset("bitcast reshape convert copy transpose".split())


class Traffic:
    """Traffic of a module's instructions.

    Args:
        computations: the module's, by name.
    """

    def __init__(self, computations: dict[str, Computation]):
        self._computations = computations
        self._touched: dict[tuple[str, str], float] = {}

    def bytes(self, computation: Computation, instruction: Instruction) -> float:
        """Bytes read from and written to main memory by one instruction outside of any fusion."""
        if instruction.opcode in VIEWS:
            return 0.0
        shapes = computation.operand_shapes(instruction)
        if instruction.opcode == "fusion":
            inner = self._computations[instruction.called("calls")]
            pairs = zip(shapes, inner.parameters, strict=True)
            read = sum(shape.hbm_bytes * self._fraction(inner, p.name) for shape, p in pairs)
            return read + self._written(inner, instruction.shape)
        if instruction.opcode in ("slice", "dynamic-slice", "gather"):
            part = instruction.shape.bytes if shapes[0].space == 0 else 0
            return part + instruction.shape.hbm_bytes + sum(shape.hbm_bytes for shape in shapes[1:])
        if instruction.opcode == "dynamic-update-slice":
            return shapes[1].hbm_bytes + (shapes[1].bytes if instruction.shape.space == 0 else 0)
        if instruction.opcode == "scatter":
            arrays = (len(shapes) - 1) // 2
            # Read, changed and written back where the updates point; the rest stays as it is.
            return sum(s.hbm_bytes for s in shapes[arrays:]) + 2 * sum(
                s.bytes for s in shapes[arrays + 1 :] if instruction.shape.leaves()[0].space == 0
            )
        return sum(shape.hbm_bytes for shape in shapes) + instruction.shape.hbm_bytes

    def _fraction(self, computation: Computation, name: str) -> float:
        """The share of a value's elements that a fused computation reads."""
        shape = computation.instructions[name].shape
        if shape.parts is not None or not shape.elements:
            return 1.0
        return min(1.0, self._elements(computation, name) / shape.elements)

    def _elements(self, computation: Computation, name: str) -> float:
        key = (computation.name, name)
        if key not in self._touched:
            self._touched[key] = sum(
                self._use(computation, name, user) for user in computation.users[name]
            )
        return self._touched[key]

    def _use(self, computation: Computation, name: str, user: Instruction) -> float:
        """Elements of a value that one of its users reads."""
        whole = computation.instructions[name].shape.elements
        first = user.operands[0] == name and name not in user.operands[1:]
        if user.opcode in ("tuple", "get-tuple-element") or (
            user.opcode == "bitcast" and user.name == computation.root
        ):
            return 0.0  # handed on as it is
        if user.opcode in _ELEMENTWISE_VIEWS:
            inner = self._elements(computation, user.name)
            copied = user.name == computation.root and user.opcode != "bitcast"
            return whole if copied else min(whole, inner)
        if first and user.opcode in ("slice", "dynamic-slice", "gather"):
            return user.shape.elements
        if first and user.opcode == "dynamic-update-slice":
            # None, if the updated array is only handed on.
            return self._elements(computation, user.name)
        if user.opcode == "fusion":
            inner = self._computations[user.called("calls")]
            pairs = zip(user.operands, inner.parameters, strict=True)
            places = [parameter.name for at, parameter in pairs if at == name]
            read = sum(self._elements(inner, place) for place in places)
            return read + self._handed_on(computation, user, inner, places)
        attributes = user.attributes + computation.instructions[name].attributes
        if user.opcode in ("all-gather", "custom-call") and "AsyncCollective" in attributes:
            return 0.0  # the transfer is counted where it starts
        return whole

    def _handed_on(
        self, computation: Computation, fusion: Instruction, inner: Computation, places: list[str]
    ) -> float:
        """Elements that are read of a nested fusion's results where these are views of what it
        was given at `places`.
        """
        total = 0.0
        for index, result in enumerate(_results(inner)):
            if self._producer(inner, result)[1].name not in places:
                continue
            if inner.instructions[inner.root].opcode != "tuple":
                total += self._elements(computation, fusion.name)
            for user in computation.users[fusion.name]:
                if user.opcode == "get-tuple-element" and user.attribute("index") == str(index):
                    total += self._elements(computation, user.name)
        return total

    def _written(self, computation: Computation, shape: Shape) -> float:
        """Bytes that a fusion writes; `shape` is the fusion's own result, which says where it
        lies.
        """
        several = computation.instructions[computation.root].opcode == "tuple"
        pairs = zip(_results(computation), shape.parts if several else (shape,), strict=True)
        return sum(self._result(computation, name, part) for name, part in pairs)

    def _result(self, computation: Computation, name: str, shape: Shape) -> float:
        where, instruction = self._producer(computation, name)
        begun = "AsyncCollective" in instruction.attributes
        if begun or instruction.opcode in ("parameter", "all-gather"):
            return 0.0
        if instruction.opcode == "dynamic-update-slice" and shape.space == 0:
            return where.instructions[instruction.operands[1]].shape.bytes
        return shape.hbm_bytes

    def _producer(self, computation: Computation, name: str) -> tuple[Computation, Instruction]:
        """Returns the source that a value is a view of, through bitcasts, tuples and nested
        fusions, and the computation that contains it.
        """
        instruction, index = computation.instructions[name], 0
        while True:
            if instruction.opcode == "bitcast":
                instruction = computation.instructions[instruction.operands[0]]
            elif instruction.opcode == "get-tuple-element":
                index = int(instruction.attribute("index"))
                instruction = computation.instructions[instruction.operands[0]]
            elif instruction.opcode == "tuple":
                instruction = computation.instructions[instruction.operands[index]]
            elif instruction.opcode == "fusion":
                inner = self._computations[instruction.called("calls")]
                results = _results(inner)
                where, found = self._producer(inner, results[index if len(results) > 1 else 0])
                if where is not inner or found.opcode != "parameter":
                    return where, found
                instruction = computation.instructions[instruction.operands[int(found.literal)]]
            else:
                return computation, instruction


def _results(computation: Computation) -> tuple[str, ...]:
    """The names of what a fused computation returns."""
    root = computation.instructions[computation.root]
    return root.operands if root.opcode == "tuple" else (root.name,)
