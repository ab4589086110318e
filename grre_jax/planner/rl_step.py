"""A whole step of reinforcement learning: the seconds of its parts, in turn or overlapped, and what
they cost.

The parts of sampling are shares of the calls that a policy version makes, spread over the steps
that train on what they sampled.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Any

from grre_jax.planner.abstract import AbstractRun
from grre_jax.planner.compile import Report
from grre_jax.planner.hardware.topology import Topology
from grre_jax.training.actors.calls import call_of
from grre_jax.training.config.run import Config

SAMPLING = ("weights", "prefill", "decode", "verification")
RESOURCES = {
    "products": "FLOPs",
    "kernels": "FLOPs",
    "memory": "HBM",
    "copies": "HBM",
    "interconnect": "links",
}


@dataclasses.dataclass(frozen=True)
class Part:
    """A part of a step.

    Attributes:
        name: one of `SAMPLING`, or "training".
        seconds: of one step.
        resource: which binds it for most of the time: "FLOPs", "HBM", "links" or "host".
    """

    name: str
    seconds: float
    resource: str


@dataclasses.dataclass(frozen=True)
class RLStep:
    """One training step with the sampling of its data.

    Args:
        parts: of the step.
        interval: training steps that one policy version samples for (m).
        ahead: training steps from a version to the first that needs its samples (n).
        chips: of the slice.
        tokens: that the train step computes, over all chips.
        model_flops: of sampling and training, without recomputation, over all chips.
        peak_flops: of a chip.
        apart: the sampler has chips of its own among these (mesh.sampler).
    """

    parts: tuple[Part, ...]
    interval: int
    ahead: int
    chips: int
    tokens: int
    model_flops: float
    peak_flops: float
    apart: bool = False

    @property
    def sampling(self) -> float:
        """Seconds of sampling, with the transfer of weights and verification."""
        return sum(part.seconds for part in self.parts if part.name in SAMPLING)

    @property
    def training(self) -> float:
        """Seconds of the train step."""
        return sum(part.seconds for part in self.parts if part.name not in SAMPLING)

    @property
    def in_turn(self) -> float:
        """Seconds where one slice samples and trains in turn (`grre train`)."""
        return self.sampling + self.training

    @property
    def overlapped(self) -> float:
        """Seconds where a learner and explorers have a slice each (`grre learn`, `grre explore`),
        or the sampler chips of its own (mesh.sampler).

        A version samples for m steps (mS seconds) while the learner takes the n steps that do not
        need these samples (nT); the other m - n wait for them. So m steps take max(nT, mS) +
        (m - n)T: T + S each for n = 0, max(T, S) for n >= m.
        """
        m, n = self.interval, min(self.ahead, self.interval)
        return (max(n * self.training, m * self.sampling) + (m - n) * self.training) / m

    def summary(self, *, overlapped: bool = False) -> dict[str, float]:
        """Returns seconds, chip-seconds, tokens a second and chip, and MFU, in turn or overlapped:
        on twice the chips, unless the sampler has chips of its own among these.
        """
        seconds = self.overlapped if overlapped else self.in_turn
        spent = seconds * self.chips * (2 if overlapped and not self.apart else 1)
        return {
            "seconds": seconds,
            "chip_seconds": spent,
            "tokens_per_second_per_chip": self.tokens / spent,
            "mfu": self.model_flops / (spent * self.peak_flops),
        }

    def as_dict(self) -> dict[str, Any]:
        """Returns the step in plain types; "overlapped" only where the regime samples ahead."""
        found = {
            "parts": [dataclasses.asdict(part) for part in self.parts],
            "sampling_seconds": self.sampling,
            "training_seconds": self.training,
            "in_turn": self.summary(),
        }
        return found | ({"overlapped": self.summary(overlapped=True)} if self.ahead else {})


@dataclasses.dataclass(frozen=True)
class VersionCalls:
    """The calls of the policy version that samples for most steps after the first.

    Attributes:
        positions: prompts.
        calls: of the sampler.
        steps: training steps that they serve.
        ahead: steps that are taken before the first that needs them.
    """

    positions: int
    calls: int
    steps: int
    ahead: int

    @classmethod
    def of(cls, config: Config) -> VersionCalls:
        """Returns those of a run that samples."""
        schedule, regime, steps = config.schedule, config.regime, config.training.steps
        # The versions after the first sample for as many steps as each other; a version 0 that
        # samples ahead of the learner does so once.
        counts = {v: len(regime.batches(v, steps)) for v in range(steps)}
        later = {v: count for v, count in counts.items() if v and count} or {0: counts[0]}
        version = max(later, key=lambda v: (later[v], -v))
        positions = len(schedule.sampled(version, steps))
        size = call_of(config.sampling, positions).prompts
        served = min(later[version] * regime.reuse, steps)
        ahead = regime.sync_offset + regime.staleness
        return cls(positions, -(-positions // size), served, ahead)


def rl_step(
    made: VersionCalls,
    sampler: Report,
    trainer: Report,
    *,
    chips: int,
    peak_flops: float,
    verification: float = 0.0,
    apart: bool = False,
) -> RLStep:
    """Joins the costs of a call of the sampler and of a train step.

    Args:
        made: calls of a version.
        sampler, trainer: programs that fit.
        chips, peak_flops: of the slice, and of a chip.
        verification: seconds of the host for the completions of a step.
        apart: the sampler has chips of its own among these.
    """
    share = made.calls / made.steps
    found: dict[str, Counter] = {name: Counter() for name in SAMPLING[:-1]}
    for (phase, bound), seconds in sampler.cost.phases.items():
        part = phase if phase in found else "decode"
        # A version's weights are gathered once for all of its calls.
        found[part][RESOURCES[bound]] += seconds * (
            share if part != "weights" else share / made.calls
        )
    found["training"] = Counter()
    for bound, seconds in trainer.cost.bound.items():
        found["training"][RESOURCES[bound]] += seconds
    parts = [
        Part(name, sum(counts.values()), max(counts, key=counts.get, default="HBM"))
        for name, counts in found.items()
    ]
    parts.insert(-1, Part("verification", verification, "host"))
    flops, tokens = share * sampler.model_flops + trainer.model_flops, trainer.tokens
    times = (made.steps, made.ahead)
    return RLStep(tuple(parts), *times, chips, tokens, flops, peak_flops, apart)


def of_reports(
    run: AbstractRun, slice_: Topology, reports: list[Report], verify_seconds: float = 0.0
) -> RLStep | None:
    """Returns the whole step of a run from its compiled programs; None unless its train step and
    its sampler are among them and fit.

    Args:
        run, slice_, reports: from `compile.compile_run`.
        verify_seconds: of one process of a host for one completion.
    """
    costs = {report.program: report for report in reports if report.cost}
    if not {"train step", "sampler"} <= costs.keys():
        return None
    sampler, trainer, made = costs["sampler"], costs["train step"], VersionCalls.of(run.config)
    hosts = len({device.process_index for device in slice_.devices})
    completions = made.positions * run.config.sampling.group_size / made.steps
    judges = hosts * max(run.config.task.verify_processes, 1)
    return rl_step(
        made,
        sampler,
        trainer,
        chips=len(slice_.devices),
        peak_flops=slice_.chip.peak_flops,
        verification=completions * verify_seconds / judges,
        apart=run.sampler_mesh is not run.mesh,
    )
