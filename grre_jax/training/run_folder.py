"""The run's folder: its checks, its creation, and a removal that leaves the whole run or none of it
if it is killed.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from grre_jax import random_streams
from grre_jax.domains import ConfigError
from grre_jax.errors import DataError, UsageError
from grre_jax.storage import files, locks
from grre_jax.storage.remote import is_url
from grre_jax.training.checkpoints.folder import listed
from grre_jax.training.config.run import RESUMABLE_FIELDS, Config, differences, from_dict

LOCK = ".lock"  # of the process that trains
RUN_FILE = "run.json"
# The lock is made before anything else, and stays when the run is replaced. A process killed at its
# first write leaves the second; runs of earlier versions have the others.
OF_NO_RUN = (LOCK, ".config.json.partial", "learner.json", "learner.fence", ".learner.lock")
REMOVED = ".removed-"  # folder within the run's folder for files that an --overwrite removes


def of_no_run(path: Path) -> bool:
    """True for entries of a folder that do not belong to a run."""
    return path.name in OF_NO_RUN or path.name.startswith(REMOVED)


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Makes a run's folder and keeps other processes of this machine from training in it; the
    kernel drops the lock when the process ends, in any way.

    Raises:
        UsageError: another process trains there.
    """
    folder.mkdir(parents=True, exist_ok=True)
    refusal = (
        f"run folder {folder} is in use by another process: stop that one first, or choose another"
        " with --run-dir"
    )
    with locks.exclusive(folder / LOCK, refusal):
        yield


def mark_run(folder: Path) -> None:
    """Writes run.json, if the folder has none: the version of the run's random draws."""
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
    content: Any = {}
    if file.is_file():
        with contextlib.suppress(ValueError):
            content = json.loads(file.read_text(errors="replace"))
        if not isinstance(content, dict) or "id" not in content:
            raise DataError(
                f"{file}: damaged; restore it from a copy, or start again with --overwrite"
            )
    elif not listed(folder / "checkpoints"):
        return
    version = content.get("random_streams")
    if version != random_streams.VERSION:
        raise UsageError(
            f"{file}: expected random_streams {random_streams.VERSION}, got {version!r}: the run"
            " was begun by a version of grre_jax with other random draws. Finish it with that"
            " version, start again with --overwrite, or begin a run from its policy (`grre"
            " export`, then --model.path)"
        )


def half_removed(folder: Path) -> bool:
    """True if a folder without config.json is the rest of a run that was being removed."""
    return any((removed / "config.json").is_file() for removed in folder.glob(REMOVED + "*"))


def empty(folder: Path) -> None:
    """Moves the run aside, config.json first, so that an interruption leaves either the whole run
    or none.

    Raises:
        OSError: a file cannot be moved.
    """
    removed = folder / f"{REMOVED}{uuid.uuid4().hex}"
    removed.mkdir()
    entries = [path for path in folder.iterdir() if not of_no_run(path)]
    for path in sorted(entries, key=lambda path: path.name != "config.json"):
        path.rename(removed / path.name)


def check_run_folder(config: Config, *, resume: bool, overwrite: bool) -> bool:
    """Checks that the run's folder may be made, continued or replaced, without changing it.

    Args:
        config: the run.
        resume: continue the run in the folder.
        overwrite: replace the run in the folder.

    Returns:
        True if a run is to be replaced.

    Raises:
        UsageError: the folder exists and neither `resume` nor `overwrite` is given; it belongs to
            another configuration; or the run reads files that `overwrite` would remove.
        DataError: `resume` of a folder that is not a run.
    """
    folder = config.folder
    if resume and overwrite:
        raise UsageError("--resume and --overwrite exclude each other")
    taken = folder.exists() and not (folder.is_dir() and all(map(of_no_run, folder.iterdir())))
    if resume:
        if not taken:
            raise DataError(
                f"there is no run to resume in {config.location}: start it without --resume"
            )
        require_same_run(config)
        return False
    if not taken:
        return False
    if not overwrite:
        raise UsageError(
            f"run folder {config.location} already exists: continue it with --resume, replace it"
            " with --overwrite, or choose another with --run-dir"
        )
    if not ((folder / "config.json").is_file() or half_removed(folder)):
        raise UsageError(
            f"{config.location} is not the folder of a run (it has no config.json), so --overwrite"
            " leaves it alone: choose another with --run-dir"
        )
    for name, path in (
        ("data.path", config.data.path),
        ("model.path", config.model.path),
        ("model.adapter", config.model.adapter),
        *(("data.mix", entry.path) for entry in config.data.entries),
    ):
        if path and _inside(path, config.location):
            domain = f"a path outside run folder {config.location}, which --overwrite would remove"
            raise ConfigError(name, domain, path)
    return True


def open_run_folder(config: Config, *, resume: bool, overwrite: bool) -> Path:
    """Makes the run's folder, after `check_run_folder`, and writes its config.json; returns it."""
    folder = config.folder
    if check_run_folder(config, resume=resume, overwrite=overwrite):
        empty(folder)
    for removed in folder.glob(REMOVED + "*"):  # also of a process that was killed
        shutil.rmtree(removed)
    folder.mkdir(parents=True, exist_ok=True)
    files.replace(folder / "config.json", config.to_json())
    return folder


def _inside(path: str, folder: str) -> bool:
    """True if a path or URL is a folder, or is below it."""
    if is_url(path) or is_url(folder):
        return f"{path.rstrip('/')}/".startswith(f"{folder.rstrip('/')}/")
    return Path(path).resolve().is_relative_to(Path(folder).resolve())


def load_config(folder: Path) -> Config:
    """Returns the configuration of the run in `folder`.

    Raises:
        DataError: the folder is not a run's, or its config.json cannot be read.
    """
    file = folder / "config.json"
    if not file.is_file():
        raise DataError(f"{folder} is not a run folder: it has no config.json")
    try:
        return from_dict(json.loads(file.read_text()))
    except (UsageError, TypeError, ValueError) as error:
        raise DataError(f"{file}: damaged or of another version: {error}") from error


def split_step(name: str) -> tuple[str, int | None]:
    """Returns ("runs/a", 40) for "runs/a:40"; a path that exists as it is has no step."""
    folder, colon, step = name.rpartition(":")
    if colon and step.isdecimal() and (is_url(name) or not Path(name).exists()):
        return folder, int(step)
    return name, None


def require_same_run(config: Config) -> int:
    """Checks that the run in the folder has this configuration, but for what a resumed run may
    change.

    Returns:
        The number of steps that the stored configuration names.

    Raises:
        UsageError: it has another configuration.
        DataError: its configuration is missing or cannot be read.
    """
    stored = load_config(config.folder)
    if changed := changed_fields(stored, config):
        raise UsageError(
            f"run folder {config.location} was made by another configuration (different:"
            f" {', '.join(changed)}): give the same one, or choose another folder with --run-dir"
        )
    return stored.training.steps


def changed_fields(stored: Config, config: Config) -> list[str]:
    """Returns the dotted names of the fields by which a stored configuration is another run than
    `config`, without those that a resumed run may change.
    """
    old, new = (json.loads(c.to_json()) for c in (stored, config))
    return [
        name
        for name in differences(old, new)
        if not f"{name}.".startswith(tuple(f"{field}." for field in RESUMABLE_FIELDS))
    ]
