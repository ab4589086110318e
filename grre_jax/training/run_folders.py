"""What of a run's folder is the run, and how a run is taken away so that a kill leaves the whole run or none."""

from __future__ import annotations

import uuid
from pathlib import Path

from grre_jax.rollouts.store_path import StorePath

# Who holds the run's lease is written before anything else, and stays when the run is replaced. A process killed at its first write leaves the last of these.
LEASE_FILES = ("learner.json", "learner.fence", ".learner.json.partial", ".learner.lock", ".config.json.partial")
REMOVED = ".removed-"  # in the run's folder: holds what an --overwrite takes away


def of_no_run(path: Path | StorePath) -> bool:
    """Whether what lies directly in a folder makes it no run's."""
    return path.name in LEASE_FILES or path.name.startswith(REMOVED)


def half_removed(folder: Path | StorePath) -> bool:
    """Whether what lies in a folder without config.json is the rest of a run that an --overwrite was removing."""
    return any((removed / "config.json").is_file() for removed in folder.glob(REMOVED + "*"))


def empty(folder: Path | StorePath) -> None:
    """Moves the run aside, config.json first: whenever this is cut short, what is left is either the whole run or no run at all.

    In an object store, where moving is copying, config.json alone is moved and the rest removed.

    Raises:
        OSError: it cannot be moved.
    """
    removed = folder / f"{REMOVED}{uuid.uuid4().hex}"
    removed.mkdir()
    for path in sorted(filter(lambda path: not of_no_run(path), folder.iterdir()), key=lambda path: path.name != "config.json"):
        if isinstance(path, Path):
            path.rename(removed / path.name)
            continue
        if path.name == "config.json":
            (removed / path.name).write_text(path.read_text())
        path.remove_all()
