"""`grre study compare CONFIG`: one configuration trained under several algorithms and regimes, by `grre train` itself: a real model, the same questions and draws for all.

A cell is an algorithm in a regime. Its runs lie in OUTPUT/runs, one after the other, so that an accelerator has one owner. A run that was stopped or killed goes on from its last
checkpoint; of a finished one the curves stay, and the checkpoints go, for those of a real model are large.
"""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from grre_jax import reporting, whole_files
from grre_jax.config import Config, ObjectiveConfig
from grre_jax.errors import UsageError
from grre_jax.machine import machine_line
from grre_jax.reporting.progress import make_console
from grre_jax.studies import compare_report
from grre_jax.studies.entrants import ASYMRE, ENTRIES, GRPO, NARROW, REINFORCE, WEIGHT, WIDE, strangers
from grre_jax.studies.runs import Entry, Ledger, Result, Run, seeds_of
from grre_jax.training import loop
from grre_jax.training.checkpoint import listed
from grre_jax.training.regime import Regime

LABELS = (REINFORCE, GRPO, NARROW, WIDE, WEIGHT, ASYMRE)
REGIMES = ("on-policy", "sync 20", "offline")
# What a finished run need not keep: a checkpoint of a real model takes gigabytes.
NOT_KEPT = ("checkpoints", "model", "rollouts", "tensorboard")


def regime_of(name: str) -> Regime:
    """The regime that a name stands for: on-policy, offline, or a kind with its number ("sync 20", "offset 10", "staleness 8", "reuse 4").

    Raises:
        UsageError: it stands for none.
    """
    if name == "on-policy":
        return Regime()
    if name == "offline":
        return Regime(offline=True)
    kind, _, number = name.partition(" ")
    field = {"sync": "sync_interval", "offset": "sync_offset", "staleness": "staleness", "reuse": "reuse"}.get(kind)
    if field is None or not re.fullmatch("[1-9][0-9]*", number):
        raise UsageError(
            f"--regime {name!r} is none: say on-policy, offline, or one of 'sync N', 'offset N', 'staleness N', 'reuse N' with N from 1"
        )
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
    """Does what is missing of the comparison, and writes its results.

    Args:
        config: of all runs, but for objective, regime, seed and folder. It evaluates as often as the curves are to have points.
        output: the folder: runs.jsonl; then compare.json, compare.md and compare.png.
        regimes: names as for `regime_of`; `REGIMES` if none is given.
        algorithms: names or FILE.py:FUNCTION of further ones, besides `LABELS`.
        only: labels of the algorithms that take part, besides `algorithms`; all if none is given.
        seeds: how many a cell; 1 if None.
        first_seed: the first of them.
        console: where to say what goes on; standard output if None.

    Returns:
        What compare.json holds.

    Raises:
        UsageError: for a name or number out of its domain, a configuration that cannot be compared, or a folder of another one's runs.
        DataError: as `grre train`, or for a file of the folder that cannot be read.
    """
    console = console or make_console()
    entries = _entries(algorithms, only)
    named = {name: regime_of(name) for name in regimes or REGIMES}
    judged = seeds_of(seeds, 1, first_seed, least=1)
    _agree(output, config)
    ledger = Ledger(output / "runs.jsonl")
    cells = {
        (name, entry.label): [_run(config, regime, entry, seed) for seed in judged] for name, regime in named.items() for entry in entries
    }
    missing = [
        (one, entry)
        for seed in range(len(judged))
        for name in named
        for entry in entries
        if (one := cells[name, entry.label][seed]) not in ledger
    ]
    reporting.print_header(
        {
            "study": f"{config.name}: {len(entries)} algorithms in {len(named)} regimes, seeds {judged[0]} to {judged[-1]}",
            "runs": f"{len(missing)} to do, {len(cells) * len(judged) - len(missing)} done, {config.training.steps} steps each",
            "folder": str(output),
        },
        title="grre study compare",
        console=console,
    )
    for number, (one, entry) in enumerate(missing, start=1):
        console.print(f"run {number} of {len(missing)}: {one.key}", highlight=False)
        folder = output / "runs" / re.sub("[^A-Za-z0-9.]+", "-", one.key).strip("-").lower()
        ledger.add(one, _trained(config, one, entry, folder, console))
        for what in NOT_KEPT:
            shutil.rmtree(folder / what, ignore_errors=True)
    found = compare_report.results(config, cells, ledger, machine_line())
    compare_report.write(output, found)
    console.print(f"wrote {output}/compare.json, compare.md and compare.png", highlight=False)
    return found


def _entries(algorithms: Sequence[str], only: Sequence[str]) -> tuple[Entry, ...]:
    further = strangers(algorithms)
    known = {entry.label: entry for entry in (*ENTRIES, *further)}
    if unknown := [label for label in only if label not in known]:
        raise UsageError(f"--only {unknown[0]!r} is no algorithm of the comparison: take one of {', '.join(known)}")
    return tuple(known[label] for label in dict.fromkeys((*(only or LABELS), *(entry.label for entry in further))))


def _agree(output: Path, config: Config) -> None:
    """Writes the configuration that the runs share, or compares it with what is there. UsageError if it cannot be compared, or is another one."""
    if not config.evaluation.every or not config.evaluation.questions:
        raise UsageError("the comparison is of evaluations: set --evaluation.every and --evaluation.questions above 0")
    if not config.samples:
        raise UsageError("the comparison is of regimes, and a configuration with data.path samples nothing: leave --data.path empty")
    output.mkdir(parents=True, exist_ok=True)
    path = output / "config.json"
    own = dataclasses.replace(config, run_dir="", seed=0, objective=ObjectiveConfig("reinforce"), regime=Regime()).to_json()
    if path.exists() and json.loads(path.read_text()) != json.loads(own):
        raise UsageError(f"--output {output}: it holds runs of another configuration ({path}): name another folder")
    whole_files.replace(path, own)


def _run(config: Config, regime: Regime, entry: Entry, seed: int) -> Run:
    return Run(entry.label, regime, config.optimizer.learning_rate, seed, config.training.steps, warm=0.0)


def _trained(config: Config, one: Run, entry: Entry, folder: Path, console: Any) -> Result:
    """A run's curves, once it is done."""
    own = dataclasses.replace(
        config,
        run_dir=str(folder),
        seed=one.seed,
        objective=ObjectiveConfig(entry.name, dict(entry.options)),
        regime=one.regime,
        checkpoint=dataclasses.replace(config.checkpoint, export=False),
    )
    begun = bool(listed(folder / "checkpoints"))  # before its first checkpoint a run that was killed begins anew
    loop.train(own, resume=begun, overwrite=not begun, console=console)
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    evaluations = [row for row in rows if row["kind"] == "eval"]
    fields = {"step": "step", "accuracy": "accuracy", "kl": "kl_to_start", "length": "response_length"}
    return {short: [row.get(field) for row in evaluations] for short, field in fields.items()}
