"""The run's folder: its lock, its checks and its creation."""

import contextlib
import json
import re
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

from grre_jax import random_streams
from grre_jax.domains import ConfigError
from grre_jax.errors import DataError, UsageError
from grre_jax.json_files import read_object
from grre_jax.storage import files
from grre_jax.storage.remote import is_url
from grre_jax.training.checkpoints.folder import listed
from grre_jax.training.config.fields import fields
from grre_jax.training.config.run import RESUMABLE_FIELDS, Config, differences, from_dict

RUN_FILE = "run.json"


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keeps other processes of this machine from training in a run's folder, by a lock beside it,
    which the kernel drops when the process ends, in any way.

    Raises:
        UsageError: another process trains there.
    """
    folder = folder.resolve()
    lock = folder.with_name(f".{folder.name}.lock")
    lock.parent.mkdir(parents=True, exist_ok=True)
    refusal = (
        f"run folder {folder} is in use by another process: stop that one first, or choose another"
        " with --run-dir"
    )
    with files.exclusive(lock, refusal):
        yield


def require_same_draws(folder: Path) -> None:
    """Checks that this version continues a run's random draws.

    Raises:
        UsageError: the run was begun by a version of grre_jax with other draws.
        DataError: its run.json is damaged.
    """
    file = folder / RUN_FILE
    if not (file.is_file() or listed(folder / "checkpoints")):
        return
    version = read_object(file).get("random_streams") if file.is_file() else None
    if version != random_streams.VERSION:
        raise UsageError(
            f"{file}: expected random_streams {random_streams.VERSION}, got {version!r}: the run"
            " was begun by a version of grre_jax with other random draws. Finish it with that"
            " version, start again with --overwrite, or begin a run from its policy (`grre"
            " export`, then --model.path)"
        )


def open_run_folder(config: Config, *, resume: bool, overwrite: bool) -> Path:
    """Makes, continues or replaces the run's folder, and writes its config.json and run.json.

    Args:
        config: the run.
        resume: continue the run in the folder.
        overwrite: replace the run in the folder.

    Returns:
        The folder.

    Raises:
        UsageError: the folder exists and neither `resume` nor `overwrite` is given; it belongs to
            another configuration or to a version with other random draws; or the run reads files
            that `overwrite` would remove.
        DataError: `resume` of a folder that is not a run.
    """
    folder = config.folder.resolve()
    if resume and overwrite:
        raise UsageError("--resume and --overwrite exclude each other")
    free = folder.is_dir() and not any(folder.iterdir())
    if resume:
        require_same_run(config)
        require_same_draws(folder)
    elif folder.exists() and not free:
        if not overwrite:
            raise UsageError(
                f"run folder {config.location} already exists: continue it with --resume, replace"
                " it with --overwrite, or choose another with --run-dir"
            )
        _check_replaceable(config)
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    files.replace(folder / "config.json", config.to_json())
    if not (folder / RUN_FILE).is_file():
        content = {"id": uuid.uuid4().hex, "random_streams": random_streams.VERSION}
        files.replace(folder / RUN_FILE, json.dumps(content) + "\n")
    return folder


def _check_replaceable(config: Config) -> None:
    """Refuses to remove a folder that is not a run's, or that the new run reads."""
    if not (config.folder / "config.json").is_file():
        raise UsageError(
            f"{config.location} is not the folder of a run (it has no config.json), so --overwrite"
            " leaves it alone: choose another with --run-dir"
        )
    for field in fields(config):
        if field.name in RESUMABLE_FIELDS:  # run_dir, which is the folder itself
            continue
        # Whatever may be a path in a value: FILE.py:FUNCTION=WEIGHT, FOLDER=SHARE, options.
        for path in re.split(r"[\s,='\"{}()]+|:(?!/)", str(field.default)):
            # A word without a slash may be the name of anything.
            if "/" in path and _inside(path, config.location):
                domain = f"paths outside run folder {config.location}, which --overwrite would"
                raise ConfigError(field.name, f"{domain} remove", field.default)


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
        return from_dict(read_object(file))
    except (UsageError, TypeError, ValueError) as error:
        raise DataError(f"{file}: damaged or of another version: {error}") from error


def split_step(name: str) -> tuple[str, int | None]:
    """Returns ("runs/a", 40) for "runs/a:40"; a path that exists as it is has no step."""
    folder, colon, step = name.rpartition(":")
    if colon and step.isdecimal() and (is_url(name) or not Path(name).exists()):
        return folder, int(step)
    return name, None


def require_same_run(config: Config) -> None:
    """Checks that the run in the folder has this configuration, but for what a resumed run may
    change.

    Raises:
        UsageError: it has another configuration.
        DataError: its configuration is missing or cannot be read.
    """
    stored = load_config(config.folder)
    old, new = (json.loads(c.to_json()) for c in (stored, config))
    changed = [
        name
        for name in differences(old, new)
        if not f"{name}.".startswith(tuple(f"{field}." for field in RESUMABLE_FIELDS))
    ]
    if changed:
        raise UsageError(
            f"run folder {config.location} was made by another configuration (different:"
            f" {', '.join(changed)}): give the same one, or choose another folder with --run-dir"
        )
