"""Costs of parts of a program, added up; asynchronous work in flight; names of places in a
program.
"""

from __future__ import annotations

import dataclasses
import re
from collections import Counter

from grre_jax.planner.program.hlo import Instruction

# The programs that a call of the sampler is made of, by the name that JAX gives their instructions.
_PROGRAMS = {"jit(_taken_apart)": "weights", "jit(prefill)": "prefill", "jit(advance)": "decode"}
BOUNDS = ("products", "memory", "kernels", "interconnect", "copies")


@dataclasses.dataclass
class Cost:
    """The cost of a part of the program on one chip.

    Attributes:
        seconds: predicted time.
        bound: of them, by what binds: products, memory, kernels, waiting for the interconnect,
            waiting for copies.
        flops: of products and kernels.
        hbm_bytes: through main memory.
        collectives: kind -> (count, bytes of the whole arrays, seconds on the links).
        cycles: the compiler's own estimate of all but collectives and kernels.
        where: seconds by place in the program.
        phases: seconds by (phase of the place, what binds).
        problems: what could not be costed.
    """

    seconds: float = 0.0
    bound: Counter = dataclasses.field(default_factory=Counter)
    flops: float = 0.0
    hbm_bytes: float = 0.0
    collectives: dict[str, tuple[int, float, float]] = dataclasses.field(default_factory=dict)
    cycles: float = 0.0
    where: Counter = dataclasses.field(default_factory=Counter)
    phases: Counter = dataclasses.field(default_factory=Counter)
    problems: set[str] = dataclasses.field(default_factory=set)

    def add(self, other: Cost, times: int = 1) -> None:
        """Adds a part that runs `times` times."""
        self.seconds += times * other.seconds
        self.flops += times * other.flops
        self.hbm_bytes += times * other.hbm_bytes
        self.cycles += times * other.cycles
        for name in ("bound", "where", "phases"):
            mine = getattr(self, name)
            for key, value in getattr(other, name).items():
                mine[key] += times * value
        for kind, entry in other.collectives.items():
            self.collective(kind, *(times * x for x in entry))
        self.problems |= other.problems

    def collective(self, kind: str, count: int, size: float, seconds: float) -> None:
        """Counts collectives of a kind."""
        old = self.collectives.get(kind, (0, 0.0, 0.0))
        self.collectives[kind] = (old[0] + count, old[1] + size, old[2] + seconds)

    @property
    def link_seconds(self) -> float:
        """Time that the links are busy."""
        return sum(entry[2] for entry in self.collectives.values())


@dataclasses.dataclass
class Queue:
    """Asynchronous work of one kind: done in the order of its start."""

    pending: dict[str, float] = dataclasses.field(default_factory=dict)

    def drain(self, amount: float) -> None:
        """Work done meanwhile."""
        for key, left in self.pending.items():
            done = min(left, amount)
            self.pending[key], amount = left - done, amount - done

    def finish(self, key: str) -> float:
        """Returns the work left until the piece is done: its own rest, and all before it."""
        total = 0.0
        for other in list(self.pending):
            total += self.pending[other]
            self.pending[other] = 0.0
            if other == key:
                break
        self.pending.pop(key, None)
        return total


def place(instruction: Instruction) -> str:
    """Returns the place of an instruction in the program: the phase and the last words of its
    name, with the shape of a product's result. The phase is a pass of the train step, or a program
    of the sampler.
    """
    name = instruction.op_name
    program = next((of for inside, of in _PROGRAMS.items() if inside in name), None)
    if program:
        phase = program
    elif "rematted_computation" in name:
        phase = "recomputed"
    elif "transpose(" in name:
        phase = "backward"
    else:
        phase = "forward" if "jvp(" in name else "other"
    tail = [
        word
        for word in name.split("/")
        if not re.match(r"(jit|jvp|transpose|while|body|closed_call|checkpoint|rematted)\b", word)
    ]
    leaves = instruction.shape.leaves()
    largest = max(leaves, key=lambda leaf: leaf.bytes, default=None)
    shape = f" {largest.dtype}[{','.join(map(str, largest.dims))}]" if largest is not None else ""
    return f"{phase}: {'/'.join(tail[-2:]) or instruction.opcode}{shape}"


def phase_of(where: str) -> str:
    """Returns the phase of a place, or of a wait for it."""
    return where.removeprefix("waiting: ").removeprefix("copy for ").partition(": ")[0]
