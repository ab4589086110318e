"""The missing runs of the study, then its page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from grre_jax import reporting
from grre_jax.console import make_console
from research.claims import claims as designs, report
from research.claims.analysis import Results
from research.claims.claims import Design
from research.entrants import strangers
from research.in_graph.batch import Scale
from research.in_graph.campaign import Campaign
from research.in_graph.workers import cores
from research.runs import seeds_of

QUICK_SEEDS = 3


def run(
    output: Path,
    *,
    task: str = "arithmetic",
    quick: bool = False,
    seeds: int | None = None,
    first_seed: int = 300,
    algorithms: tuple[str, ...] = (),
    workers: int | None = None,
    greedy_bound: float | None = None,
) -> Results:
    """Does the missing runs of the study, and writes its page.

    Args:
        output: the folder: runs.jsonl, warm starts, claims.md and its figures.
        task: the study's task.
        quick: two algorithms with few seeds.
        seeds: number of seeds; that of the task, or `QUICK_SEEDS`, if None.
        first_seed: the first of them.
        algorithms: FILE.py:FUNCTION of losses that take part, or names of algorithms.
        workers: processes; one per core if None.
        greedy_bound: of the warm starts, see `Campaign`.

    Raises:
        UsageError: a number or name is out of its domain, or the folder has other runs.
        DataError: a file of the folder cannot be read.
    """
    scale, extra = Scale(task_name=task), strangers(algorithms)
    count = seeds_of(seeds, QUICK_SEEDS, first_seed)
    if quick:
        design = designs.quick(scale, len(count), first_seed, extra)
    else:
        design = designs.full(scale, seeds and len(count), first_seed, extra)
    return complete(design, output, workers or cores(), make_console(), greedy_bound)


def complete(
    design: Design, output: Path, workers: int, console: Any, greedy_bound: float | None = None
) -> Results:
    """Completes the study of a design; see `run`."""
    setup = (output, design.scale, design.entries, workers, console)
    with Campaign(*setup, greedy_bound=greedy_bound) as campaign:
        runs = design.runs()
        header = {
            "study": f"claims on {design.scale.task_name}",
            "seeds": f"{len(design.seeds)}, and {len(design.scan)} at every rate",
            "cost": campaign.budget(runs),
            "folder": str(output),
        }
        reporting.print_header(header, title="python -m research.claims", console=console)
        campaign.complete(runs, "claims")
    results = Results.read(output / "runs.jsonl")
    report.write(output, results)
    console.print(f"wrote {output}/claims.md and its figures", highlight=False)
    return results
