"""Every algorithm at every degree of off-policyness, a benchmark of how
stale the data may be.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import grre_jax
from grre_jax import random_streams, reporting
from grre_jax.config import Regime
from grre_jax.console import make_console
from research.curve_statistics import COLLAPSED, CURVES, drawdown, final
from research.entrants import ASYMRE, ENTRIES, NARROW, OPMD, REINFORCE, WIDE, strangers
from research.in_graph.batch import Scale
from research.in_graph.campaign import Campaign
from research.in_graph.workers import cores
from research.runs import Entry, Ledger, Run, seeds_of
from research.staleness import report as staleness_report
from research.statistics import estimate

REGIMES: dict[str, Regime] = {
    **{
        f"sync {m}, offset {n}": Regime(sync_interval=m, sync_offset=n)
        for n in (0, 10)
        for m in (1, 5, 20, 50, 100)
    },
    **{f"staleness {age}": Regime(staleness=age) for age in (8, 64, 256)},
    **{f"reuse {count}": Regime(reuse=count) for count in (4, 16)},  # reuse 1 is sync 1, offset 0
    "offline": Regime(offline=True),
}
QUICK = (
    "sync 1, offset 0",
    "sync 20, offset 0",
    "sync 100, offset 0",
    "sync 1, offset 10",
    "staleness 64",
    "reuse 4",
    "offline",
)
QUICK_LABELS = (REINFORCE, NARROW, WIDE, OPMD, ASYMRE)
SEEDS, QUICK_SEEDS = 6, 2


@dataclasses.dataclass(frozen=True)
class Grid:
    """The benchmark's sizes.

    Args:
        scale: of the runs.
        entries: the algorithms.
        regimes: names of `REGIMES`, its columns.
        seeds: numbers of the runs; each has a warm start of its own.
        steps: of a run.
        rate: the learning rate of all.
    """

    scale: Scale
    entries: tuple[Entry, ...]
    regimes: tuple[str, ...]
    seeds: tuple[int, ...]
    steps: int = 320
    rate: float = 5e-4

    def run(self, label: str, regime: str, seed: int) -> Run:
        """One run of a cell."""
        return Run(label, REGIMES[regime], self.rate, seed, self.steps)

    @property
    def cells(self) -> list[tuple[str, str]]:
        """(algorithm, regime) of the grid, row by row."""
        return [(entry.label, regime) for entry in self.entries for regime in self.regimes]


def run(
    output: Path,
    *,
    task: str = "arithmetic",
    quick: bool = False,
    seeds: int | None = None,
    first_seed: int = 300,
    algorithms: Sequence[str] = (),
    workers: int | None = None,
    greedy_bound: float | None = None,
) -> dict[str, Any]:
    """Does the missing runs of the benchmark, and writes its results.

    Arguments and errors as `research.claims.study.run`.

    Returns:
        The content of staleness.json.
    """
    numbers = tuple(seeds_of(seeds, QUICK_SEEDS if quick else SEEDS, first_seed))
    own = [entry for entry in ENTRIES if not quick or entry.label in QUICK_LABELS]
    entries, scale = (*own, *strangers(algorithms)), Scale(task_name=task)
    grid = Grid(scale, entries, QUICK if quick else tuple(REGIMES), numbers)
    console, count = make_console(), cores() if workers is None else workers
    with Campaign(output, scale, entries, count, console, greedy_bound) as campaign:
        runs = [grid.run(*cell, seed) for cell in grid.cells for seed in numbers]
        size = f"{len(entries)} algorithms x {len(grid.regimes)} regimes"
        header = {
            "grid": f"{size}; seeds {numbers[0]} to {numbers[-1]}",
            "cost": campaign.budget(runs),
            "folder": str(output),
        }
        reporting.print_header(header, title="python -m research.staleness", console=console)
        campaign.complete(runs, "staleness")
        found = results(grid, campaign.ledger, campaign.machines)
        found["starts"] = campaign.starts(runs)
    staleness_report.write(output, found)
    console.print(f"wrote {output}/staleness.json, staleness.md and staleness.png", highlight=False)
    return found


def results(grid: Grid, ledger: Ledger, machines: Sequence[str]) -> dict[str, Any]:
    """Returns the content of staleness.json: package version and machines, every cell's runs, and
    the ranking.

    An algorithm's score with a seed is its final greedy accuracy averaged over the regimes. The
    ranking's intervals are over seeds, and so is that of what an algorithm is behind the first,
    which pairs the seeds.
    """
    cells, scores = [], {entry.label: np.zeros(len(grid.seeds)) for entry in grid.entries}
    for label, regime in grid.cells:
        curves = [ledger[grid.run(label, regime, seed)] for seed in grid.seeds]
        ends = {kind: [round(final(curve, kind), 4) for curve in curves] for kind in CURVES}
        lost = [round(drawdown(curve, "greedy"), 4) for curve in curves]
        cells.append(
            {"algorithm": label, "regime": regime, "seeds": list(grid.seeds)}
            | {"final": ends, "drawdown": lost}
            | {"collapsed": float(np.mean([share > COLLAPSED for share in lost]))}
        )
        scores[label] += np.array(ends["greedy"]) / len(grid.regimes)
    ranked = sorted(scores, key=lambda label: -scores[label].mean())
    ranking = [
        {"algorithm": label, **dataclasses.asdict(estimate(scores[label]))}
        | {"behind": dataclasses.asdict(estimate(scores[ranked[0]] - scores[label]))}
        for label in ranked
    ]
    return {
        "version": grre_jax.__version__,
        "random_streams": random_streams.VERSION,
        "task": grid.scale.task_name,
        "machines": list(machines),
        "seeds": list(grid.seeds),
        "steps": grid.steps,
        "rate": grid.rate,
        "cells": cells,
        "ranking": ranking,
    }
