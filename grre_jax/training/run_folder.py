"""The run's folder: its checks, its creation, and a removal that leaves the whole run or none of it
if it is killed.
"""

from __future__ import annotations

import json
import uuid
from pathlib import Path

from grre_jax.errors import DataError, UsageError
from grre_jax.storage import files, store_path
from grre_jax.storage.store_path import StorePath, inside, remove_tree
from grre_jax.training.config.run import RESUMABLE_FIELDS, Config, differences, from_dict

# The lease is written before anything else, and stays when the run is replaced. A process killed at
# its first write leaves the last of these.
LEASE_FILES = (
    "learner.json",
    "learner.fence",
    ".learner.json.partial",
    ".learner.lock",
    ".config.json.partial",
)
REMOVED = ".removed-"  # folder within the run's folder for files that an --overwrite removes


def of_no_run(path: Path | StorePath) -> bool:
    """True for entries of a folder that do not belong to a run."""
    return path.name in LEASE_FILES or path.name.startswith(REMOVED)


def half_removed(folder: Path | StorePath) -> bool:
    """True if a folder without config.json is the rest of a run that was being removed."""
    return any((removed / "config.json").is_file() for removed in folder.glob(REMOVED + "*"))


def empty(folder: Path | StorePath) -> None:
    """Moves the run aside, config.json first, so that an interruption leaves either the whole run
    or none.

    In an object store, where moving is copying, config.json alone is moved and the rest is removed.

    Raises:
        OSError: a file cannot be moved.
    """
    removed = folder / f"{REMOVED}{uuid.uuid4().hex}"
    removed.mkdir()
    entries = [path for path in folder.iterdir() if not of_no_run(path)]
    for path in sorted(entries, key=lambda path: path.name != "config.json"):
        if isinstance(path, Path):
            path.rename(removed / path.name)
            continue
        if path.name == "config.json":
            (removed / path.name).write_text(path.read_text())
        path.remove_all()


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
    if resume and not taken:
        raise DataError(f"there is no run to resume in {folder}: start it without --resume")
    if resume:
        require_same_run(config)
    elif taken and not overwrite:
        raise UsageError(
            f"run folder {folder} already exists: continue it with --resume, replace it with"
            " --overwrite, or choose another with --run-dir"
        )
    elif taken and not (folder / "config.json").is_file() and not half_removed(folder):
        raise UsageError(
            f"{folder} is not the folder of a run (it has no config.json), so --overwrite leaves it"
            " alone: choose another with --run-dir"
        )
    elif taken:
        _check_reads_nothing_inside(config, folder)
    return taken and overwrite


def open_run_folder(config: Config, *, resume: bool, overwrite: bool) -> Path | StorePath:
    """Makes the run's folder, after `check_run_folder`, and writes its config.json; returns it."""
    folder = config.folder
    if check_run_folder(config, resume=resume, overwrite=overwrite):
        empty(folder)
    for removed in folder.glob(REMOVED + "*"):  # also of a process that was killed
        remove_tree(removed)
    folder.mkdir(parents=True, exist_ok=True)
    files.write_whole(folder / "config.json", config.to_json())
    return folder


def _check_reads_nothing_inside(config: Config, folder: Path | StorePath) -> None:
    read = {"data.path": config.data.path, "model.path": config.model.path}
    read |= {"model.adapter": config.model.adapter}
    if config.start_from:
        read["start_from"] = str(split_step(config.start_from)[0])
    for name, path in (*read.items(), *(("data.mix", entry.path) for entry in config.data.entries)):
        if path and inside(path, folder):
            raise UsageError(
                f"field {name} = {path} is in run folder {folder}, which --overwrite would"
                " remove: choose another folder with --run-dir"
            )


def load_config(folder: Path | StorePath) -> Config:
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


def split_step(name: str) -> tuple[Path | StorePath, int | None]:
    """Returns ("runs/a", 40) for "runs/a:40"; a name that exists as it is has no step."""
    before, colon, after = name.rpartition(":")
    if colon and after.isdecimal() and not store_path.of(name).exists():
        return store_path.of(before), int(after)
    return store_path.of(name), None


def stored_date(folder: Path | StorePath) -> str:
    """Returns the model.template_date of the run in a folder; empty if it has none."""
    try:
        return load_config(folder).model.template_date
    except DataError:
        return ""  # `require_same_run` reports a configuration that cannot be read


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
            f"run folder {config.folder} was made by another configuration (different:"
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
        if not any(name == f or name.startswith(f + ".") for f in RESUMABLE_FIELDS)
    ]
