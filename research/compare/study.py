"""One configuration trained under several algorithms and regimes,
by `grre train` itself: a real model, the same questions and draws for all.

A cell is an algorithm in a regime. Its runs are computed one after the other, so that an
accelerator has one owner, in OUTPUT/runs. A run that was stopped or killed continues from its last
checkpoint. The checkpoints of a finished one are removed, for those of a real model are large; the
rest stays. A run whose policy stops being finite is a result too: its curves end there.
"""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import time
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grre_jax
from grre_jax import reporting
from grre_jax.config import Config, ObjectiveConfig, Regime
from grre_jax.console import make_console
from grre_jax.errors import DataError, UsageError
from grre_jax.reporting.metrics import accuracy_known
from grre_jax.reporting.progress import compact_duration
from grre_jax.training import loop
from grre_jax.training.checkpoints import listed
from grre_jax.training.metrics import Diverged
from research.compare import report as compare_report
from research.entrants import (
    ASYMRE,
    ENTRIES,
    GRPO,
    NARROW,
    REINFORCE,
    WEIGHT,
    WIDE,
    strangers,
)
from research.machine import machine_line
from research.runs import Entry, Ledger, Result, Run, Settings, seeds_of

LABELS = (REINFORCE, GRPO, NARROW, WIDE, WEIGHT, ASYMRE)
REGIMES = ("on-policy", "sync 20", "offline")
SEEDS = 3
# What a finished run need not keep: a checkpoint of a real model takes gigabytes. Its rollouts take
# little, and `grre report` shows completions from them.
NOT_KEPT = ("checkpoints", "tensorboard")
# The words in which a run's own samples are refused where its steps were finite and its policy no
# longer is.
NOT_FINITE = re.compile(r"_logprobs is wrong \((nan|-?inf)\)")
# Curves of a run by the metric of its evaluations.
CURVES = {
    "accuracy": "accuracy",
    "greedy_accuracy": "greedy_accuracy",
    "kl": "kl_to_start",
    "length": "response_length",
}


def regime_of(name: str) -> Regime:
    """Returns the regime of a name: on-policy, offline, or a kind with its number ("sync 20",
    "offset 10", "staleness 8", "reuse 4").

    Raises:
        UsageError: the name is none of these.
    """
    if name in ("on-policy", "offline"):
        return Regime(offline=name == "offline")
    found = re.fullmatch("(sync|offset|staleness|reuse) ([1-9][0-9]*)", name)
    if found is None:
        raise UsageError(
            f"--regime {name!r} is none: say on-policy, offline, or one of 'sync N', 'offset N',"
            " 'staleness N', 'reuse N' with N from 1"
        )
    kind, number = found.groups()
    field = {"sync": "sync_interval", "offset": "sync_offset"}.get(kind, kind)
    return Regime(**{field: int(number)})


def run(
    config: Config,
    output: Path,
    *,
    regimes: Sequence[str] = (),
    algorithms: Sequence[str] = (),
    only: Sequence[str] = (),
    seeds: int | None = None,
    first_seed: int = 0,
    console: Any = None,
) -> dict[str, Any]:
    """Does the missing runs of the comparison, and writes its results.

    Args:
        config: of all runs, except objective, regime, seed and folder. The curves have a point per
            evaluation.
        output: the folder: runs.jsonl; then compare.json, compare.md and compare.png.
        regimes: names as for `regime_of`; `REGIMES` if none is given.
        algorithms: names or FILE.py:FUNCTION of further ones, besides `LABELS`.
        only: labels of the algorithms that take part, besides `algorithms`; all if none is given.
        seeds, first_seed: number of seeds per cell (3 if None, at least 2), and the first of them.
        console: to print on; standard output if None.

    Returns:
        The content of compare.json: package version and machines, the settings, and each cell's
        runs, the curves of one per seed.

    Raises:
        UsageError: a name or number is out of its domain, the configuration cannot be compared, or
            the folder has runs of another one.
        DataError: as `grre train`, or a file of the folder cannot be read.
    """
    console = console or make_console()
    entries = _entries(algorithms, only)
    named = {name: regime_of(name) for name in regimes or REGIMES}
    numbers = seeds_of(seeds, SEEDS, first_seed)
    if not (config.evaluation.every and config.evaluation.questions and config.samples):
        raise UsageError(
            "a comparison needs evaluations (--evaluation.every and --evaluation.questions above 0)"
            " and a configuration that samples (--data.path empty)"
        )
    shared = _shared(config)
    ledger = Ledger(output / "runs.jsonl")
    settings = Settings(output, {"configuration": shared}, entries, ledger)
    rate, steps = config.optimizer.learning_rate, config.training.steps
    cells = [
        (name, entry, [Run(entry.label, regime, rate, seed, steps) for seed in numbers])
        for name, regime in named.items()
        for entry in entries
    ]
    missing = [
        (runs[i], entry)
        for i in range(len(numbers))  # whole seeds first
        for _, entry, runs in cells
        if runs[i] not in ledger
    ]
    header = {
        "study": f"{config.name}: {len(entries)} algorithms in {len(named)} regimes, seeds"
        f" {numbers[0]} to {numbers[-1]}",
        "runs": f"{len(missing)} to do of {len(cells) * len(numbers)}, {steps} steps each",
        "folder": str(output),
    }
    reporting.print_header(header, title="python -m research.compare", console=console)
    if missing:
        settings.add_machine(machine_line())
    began = time.monotonic()
    for number, (one, entry) in enumerate(missing, start=1):
        console.print(f"run {number} of {len(missing)}: {one.key}", highlight=False, markup=False)
        folder = output / "runs" / _folder_name(one, entry)
        ledger.add(one, _trained(config, one, entry, folder, console))
        for name in NOT_KEPT:
            shutil.rmtree(folder / name, ignore_errors=True)
        left = (time.monotonic() - began) / number * (len(missing) - number)
        console.print(f"{compact_duration(left)} to go", highlight=False)
    found = {
        "version": grre_jax.__version__,
        "machines": settings.machines,
        "configuration": shared,
        "regimes": {name: dataclasses.asdict(regime) for name, regime in named.items()},
        "algorithms": {entry.label: entry.identity for entry in entries},
        "cells": [
            {"regime": name, "algorithm": entry.label, "seeds": list(numbers)}
            | {"runs": [ledger[one] for one in runs]}
            for name, entry, runs in cells
        ],
    }
    compare_report.write(output, found)
    console.print(f"wrote {output}/compare.json, compare.md and compare.png", highlight=False)
    return found


def _entries(algorithms: Sequence[str], only: Sequence[str]) -> tuple[Entry, ...]:
    known = {entry.label: entry for entry in ENTRIES}
    for label in only:
        if label not in known:
            raise UsageError(f"--only {label!r}: expected one of {', '.join(map(repr, known))}")
    return *(known[label] for label in dict.fromkeys(only or LABELS)), *strangers(algorithms)


def _shared(config: Config) -> dict[str, Any]:
    """The fields of the configuration that the runs share."""
    return {
        name: value
        for name, value in json.loads(config.to_json()).items()
        if name not in ("run_dir", "objective", "regime", "seed")
    }


def _folder_name(one: Run, entry: Entry) -> str:
    """The name of a run's folder.

    It changes with the file of a user-defined algorithm: no run continues from a checkpoint of
    another loss.
    """
    digest = zlib.crc32(json.dumps([one.key, entry.identity]).encode())
    return f"{re.sub('[^A-Za-z0-9.]+', '-', one.key)}-{digest:08x}"


def _trained(config: Config, one: Run, entry: Entry, folder: Path, console: Any) -> Result:
    """Trains a run to its end; returns its curves."""
    own = dataclasses.replace(
        config,
        run_dir=str(folder),
        seed=one.seed,
        objective=ObjectiveConfig(entry.name, dict(entry.options)),
        regime=one.regime,
        checkpoint=dataclasses.replace(config.checkpoint, export=False),
    )
    # Before its first checkpoint, a run that was killed begins again.
    begun = bool(listed(folder / "checkpoints"))
    try:
        loop.train(own, resume=begun, overwrite=not begun, console=console)
    except DataError as error:
        logged = (folder / "metrics.jsonl").exists()
        updates = reporting.read_metrics(folder).get("train", []) if logged else []
        lost = isinstance(error, Diverged) or NOT_FINITE.search(str(error))
        if not lost or not updates:  # a warm start that diverges is no algorithm's doing
            raise
        return _curves(config, folder, [updates[-1]["step"]])
    return _curves(config, folder, [])


def _curves(config: Config, folder: Path, diverged: list[float | None]) -> Result:
    """The curves of a run: its evaluations, up to the step at which its policy stopped being
    finite, if it did.
    """
    metrics = reporting.read_metrics(folder)
    if not accuracy_known(metrics):
        raise DataError(
            f"the comparison is of accuracy, and verdicts of task {config.task.name} do not say"
            " what is correct: return Verdict(reward, correct=...)"
        )
    rows = {row["step"]: row for row in metrics["eval"]}
    for step in diverged:
        rows = {at: row for at, row in rows.items() if at < step}
    curves = {short: [row.get(name) for row in rows.values()] for short, name in CURVES.items()}
    return {"step": list(rows), **curves, "diverged": diverged}
