"""What `grre study` may be told of the studies that are made of runs."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any


def add_parsers(studies: argparse._SubParsersAction) -> None:
    """Adds `claims` and `staleness` to the studies of the command line."""
    claims = studies.add_parser(
        "claims",
        help="the paper's claims measured with tiny models: runs, verdicts, tables and figures",
        description="Goes on where it was stopped: a run that is in the folder is not done again.",
        allow_abbrev=False,
    )
    _shared(claims, "claims", "10, or 4 with --quick")
    claims.set_defaults(run=_claims)
    staleness = studies.add_parser(
        "staleness",
        help="every algorithm at every degree of off-policyness: heat maps and a ranking",
        description="Goes on where it was stopped: a run that is in the folder is not done again.",
        allow_abbrev=False,
    )
    _shared(staleness, "staleness", "6, or 2 with --quick")
    staleness.set_defaults(run=_staleness)


def _shared(parser: argparse.ArgumentParser, name: str, seeds: str) -> None:
    parser.add_argument(
        "--output",
        metavar="DIR",
        help=f"the folder for the runs and what follows from them; runs/{name} (runs/{name}-quick with --quick) if not given",
    )
    parser.add_argument("--quick", action="store_true", help="a few minutes: few seeds, and a part of the study")
    parser.add_argument("--seeds", type=int, metavar="N", help=f"how many; {seeds} if not given")
    parser.add_argument("--first-seed", type=int, default=300, metavar="N", help="the first of them; 300 if not given")
    parser.add_argument(
        "--algorithm",
        action="append",
        default=[],
        metavar="NAME|FILE.py:FUNCTION",
        help="another algorithm, or a loss of your own, that takes part; may be repeated",
    )
    parser.add_argument("--workers", type=int, metavar="N", help="processes; one a core if not given")


def _claims(known: argparse.Namespace, _: list[str]) -> int:
    _leave_accelerators()
    from grre_jax.studies import claims_study

    claims_study.run(_output(known, "claims"), **_given(known))
    return 0


def _staleness(known: argparse.Namespace, _: list[str]) -> int:
    _leave_accelerators()
    from grre_jax.studies import staleness_study

    staleness_study.run(_output(known, "staleness"), **_given(known))
    return 0


def _leave_accelerators() -> None:
    """This process computes next to nothing; an accelerator has one owner, and that is the worker."""
    import jax

    jax.config.update("jax_platforms", "cpu")


def _output(known: argparse.Namespace, name: str) -> Path:
    return Path(known.output or (f"runs/{name}-quick" if known.quick else f"runs/{name}"))


def _given(known: argparse.Namespace) -> dict[str, Any]:
    return {
        "quick": known.quick,
        "seeds": known.seeds,
        "first_seed": known.first_seed,
        "algorithms": tuple(known.algorithm),
        "workers": known.workers,
    }
