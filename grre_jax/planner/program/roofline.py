"""A roofline of a compiled TPU program: how long it takes if every instruction runs at the limit
that binds it.

The model, on the optimised and scheduled HLO text of one chip's program:

- An instruction outside of any fusion takes max(FLOPs / peak, bytes / HBM bandwidth). FLOPs are
  those of products (`flops`), bytes what passes main memory (`traffic`). Elementwise arithmetic,
  on-chip memory, and the start of an instruction cost nothing.
- Custom kernels cost what `kernels` knows of them; one that is not known makes the report
  incomplete and is listed.
- A loop's body counts as often as it runs (`loops`), of a conditional's branches the dearest
  counts, or the cheapest if the run is known not to take the other.
- Collectives take what `interconnect` says. Those that the compiler made asynchronous run beside
  what is scheduled between their start and their end, one after the other in the order of their
  starts; what is left at their end is waited for. The others are waited for at once.
- Asynchronous copies between main and on-chip memory take what bandwidth the instructions beside
  them leave, and are waited for at their end.

What it leaves out makes a real program slower: it is a bound, not a simulation. Beside it stands
the sum of the compiler's own cycle estimates, with the loops' trip counts; they know tiling and
vector units, but no collective and no custom kernel.
"""

from __future__ import annotations

import dataclasses
import re
from collections import Counter

from grre_jax.planner.hardware import interconnect
from grre_jax.planner.hardware.interconnect import Torus
from grre_jax.planner.program import flops, hlo, kernels
from grre_jax.planner.program.costs import Cost, Queue, phase_of, place
from grre_jax.planner.program.hlo import Computation, Instruction
from grre_jax.planner.program.loops import Trips
from grre_jax.planner.program.traffic import VIEWS, Traffic

COLLECTIVES = frozenset(
    "all-gather all-reduce reduce-scatter all-to-all collective-permute ragged-all-to-all"
    " collective-broadcast".split()
)


def analyse(text: str, torus: Torus, idle: tuple[str, ...] = ()) -> Cost:
    """The cost of the program of an HLO text on one chip of the torus; of conditionals within the
    scopes `idle` the cheapest branch counts.
    """
    module = hlo.parse(text)
    return Roofline(module, torus, idle).computation(module.entry)


class Roofline:
    """Costs of a module's computations.

    Args:
        module: an optimised, scheduled module.
        torus: where it runs.
        idle: scopes of conditionals whose dear branch is not taken.
    """

    def __init__(self, module: hlo.Module, torus: Torus, idle: tuple[str, ...] = ()):
        self.module, self.torus, self.idle = module, torus, idle
        self.traffic, self.trips = Traffic(module.computations), Trips(module.computations)
        self._costs: dict[str, Cost] = {}

    def computation(self, name: str) -> Cost:
        """One computation, run once."""
        if name not in self._costs:
            self._costs[name] = _Schedule(self, self.module.computations[name]).run()
        return self._costs[name]


class _Schedule:
    """One pass over a computation in its order of execution."""

    def __init__(self, roofline: Roofline, computation: Computation):
        self.roofline, self.computation, self.chip = roofline, computation, roofline.torus.chip
        self.cost, self.copies, self.links = Cost(), Queue(), Queue()

    def run(self) -> Cost:
        for instruction in self.computation.instructions.values():
            if instruction.opcode not in VIEWS:
                self._step(instruction)
        for key in list(self.links.pending):
            self._wait_for_links(self.links.finish(key), "left at the end")
        for key in list(self.copies.pending):
            self._wait_for_copies(self.copies.finish(key), "left at the end")
        return self.cost

    def _step(self, instruction: Instruction) -> None:
        opcode = instruction.opcode
        if opcode == "while":
            self._loop(instruction)
        elif opcode == "conditional":
            branches = instruction.attribute("branch_computations")
            sides = ("true_computation", "false_computation")
            names = branches.split(",") if branches else map(instruction.called, sides)
            idle = any(scope in instruction.op_name for scope in self.roofline.idle)
            parts = [self.roofline.computation(n.strip().lstrip("%")) for n in names]
            self._part((min if idle else max)(parts, key=lambda c: c.seconds))
        elif opcode == "call":
            self._part(self.roofline.computation(instruction.called("to_apply")))
        elif opcode.endswith("-start"):
            self._start(instruction)
        elif opcode.endswith("-done"):
            self._done(instruction.operands[0], instruction)
        elif opcode.endswith("-update"):
            self.links.pending[instruction.name] = 0.0
        elif opcode in COLLECTIVES:
            self._collective(instruction)
        elif opcode == "custom-call":
            self._kernel(instruction)
        elif opcode == "fusion" and self._collective_fusion(instruction):
            return
        else:
            self._plain(instruction)

    # ---- time passes

    def _pass(
        self, seconds: float, hbm_bytes: float = 0.0, link_seconds: float = 0.0, copied: float = 0.0
    ) -> None:
        """Time in which so many bytes moved for the instruction itself, its links were busy so
        long, and `copied` bytes were waited for.
        """
        self.cost.seconds += seconds
        self.cost.hbm_bytes += hbm_bytes
        self.copies.drain(max(0.0, seconds * self.chip.hbm_bandwidth - hbm_bytes - copied))
        self.links.drain(max(0.0, seconds - link_seconds))

    def _spend(self, seconds: float, bound: str, where: str, **others: float) -> None:
        self.cost.bound[bound] += seconds
        self.cost.where[where] += seconds
        self.cost.phases[phase_of(where), bound] += seconds
        self._pass(seconds, **others)

    def _wait_for_links(self, seconds: float, where: str) -> None:
        if seconds > 0:
            self._spend(seconds, "interconnect", f"waiting: {where}", link_seconds=seconds)

    def _wait_for_copies(self, amount: float, where: str) -> None:
        if amount > 0:
            self._spend(
                amount / self.chip.hbm_bandwidth, "copies", f"waiting: {where}", copied=amount
            )

    # ---- instructions

    def _part(self, part: Cost, times: int = 1) -> None:
        self.cost.add(part, times)
        self.cost.seconds -= times * part.seconds  # `_pass` counts them
        self.cost.hbm_bytes -= times * part.hbm_bytes
        self._pass(times * part.seconds, times * part.hbm_bytes, times * part.link_seconds)

    def _loop(self, loop: Instruction) -> None:
        trips = self.roofline.trips.count(self.computation, loop)
        if trips is None:
            self.cost.problems.add(
                f"loop {loop.name} ({place(loop)}): its number of iterations cannot be told;"
                " counted once"
            )
        for name in ("condition", "body"):
            self._part(self.roofline.computation(loop.called(name)), 1 if trips is None else trips)

    def _plain(self, instruction: Instruction) -> None:
        moved = self.roofline.traffic.bytes(self.computation, instruction)
        count = weighted = 0.0
        if instruction.opcode == "fusion":
            count, weighted = flops.computation_flops(
                self.roofline.module.computations, instruction.called("calls")
            )
        elif instruction.opcode in ("dot", "convolution"):
            shapes = self.computation.operand_shapes(instruction)
            count = flops.product_flops(instruction, shapes)
            weighted = count * flops.passes(instruction, shapes)
        self.cost.flops += count
        estimate = re.search(r'"estimated_cycles":"(\d+)"', instruction.attributes)
        self.cost.cycles += int(estimate.group(1)) if estimate else 0
        compute, memory = weighted / self.chip.peak_flops, moved / self.chip.hbm_bandwidth
        bound = "products" if compute >= memory else "memory"
        self._spend(max(compute, memory), bound, place(instruction), hbm_bytes=moved)

    def _kernel(self, instruction: Instruction) -> None:
        operands = self.computation.operand_shapes(instruction)
        known = kernels.kernel_cost(instruction, operands, [instruction.shape])
        if known is None:
            self.cost.problems.add(
                f"custom kernel {kernels.kernel_name(instruction)!r} has no known cost (add it to"
                " grre_jax/planner/program/kernels.py); counted as its memory alone"
            )
            known = (0.0, sum(s.hbm_bytes for s in operands) + instruction.shape.hbm_bytes)
        count, moved = known
        self.cost.flops += count
        seconds = max(count / self.chip.peak_flops, moved / self.chip.hbm_bandwidth)
        if seconds:
            self._spend(seconds, "kernels", place(instruction), hbm_bytes=moved)

    def _start(self, instruction: Instruction) -> None:
        kind = instruction.opcode.removesuffix("-start")
        if kind in COLLECTIVES:
            parts = instruction.shape.parts
            whole = parts[1] if parts and kind != "all-reduce" else None
            self._collective(instruction, kind=kind, whole=whole, key=instruction.name)
        elif kind == "copy":
            moved = sum(part.hbm_bytes for part in instruction.shape.parts[:2])
            self._begin_copy(instruction, moved)
        elif kind in ("async", "call"):
            self._wrapped(instruction)
        else:  # slice-start and its like: a part of the operand is read
            out = instruction.shape.parts[1]
            source = instruction.shape.parts[0].leaves()[0]
            self._begin_copy(instruction, (0 if source.space else out.bytes) + out.hbm_bytes)

    def _begin_copy(self, instruction: Instruction, moved: float) -> None:
        self.cost.hbm_bytes += moved
        self.copies.pending[instruction.name] = moved

    def _wrapped(self, instruction: Instruction) -> None:
        """A computation that runs beside the others (on a SparseCore, say): the memory it moves
        and its collectives are counted as its own.
        """
        name = "calls" if instruction.attribute("calls") else "to_apply"
        part = self.roofline.computation(instruction.called(name))
        timeless = {name: Counter() for name in ("bound", "where", "phases")}
        self.cost.add(dataclasses.replace(part, seconds=0.0, cycles=0.0, **timeless))
        if part.collectives:
            self.links.pending[instruction.name] = part.link_seconds
        else:
            self.copies.pending[instruction.name] = part.seconds * self.chip.hbm_bandwidth

    def _done(self, key: str, instruction: Instruction) -> None:
        start = self.computation.instructions.get(key)
        while start is not None and start.opcode.endswith("-update"):
            key = start.operands[0]
            start = self.computation.instructions.get(key)
        if key in self.links.pending:
            self._wait_for_links(self.links.finish(key), place(start or instruction))
        if key in self.copies.pending:
            self._wait_for_copies(self.copies.finish(key), f"copy for {place(instruction)}")

    def _collective_fusion(self, fusion: Instruction) -> bool:
        """Collectives that the compiler put into fusions: a start, an end, a piece beside a
        product, or a whole reduce-scatter.
        """
        inner = self.roofline.module.computations[fusion.called("calls")]
        found = [i for i in inner.instructions.values() if i.opcode in COLLECTIVES]
        marks = " ".join(i.attributes for i in inner.instructions.values())
        # The start and the end of one share this key.
        key = f"channel {found[0].attribute('channel_id')}" if found else fusion.name
        kind = "reduce-scatter" if "all-reduce-scatter" in inner.name else ""
        if "AsyncCollectiveDone" in marks:
            self._done(key, fusion)
        elif not found:
            return False
        elif "AsyncCollectiveStart" in marks:
            self._collective(found[0], kind=kind, key=key)
        elif "async_collective_fusion_config" in found[0].attributes:
            return False  # continued beside the fusion's own work
        else:
            for collective in found:
                self._collective(collective, kind=kind, where=place(fusion))
        return True

    def _collective(
        self,
        instruction: Instruction,
        *,
        kind: str = "",
        whole: hlo.Shape | None = None,
        key: str = "",
        where: str = "",
    ) -> None:
        """Counts a collective: of a kind and an array if not its own, in flight under a key."""
        kind, whole = kind or instruction.opcode, whole or instruction.shape
        torus, size = self.roofline.torus, float(whole.bytes)
        if kind == "collective-permute":
            written = instruction.attribute("source_target_pairs") or ""
            pairs = [(int(a), int(b)) for a, b in re.findall(r"\{(\d+),(\d+)\}", written)]
            seconds = interconnect.permute_seconds(size, pairs, torus)
        elif kind in ("all-gather", "all-reduce", "reduce-scatter", "all-to-all"):
            group = hlo.replica_groups(instruction, len(torus.coordinates))[0]
            if kind == "reduce-scatter" and instruction.opcode.startswith(kind):
                size *= len(group)
            seconds = interconnect.seconds(kind, size, group, torus)
        else:
            self.cost.problems.add(f"collective {kind} has no known cost; counted as nothing")
            seconds = 0.0
        self.cost.collective(kind, 1, size, seconds)
        if key:
            self.links.pending[key] = seconds
        else:
            self._spend(seconds, "interconnect", where or place(instruction), link_seconds=seconds)
