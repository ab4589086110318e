"""The processes of a run's folder: RUN/explorers/NAME.json, one per explorer, RUN/learner.json, and
RUN/run.json, which is replaced with the run.
"""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

from grre_jax import random_streams
from grre_jax.errors import DataError, UsageError
from grre_jax.storage import files
from grre_jax.training.actors import lease
from grre_jax.training.checkpoints.folder import listed

RUN_FILE = "run.json"


def mark_run(folder: Path) -> None:
    """Writes run.json, if the folder has none: the version of the run's random draws, and an
    identifier by which explorers notice that another run replaced it.
    """
    if not (folder / RUN_FILE).is_file():
        content = {"id": uuid.uuid4().hex, "random_streams": random_streams.VERSION}
        files.replace(folder / RUN_FILE, json.dumps(content) + "\n")


def require_same_draws(folder: Path) -> None:
    """Checks that this version continues a run's random draws.

    Raises:
        UsageError: the run was begun by a version of grre_jax with other draws.
        DataError: its run.json is damaged.
    """
    file = folder / RUN_FILE
    content = lease.read(file)
    if file.is_file() and "id" not in (content or {}):
        raise DataError(f"{file}: damaged; restore it from a copy, or start again with --overwrite")
    version = (content or {}).get("random_streams")
    begins_anew = content is None and not listed(folder / "checkpoints")
    if version != random_streams.VERSION and not begins_anew:
        raise UsageError(
            f"{folder / RUN_FILE}: expected random_streams {random_streams.VERSION}, got"
            f" {version!r}: the run was begun by a version of grre_jax with other random draws."
            " Finish it with that version, start again with --overwrite, or begin a run from its"
            " policy (`grre export`, then --model.path)"
        )


def run_id(folder: Path) -> str:
    """Returns the identifier of the run in a folder; "" without a run."""
    return str((lease.read(folder / RUN_FILE) or {}).get("id", ""))


def require_run(folder: Path, known: str) -> None:
    """Checks that a folder contains the run with a known identifier.

    Raises:
        DataError: the run was replaced or removed.
    """
    if run_id(folder) != known:
        raise DataError(
            f"the run in {folder} was replaced or removed meanwhile; nothing more is sealed: start"
            " this explorer again"
        )


def refuse_explorer(
    folder: Path, name: str, index: int, count: int, *, free: bool, console: Any = None
) -> None:
    """Checks that the living learner and the other living explorers go with one that begins.

    Args:
        folder: of the run.
        name: of this explorer.
        index: of its share.
        count: number of shares.
        free: it is free-running.
        console: where to report that processes of other machines are watched.

    Raises:
        UsageError: another explorer has the same share or another number of shares, or the learner
            does not train on this one's groups.
    """
    problems = {}
    for file in _explorers(folder):
        other = lease.read(file) or {}
        if file.stem == name or "explorers" not in other:
            continue
        if other["explorers"] != count:
            problems[file] = (
                f"explorer {file.stem} shares the run among {other['explorers']} and this one among"
                f" {count}: give all of them the same --explorers"
            )
        elif other.get("index") == index:
            problems[file] = (
                f"explorer {file.stem} has --index {index} of {count} too: give each its own"
                " --index, and --explorers their number"
            )
    _refuse_living(problems, console)
    file = folder / "learner.json"
    learner = lease.read(file) or {}
    if learner.get("samples", False):
        problem = (
            f"{folder} is trained by grre train, which samples by itself: start the learner with"
            " grre learn"
        )
    else:
        problem = _unlike(f"the learner of {folder}", learner, free, "explorer")
    _refuse_living({file: problem} if problem else {}, console)


def refuse_learner(
    folder: Path, *, samples: bool, free: bool, overwrite: bool, console: Any = None
) -> None:
    """Checks that the living explorers can go on beside a learner that begins.

    Args:
        folder: of the run.
        samples: the learner samples by itself.
        free: the learner takes the groups of free-running explorers.
        overwrite: the learner replaces the run.
        console: where to report that explorers of other machines are watched.

    Raises:
        UsageError: naming one that cannot.
    """
    problems = {}
    for file in _explorers(folder):
        explorer = f"explorer {file.stem} of {folder}"
        if overwrite:
            problems[file] = (
                f"{explorer} samples for the run that would be replaced: stop it first, and start"
                " it again after the learner"
            )
        elif samples:
            problems[file] = (
                f"{explorer} samples for this run, and grre train samples by itself: stop it first,"
                " or start grre learn"
            )
        elif problem := _unlike(explorer, lease.read(file) or {}, free, "learner"):
            problems[file] = problem
    _refuse_living(problems, console)


def _unlike(who: str, holder: dict[str, Any], free: bool, this: str) -> str:
    """Returns that only one of two roles is free-running; "" if both are, or none."""
    if holder.get("free_running", free) == free:
        return ""
    its, own = ("without", "with") if free else ("with", "without")
    return f"{who} runs {its} --free-running and this {this} {own} it: give both the same"


def _refuse_living(problems: dict[Path, str], console: Any) -> None:
    """Raises UsageError with the problem of the first role's file that a process holds."""
    for file in lease.living(problems, console=console):
        raise UsageError(problems[file])


def _explorers(folder: Path) -> list[Path]:
    return sorted((folder / "explorers").glob("*.json"))
