"""The `grre study` part of the command line."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from grre_jax.cli.parsing import CONFIG, add_command, configured, until_stopped

CONTINUES = "Continues where it was stopped: a run that is in the folder is not done again."


_RUNS = """
    --algorithm NAME|FILE.py:FUNCTION...: another algorithm, or a user-defined loss, that takes
        part; with numbers of its own in brackets, 'dr_grpo(constant_length=12)'
"""
_TINY = """
    --output DIR: the folder of the runs and the results; runs/STUDY-TASK (runs/STUDY-TASK-quick
        with --quick) if not given
    --quick: a few minutes: few seeds, and a part of the study
    --first-seed N [300]: the first of the seeds
    --workers N: number of processes; one per core if not given
    --task NAME [arithmetic]: the study's task: arithmetic, precedence or sharpening
    --greedy-bound X: greedy accuracy that no warm start may exceed; that of the task if not given
"""


def add_parsers(studies: argparse._SubParsersAction) -> None:
    """Adds the studies to those of the command line."""
    add_command(
        studies,
        "bandit",
        _bandit,
        "the limit of a three-arm bandit's policy under each objective, and the strength that finds"
        " the best arm",
        """
        --output DIR [runs/bandit]: the folder for bandit.json and bandit.png
        --seed N [0]: of the sampled updates
        """,
    ).add_argument(
        "--algorithms",
        nargs="+",
        metavar="NAME",
        help="only these; all, and the surrogate they derive from, if not given",
    )
    add_command(
        studies,
        "claims",
        _claims,
        "the paper's claims measured with tiny models: runs, verdicts, tables and figures",
        _TINY,
        """
        --seeds N: number of seeds; 18, or 3 with --quick, if not given
        --again N: number of seeds of a second set, judged beside the first; 6 if not given, 0 for
            none
        --claim NAME...: only this claim, C1 to C7; those of the task if not given
        """,
        _RUNS,
        description=CONTINUES,
    )
    add_command(
        studies,
        "staleness",
        _staleness,
        "every algorithm at every degree of off-policyness: heat maps and a ranking",
        _TINY,
        "--seeds N: number of seeds; 6, or 2 with --quick, if not given",
        _RUNS,
        description=CONTINUES,
    )
    _add_compare(studies)
    add_command(
        studies,
        "replay",
        _replay,
        "the final policy of a finished run of claims or staleness, computed again",
        """
        folder FOLDER: the folder of the study
        key RUN: the run's key, as runs.jsonl has it
        --output DIR!: the folder to write; it does not exist or is empty
        """,
        description="Writes a Hugging Face folder, and prints how it is evaluated greedily.",
    )


def _add_compare(studies: argparse._SubParsersAction) -> None:
    add_command(
        studies,
        "compare",
        _compare,
        "a configuration under several algorithms and regimes, trained by grre train",
        CONFIG,
        """
        --output DIR: the folder of the runs and the results; runs/compare-NAME if not given
        --regime REGIME...: on-policy, offline, 'sync N', 'offset N', 'staleness N' or 'reuse N';
            on-policy, 'sync 20' and offline if not given
        --only LABEL...: an algorithm that takes part, by its label in tables, in any case, besides
            those of --algorithm
        --seeds N: number of seeds; 1 if not given
        --first-seed N [0]: the first of the seeds
        --greedy-bound X [0.4]: greedy accuracy that a pretrained model may not exceed before the
            first run
        """,
        _RUNS,
        description="Continues where it was stopped. Fields of the configuration are overridden as"
        " for train.",
        takes_fields=True,
        computes=True,
    )


def _bandit(known: argparse.Namespace, _: list[str]) -> None:
    from grre_jax.studies.bandit import report as bandit_report

    bandit_report.run(known.output, seed=known.seed, names=known.algorithms)


def _claims(known: argparse.Namespace, _: list[str]) -> None:
    _leave_accelerators()
    from grre_jax.studies.claims import study as claims_study

    given = _given(known) | {"again": known.again, "claims": tuple(known.claim)}
    claims_study.run(_output(known), **given)


def _staleness(known: argparse.Namespace, _: list[str]) -> None:
    _leave_accelerators()
    from grre_jax.studies.staleness import study as staleness_study

    staleness_study.run(_output(known), **_given(known))


def _replay(known: argparse.Namespace, _: list[str]) -> None:
    _leave_accelerators()
    from grre_jax.console import make_console
    from grre_jax.studies.in_graph import replay

    replay.replay(Path(known.folder), known.key, Path(known.output), make_console())


def _compare(known: argparse.Namespace, rest: list[str]) -> int:
    from grre_jax.studies.compare import study as compare_study

    config = configured(known, rest)
    given = {"regimes": known.regime, "algorithms": known.algorithm, "only": known.only}
    given |= {name: getattr(known, name) for name in ("seeds", "first_seed", "greedy_bound")}
    output = Path(known.output or f"runs/compare-{config.name}")
    return until_stopped(
        lambda: compare_study.run(config, output, **given), then=": the same command continues"
    )


def _leave_accelerators() -> None:
    """Keeps this process off accelerators: they have one owner, the worker."""
    import jax

    jax.config.update("jax_platforms", "cpu")


def _output(known: argparse.Namespace) -> Path:
    quick = "-quick" if known.quick else ""
    return Path(known.output or f"runs/{known.study}-{known.task}{quick}")


def _given(known: argparse.Namespace) -> dict[str, Any]:
    names = ("quick", "seeds", "first_seed", "workers", "task", "greedy_bound")
    return {name: getattr(known, name) for name in names} | {"algorithms": tuple(known.algorithm)}
