"""The runs, then the verdicts, tables and figures that follow from them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grre_jax
from grre_jax import random_streams, reporting
from grre_jax.config import differences
from grre_jax.console import make_console
from grre_jax.errors import DataError, UsageError
from grre_jax.storage import files
from research.claims import design as claims_design
from research.claims import report as claims_report
from research.claims.claims import CLAIMS
from research.claims.design import Design
from research.claims.judging import Table, headlines, judge, tuned
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
    again: int | None = None,
    first_seed: int = 300,
    claims: Sequence[str] = (),
    algorithms: tuple[str, ...] = (),
    workers: int | None = None,
    greedy_bound: float | None = None,
) -> dict[str, Any]:
    """Does the missing runs of the study, and writes its results.

    Args:
        output: the folder: runs.jsonl, warm starts, design.json; then verdicts.json, claims.md,
            claims.png and rates.png.
        task: the study's task.
        quick: a part of one claim with few seeds.
        seeds: number of seeds; `design.SEEDS`, or `QUICK_SEEDS` in quick, if None.
        again: number of seeds of the second set; `design.AGAIN` if None, none in quick.
        first_seed: the first of them.
        claims: names of those that are judged; all of the first task, `design.SECOND_CLAIMS` of
            another, if none is given.
        algorithms: FILE.py:FUNCTION of losses that take part in the tables, or names of algorithms.
        workers: processes; one per core if None.
        greedy_bound: of the warm starts, see `Campaign`.

    Returns:
        The content of verdicts.json.

    Raises:
        UsageError: a number or name is out of its domain, or the folder has other runs.
        DataError: a file of the folder cannot be read.
    """
    judged = seeds_of(seeds, QUICK_SEEDS if quick else claims_design.SEEDS, first_seed)
    known, scale, extra = [one.name for one in CLAIMS], Scale(task_name=task), strangers(algorithms)
    names = claims or (known if task == claims_design.FIRST_TASK else claims_design.SECOND_CLAIMS)
    if wrong := set(names) - set(known):
        raise UsageError(f"--claim {sorted(wrong)[0]}: the claims are {', '.join(known)}")
    count = claims_design.AGAIN if again is None else again
    if count not in (0, *range(2, 1001)):
        raise UsageError(f"--again {count}: 2 to 1000 seeds are needed, or 0 for no second set")
    if quick:
        design = claims_design.quick(scale, len(judged), judged.start, extra)
    else:
        design = claims_design.full(scale, len(judged), count, judged.start, extra, names)
    workers = cores() if workers is None else workers
    return complete(design, output, workers, make_console(), greedy_bound)


def complete(
    design: Design, output: Path, workers: int, console: Any, greedy_bound: float | None = None
) -> dict[str, Any]:
    """Completes the study of a design; see `run`."""
    setup = (output, design.scale, design.entries, workers, console)
    with Campaign(*setup, greedy_bound=greedy_bound) as campaign:
        tuning = design.tuning_runs()
        names, seeds = ", ".join(claim.name for claim in design.claims), len(design.seeds)
        header = {
            "study": f"claims {names} on {design.scale.task_name}",
            "seeds": f"{seeds}, and {len(design.again)} more that are judged by themselves",
            "tuning": campaign.budget(tuning),
            "in all": f"at most {design.most_runs} runs, the last at rates that tuning chooses",
            "folder": str(output),
        }
        reporting.print_header(header, title="python -m research.claims", console=console)
        campaign.complete(tuning, "tuning")
        fixed = fix(output / "design.json", design.described(design.table(campaign.ledger)))
        judged = design.judged_runs(design.table(campaign.ledger))
        campaign.complete(judged, "claims")
        found = {
            "version": grre_jax.__version__,
            "random_streams": random_streams.VERSION,
            "machines": list(campaign.machines),
            "runs": len({*tuning, *judged}),
            "starts": campaign.starts([*judged, *tuning]),
        }
        found |= results(design, fixed, design.table(campaign.ledger))
    claims_report.write(output, found)
    for claim in found["claims"]:
        greedy, sampled = claim["verdict"]["greedy"], claim["verdict"]["sampled"]
        console.print(
            f"{claim['name']}  greedy: {greedy:<10}  sampled: {sampled:<10}  {claim['statement']}",
            highlight=False,
        )
    console.print(
        f"wrote {output}/verdicts.json, claims.md, claims.png and rates.png", highlight=False
    )
    return found


def fix(path: Path, described: dict[str, Any]) -> dict[str, Any]:
    """Writes what is fixed before a judged run, or checks it against the file.

    Returns:
        It, as it comes back from the file.

    Raises:
        UsageError: the file has another design.
        DataError: it cannot be read.
    """
    described = json.loads(json.dumps(described))
    if not path.exists():
        files.replace(path, json.dumps(described, indent=1) + "\n")
        return described
    try:
        known = json.loads(path.read_text())
        differing = differences(known, described)
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise DataError(
            f"{path} cannot be read ({type(error).__name__}: {error}): restore it from a copy, or"
            " name another folder with --output"
        ) from error
    if differing:
        raise UsageError(
            f"--output {path.parent}: its study was designed otherwise ({path} differs in"
            f" {', '.join(differing)}): give the same options, or name another folder"
        )
    return described


def results(design: Design, fixed: dict[str, Any], table: Table) -> dict[str, Any]:
    """Returns the content of verdicts.json: the design, every cell with a value per seed, and the
    verdicts of both sets of seeds, which follow from these (`judging`).
    """
    not_asked = [row["text"] for row in fixed["power"] if not row["asked"]]
    cores = [dataclasses.replace(claim, extensions=()) for claim in design.claims if design.again]
    return {
        **fixed,
        "tuning": tuned(table),
        "headlines": headlines(table, design.seeds),
        "claims": [judge(table, claim, design.seeds, not_asked) for claim in design.claims],
        "claims_again": [judge(table, claim, design.again, not_asked) for claim in cores],
        "cells": list(table.cells),
    }
