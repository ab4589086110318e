"""Results of `grre compile`, as text and as a dictionary."""

from __future__ import annotations

import dataclasses
from typing import Any

from jax.sharding import Mesh

from grre_jax.planner.abstract import AbstractRun
from grre_jax.planner.compile import ASSUMPTIONS, RESERVED_BYTES, Report, call_on
from grre_jax.planner.hardware.topology import Topology
from grre_jax.planner.program.costs import BOUNDS
from grre_jax.planner.rl_step import RLStep, of_reports
from grre_jax.planner.sampler_curve import Point, best, curve
from grre_jax.training.actors.calls import training_calls

PLACES = 12  # how many places of the program are listed


def as_dict(
    slice_: Topology, run: AbstractRun, reports: list[Report], verify_seconds: float = 0.0
) -> dict[str, Any]:
    """The whole result in plain types: bytes, seconds, FLOPs."""
    step = of_reports(run, slice_, reports, verify_seconds)
    return {
        "config": run.config.name,
        "topology": slice_.name,
        "chips": len(slice_.devices),
        "mesh": dict(run.mesh.shape),
        "sampler_mesh": dict(run.sampler_mesh.shape),
        "parameters": run.model.num_parameters,
        "assumptions": list(ASSUMPTIONS),
        "programs": [_program(report, slice_) for report in reports],
        "step": step.as_dict() if step else None,
        "sampler_curve": [dataclasses.asdict(point) for point in _curve(slice_, run)],
    }


def _curve(slice_: Topology, run: AbstractRun) -> list[Point]:
    """Returns the curve of the run's largest call; empty if the run samples nothing."""
    calls, sampler = training_calls(run.config), run.sampler
    capacity = int(slice_.chip.hbm_bytes) - RESERVED_BYTES
    return curve(sampler, slice_, call_on(sampler, slice_, calls[0]), capacity) if calls else []


def _program(report: Report, slice_: Topology) -> dict[str, Any]:
    values = {
        "program": report.program,
        "fits": report.fits,
        "hbm_bytes_per_chip": {**dataclasses.asdict(report.memory), "capacity": report.capacity},
        "tokens": report.tokens,
        "model_flops": report.model_flops,
        "compile_seconds": report.compile_seconds,
        "advice": list(report.advice),
        **({"call": report.call} if report.call else {}),
    }
    cost = report.cost
    if cost is None:
        return values
    return values | {
        "seconds": cost.seconds,
        "seconds_by_compiler_cycles": _by_cycles(report, slice_),
        "mfu": report.mfu,
        "tokens_per_second": report.tokens / cost.seconds,
        "flops_per_chip": cost.flops,
        "hbm_traffic_per_chip": cost.hbm_bytes,
        "seconds_by_bound": dict(cost.bound),
        "collectives": {
            kind: {"count": count, "bytes": size, "seconds": seconds}
            for kind, (count, size, seconds) in sorted(cost.collectives.items())
        },
        "seconds_by_place": dict(cost.where.most_common(PLACES)),
        "problems": sorted(cost.problems),
    }


def as_text(
    slice_: Topology, run: AbstractRun, reports: list[Report], verify_seconds: float = 0.0
) -> str:
    """The result for a reader."""
    chip, shape = slice_.chip, run.shape
    axes = _axes(run.mesh)
    if run.sampler_mesh is not run.mesh:
        axes += f", the sampler's {_axes(run.sampler_mesh)}"
    lines = [
        (
            f"{run.config.name} on {slice_.name}: {len(slice_.devices)} chips of"
            f" {chip.peak_flops / 1e12:.0f} TFLOP/s, {_bytes(chip.hbm_bytes)} at"
            f" {chip.hbm_bandwidth / 1e9:.0f} GB/s, {chip.link_bandwidth / 1e9:.0f} GB/s a link"
        ),
        (
            f"model {run.model.num_parameters / 1e9:.2f} G parameters; mesh {axes}; step of"
            f" {shape.micro_batches} x {shape.rows} rows x {shape.pack_length} tokens"
        ),
    ]
    for report in reports:
        lines += ["", *_lines(report, slice_)]
    step, points = of_reports(run, slice_, reports, verify_seconds), _curve(slice_, run)
    lines += ["", *_step_lines(step)] if step else []
    lines += ["", *_curve_lines(points)] if points else []
    return "\n".join([*lines, "", "assumed: " + "; ".join(ASSUMPTIONS) + "."])


def _axes(mesh: Mesh) -> str:
    return " x ".join(f"{axis} {n}" for axis, n in mesh.shape.items() if n > 1) or "one device"


def _lines(report: Report, slice_: Topology) -> list[str]:
    memory, cost = report.memory, report.cost
    verdict = "fits" if report.fits else "DOES NOT FIT"
    lines = [
        (
            f"{report.program}: {verdict}, {_bytes(memory.total)} of {_bytes(report.capacity)}"
            f" usable HBM a chip (compiled in {report.compile_seconds:.0f} s)"
        ),
        f"  parameters {_bytes(memory.parameters)}, optimiser {_bytes(memory.optimizer)}, batch and"
        f" results {_bytes(memory.batch)}, program {_bytes(memory.program)}, temporaries"
        f" {_bytes(memory.temporaries)}"
        + (f" (gradients {_bytes(memory.gradients)} of them)" if memory.gradients else ""),
    ]
    if report.call:
        lines.insert(1, f"  {described(report.call)}")
    if memory.message:
        lines.append(f"  the compiler: {memory.message}")
    lines += [f"  change first: {item}" for item in report.advice]
    if cost is None:
        return lines
    rate, slower = report.tokens / cost.seconds, _by_cycles(report, slice_)
    lines.append(
        f"  predicted {_seconds(cost.seconds)}, {report.tokens:,} tokens ({rate:,.0f} tokens/s),"
        f" MFU {100 * report.mfu:.1f}%; with the compiler's own cycle estimates in place of the"
        f" roofline, but for kernels and interconnect, {_seconds(slower)}, MFU"
        f" {100 * report.mfu * cost.seconds / slower:.1f}%"
    )
    bound = [f"{name} {_seconds(cost.bound[name])}" for name in BOUNDS if cost.bound[name] > 0]
    lines.append("  bound by " + ", ".join(bound))
    lines.append(f"  a chip: {cost.flops / 1e12:.1f} TFLOPs, {_bytes(cost.hbm_bytes)} through HBM")
    for kind, (count, size, busy) in sorted(cost.collectives.items()):
        lines.append(f"  {kind}: {count} of {_bytes(size)} together, {_seconds(busy)} on the links")
    places = cost.where.most_common(PLACES)
    lines += [f"  {_seconds(seconds):>9}  {where}" for where, seconds in places]
    lines += [f"  NOT COSTED: {problem}" for problem in sorted(cost.problems)]
    return lines


def _step_lines(step: RLStep) -> list[str]:
    """A whole step: its parts, and what it costs in turn and overlapped."""

    def cost(name: str, values: dict[str, float]) -> str:
        return (
            f"{name}: {_seconds(values['seconds'])} a step, {values['chip_seconds']:,.0f}"
            f" chip-seconds, {values['tokens_per_second_per_chip']:,.0f} tokens/s a chip, MFU"
            f" {100 * values['mfu']:.1f}%"
        )

    in_turn = "whole step, sampling and training in turn"
    lines = [
        cost(in_turn if step.apart else f"{in_turn} on these chips", step.summary()),
        f"  sampling {_seconds(step.sampling)}, training {_seconds(step.training)}; a version"
        f" samples for {step.interval} steps",
        *(
            f"  {_seconds(part.seconds):>9}  {part.name}, bound by {part.resource}"
            for part in step.parts
        ),
    ]
    if step.ahead:
        apart = "the learner and the sampler on chips of their own of this slice"
        name = apart if step.apart else "the learner and explorers on a slice each"
        lines.append(cost(f"overlapped, {name}", step.summary(overlapped=True)))
    return lines


def _curve_lines(points: list[Point]) -> list[str]:
    """The curve as a table, with its best point."""
    chosen = best(points)
    lines = ["sampler by rows a device, by arithmetic: tokens/s a chip, memory a chip, bound by"]
    for point in points:
        mark = " <- best" if point is chosen else "" if point.fits else " does not fit"
        lines.append(
            f"  {point.rows:>6,} rows {point.tokens_per_second_per_chip:>10,.0f}"
            f" {_bytes(point.bytes):>11}  {point.resource}{mark}"
        )
    return lines


def described(call: dict[str, Any]) -> str:
    """A call of the sampler in words, from what `compile.call_summary` says of it."""
    completions = call["prompts"] * call["samples"]
    waiting = f"{call['rows']:,} at once, and rows that end take those that wait"
    rows = waiting if call["refilled"] else "all decoded side by side"
    return (
        f"a call of {call['prompts']:,} prompts x {call['samples']} completions: {completions:,},"
        f" {rows}"
    )


def _by_cycles(report: Report, slice_: Topology) -> float:
    """A second opinion in seconds: the compiler's cycle estimates, and our kernels and waits for
    the interconnect, of which it estimates nothing.
    """
    cost = report.cost
    return cost.cycles / slice_.chip.clock + cost.bound["kernels"] + cost.bound["interconnect"]


def _bytes(count: float) -> str:
    for unit, size in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= size:
            return f"{count / size:.{2 if unit == 'GiB' else 1}f} {unit}"
    return f"{count:.0f} B"


def _seconds(value: float) -> str:
    return f"{value:.2f} s" if value >= 1 else f"{value * 1e3:.1f} ms"
