"""One configuration trained under several algorithms and regimes,
by `grre train` itself: a real model, the same questions and draws for all.

A cell is an algorithm in a regime. Its runs are computed one after the other, so that an
accelerator has one owner, in OUTPUT/runs. A run that was stopped or killed continues from its last
checkpoint. The checkpoints of a finished one are removed, for those of a real model are large; the
rest stays. A run whose policy stops being finite is a result too: its curves end there.

A pretrained start is measured once, before the first run; where it has solved the task, nothing is
run.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import re
import shutil
import time
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from grre_jax import reporting
from grre_jax.config import Config, ObjectiveConfig, Regime
from grre_jax.console import make_console
from grre_jax.errors import DataError, UsageError
from grre_jax.reporting.metrics import accuracy_known
from grre_jax.reporting.progress import compact_duration
from grre_jax.tasks.task import probability
from grre_jax.training import loop
from grre_jax.training.checkpoints.contents import listed
from grre_jax.training.runtime.delayed_metrics import Diverged
from research.compare import report as compare_report
from research.compare import start
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
GREEDY_BOUND = 0.4  # of a pretrained start
# What a finished run need not keep: a checkpoint of a real model takes gigabytes. Its rollouts take
# little, and `grre report` shows completions from them.
NOT_KEPT = ("checkpoints", "tensorboard")
# The words in which a run's own samples are refused where its steps were finite and its policy no
# longer is.
NOT_FINITE = re.compile(r"_logprobs is wrong \((nan|-?inf)\)")


def regime_of(name: str) -> Regime:
    """Returns the regime of a name: on-policy, offline, or a kind with its number ("sync 20",
    "offset 10", "staleness 8", "reuse 4").

    Raises:
        UsageError: the name is none of these.
    """
    if name == "on-policy":
        return Regime()
    if name == "offline":
        return Regime(offline=True)
    kind, _, number = name.partition(" ")
    fields = {"sync": "sync_interval", "offset": "sync_offset"}
    field = (fields | {"staleness": "staleness", "reuse": "reuse"}).get(kind)
    if field is None or not re.fullmatch("[1-9][0-9]*", number):
        raise UsageError(
            f"--regime {name!r} is none: say on-policy, offline, or one of 'sync N', 'offset N',"
            " 'staleness N', 'reuse N' with N from 1"
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
    greedy_bound: float = GREEDY_BOUND,
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
        seeds, first_seed: number of seeds per cell (1 if None), and the first of them.
        greedy_bound: greedy accuracy that a pretrained start may not exceed.
        console: to print on; standard output if None.

    Returns:
        The content of compare.json.

    Raises:
        UsageError: a name or number is out of its domain, the configuration cannot be compared,
            the folder has runs of another one, or the start is over its bound.
        DataError: as `grre train`, or a file of the folder cannot be read.
    """
    console = console or make_console()
    entries = _entries(algorithms, only)
    named = {name: regime_of(name) for name in regimes or REGIMES}
    judged = seeds_of(seeds, 1, first_seed, least=1)
    _check(config, greedy_bound)
    ledger = Ledger(output / "runs.jsonl")
    settings = Settings(output, {"configuration": _shared(config)}, entries, ledger)
    rate, steps = config.optimizer.learning_rate, config.training.steps
    cells = {
        (name, entry.label): [Run(entry.label, regime, rate, seed, steps) for seed in judged]
        for name, regime in named.items()
        for entry in entries
    }
    missing = [one for row in zip(*cells.values(), strict=True) for one in row if one not in ledger]
    _print_plan(config, cells, missing, output, console)
    if missing:
        settings.add_machine(machine_line())
    begun = _begun(dataclasses.replace(config, seed=judged[0]), output, greedy_bound, console)
    _complete(config, missing, entries, ledger, output / "runs", begun, console)
    shared, machines = _shared(config), settings.machines
    found = compare_report.results(shared, begun, named, entries, cells, ledger, machines)
    compare_report.write(output, found)
    console.print(f"wrote {output}/compare.json, compare.md and compare.png", highlight=False)
    return found


def _print_plan(
    config: Config,
    cells: dict[tuple[str, str], list[Run]],
    missing: Sequence[Run],
    output: Path,
    console: Any,
) -> None:
    regimes, labels = (len({cell[i] for cell in cells}) for i in (0, 1))
    seeds = [run.seed for run in next(iter(cells.values()))]
    plan = f"{labels} algorithms in {regimes} regimes, seeds {seeds[0]} to {seeds[-1]}"
    done = len(cells) * len(seeds) - len(missing)
    header = {
        "study": f"{config.name}: {plan}",
        "runs": f"{len(missing)} to do, {done} done, {config.training.steps} steps each",
        "folder": str(output),
    }
    reporting.print_header(header, title="python -m research.compare", console=console)


def _begun(config: Config, output: Path, bound: float, console: Any) -> dict[str, Any] | None:
    """The figures of the start that all runs share, within its bound; None if they share none."""
    if not start.is_shared(config):
        return None
    found = start.measure(config, output / "start.json")
    console.print(f"start    {start.told(found)}", highlight=False)
    start.check(found, bound)
    return found


def _complete(
    config: Config,
    missing: Sequence[Run],
    entries: Sequence[Entry],
    ledger: Ledger,
    folder: Path,
    begun: dict[str, Any] | None,
    console: Any,
) -> None:
    """Does the missing runs, one after the other; `begun` is the start that they share, if any."""
    scores = begun and begun["scores"]
    by_label, began = {entry.label: entry for entry in entries}, time.monotonic()
    for number, one in enumerate(missing, start=1):
        console.print(f"run {number} of {len(missing)}: {one.key}", highlight=False, markup=False)
        entry = by_label[one.algorithm]
        own = folder / _folder_name(one, entry)
        ledger.add(one, _trained(config, one, entry, own, scores, console))
        for name in NOT_KEPT:
            shutil.rmtree(own / name, ignore_errors=True)
        each, left = (time.monotonic() - began) / number, len(missing) - number
        step = compare_report.diverged(ledger[one])
        ended = "" if step is None else f"; this one diverged at step {step}"
        console.print(
            f"a run takes {compact_duration(each)}, {left} to go,"
            f" {compact_duration(each * left)}{ended}",
            highlight=False,
        )


def _entries(algorithms: Sequence[str], only: Sequence[str]) -> tuple[Entry, ...]:
    further = strangers(algorithms)
    known = {entry.label: entry for entry in (*ENTRIES, *further)}
    any_case = {label.lower(): label for label in reversed(known)} | {one: one for one in known}
    named = [any_case.get(label, any_case.get(label.lower(), "")) for label in only]
    if "" in named:
        wrong = only[named.index("")]
        near = difflib.get_close_matches(wrong.lower(), [label.lower() for label in known], n=1)
        raise UsageError(
            f"--only {wrong!r} is no algorithm of the"
            f" comparison{f'; did you mean {any_case[near[0]]!r}?' if near else '.'} It has"
            + "".join(f"\n  {label!r}" for label in known)  # one a line: they have commas
        )
    return tuple(
        known[label]
        for label in dict.fromkeys((*(named or LABELS), *(entry.label for entry in further)))
    )


def _check(config: Config, greedy_bound: float) -> None:
    """UsageError if a configuration cannot be compared, or a bound is no probability."""
    probability("greedy_bound", greedy_bound)
    if not config.evaluation.every or not config.evaluation.questions:
        raise UsageError(
            "the comparison is of evaluations: set --evaluation.every and --evaluation.questions"
            " above 0"
        )
    if not config.samples:
        raise UsageError(
            "the comparison is of regimes, and a configuration with data.path samples nothing:"
            " leave --data.path empty"
        )


def _shared(config: Config) -> dict[str, Any]:
    """The fields of the configuration that the runs share."""
    return {
        name: value
        for name, value in json.loads(config.to_json()).items()
        if name not in ("run_dir", "objective", "regime", "seed")
    }


def _folder_name(one: Run, entry: Entry) -> str:
    """The name of a run's folder.

    That of a user-defined algorithm differs from those of equal spelling, and changes with its
    file: no run continues from a checkpoint of another loss.
    """
    digest = zlib.crc32(json.dumps([one.key, entry.identity]).encode())
    version = "" if entry in ENTRIES else f"-{digest:08x}"
    return re.sub("[^A-Za-z0-9.]+", "-", one.key).strip("-").lower() + version


def _trained(
    config: Config,
    one: Run,
    entry: Entry,
    folder: Path,
    scores: dict[str, float] | None,
    console: Any,
) -> Result:
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
        options = {"resume": begun, "overwrite": not begun, "console": console}
        loop.train(own, **options, start_scores=scores)
    except DataError as error:
        logged = (folder / "metrics.jsonl").exists()
        updates = reporting.read_metrics(folder).get("train", []) if logged else []
        lost = isinstance(error, Diverged) or NOT_FINITE.search(str(error))
        if not lost or not updates:  # a warm start that diverges is no algorithm's doing
            raise
        return _curves(config, folder, diverged=updates[-1]["step"])
    return _curves(config, folder)


def _curves(config: Config, folder: Path, diverged: int | None = None) -> Result:
    """The curves of a run: its evaluations, up to the step at which its policy stopped being
    finite, if it did, and None from there on.
    """
    metrics = reporting.read_metrics(folder)
    if not accuracy_known(metrics):
        raise start.unknown(config)
    rows = {row["step"]: row for row in metrics["eval"]}
    if diverged is not None:
        planned = {*range(0, config.training.steps, config.evaluation.every), config.training.steps}
        rows = {step: rows.get(step, {}) if step < diverged else {} for step in sorted(planned)}
    fields = {
        "accuracy": "accuracy",
        "low": "accuracy_low",
        "high": "accuracy_high",
        "greedy_accuracy": "greedy_accuracy",
        "kl": "kl_to_start",
        "length": "response_length",
    }
    curves = {short: [row.get(field) for row in rows.values()] for short, field in fields.items()}
    return {"step": list(rows), **curves, "diverged": [] if diverged is None else [diverged]}
