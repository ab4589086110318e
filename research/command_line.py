"""Options that the studies' commands share, and an end in one sentence for their errors."""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

from grre_jax.errors import DataError, UsageError
from grre_jax.training.stopping import Stopped
from research.in_graph.tasks import STUDY_TASKS


def make_parser(module: str, description: str) -> argparse.ArgumentParser:
    """Returns an empty parser of `python -m research.MODULE`."""
    return argparse.ArgumentParser(
        prog=f"python -m research.{module}", description=description, allow_abbrev=False
    )


def add_algorithms(parser: argparse.ArgumentParser) -> None:
    """Adds --algorithm."""
    parser.add_argument(
        "--algorithm",
        action="append",
        default=[],
        dest="algorithms",
        metavar="NAME|FILE.py:FUNCTION",
        help="another algorithm, or a user-defined loss, that takes part; with numbers of its own"
        " in brackets, 'dr_grpo(constant_length=12)'; may be given several times",
    )


def add_tiny(parser: argparse.ArgumentParser, study: str) -> None:
    """Adds the options of a study of tiny models."""
    add = parser.add_argument
    add("--output", type=Path, help=f"the folder; runs/{study}-TASK[-quick] if not given")
    add("--quick", action="store_true", help="a few minutes: few seeds, and a part of the study")
    add("--seeds", type=int, metavar="N", help="number of seeds; that of the study if not given")
    add("--first-seed", type=int, default=300, metavar="N", help="the first seed; 300")
    add("--workers", type=int, metavar="N", help="processes; one per core if not given")
    add("--task", default="arithmetic", choices=STUDY_TASKS, help="arithmetic if not given")
    add(
        "--greedy-bound",
        type=float,
        metavar="X",
        help="greedy accuracy that no warm start may exceed; that of the task if not given",
    )
    add_algorithms(parser)


def tiny(known: argparse.Namespace, study: str) -> dict[str, Any]:
    """Returns the arguments of a study's `run`."""
    leave_accelerators()
    quick = "-quick" if known.quick else ""
    return vars(known) | {"output": known.output or Path(f"runs/{study}-{known.task}{quick}")}


def leave_accelerators() -> None:
    """Keeps this process off accelerators: they have one owner, the worker."""
    jax.config.update("jax_platforms", "cpu")


def finish(work: Callable[[], Any]) -> int:
    """Runs a study; returns the exit status."""
    try:
        work()
    except (UsageError, DataError) as error:
        print(f"research: {error}", file=sys.stderr)
        return error.exit_status
    except Stopped as stopped:
        print(f"research: {stopped}: the same command continues", file=sys.stderr)
        return stopped.exit_status
    except KeyboardInterrupt:
        print("research: interrupted; the same command continues", file=sys.stderr)
        return 130
    return 0
