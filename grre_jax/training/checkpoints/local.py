"""Checkpoints of a run in a folder on a disk, written by Orbax in the background.

Each process writes and reads the arrays on its own devices, and a run may be resumed by another
number of processes.

The first state (step 0, after any warm start) is always kept: it is the policy of offline data and
of the KL to the start. Further checkpoints are kept by `Keep`: the newest few, the best by an
evaluation's metric, those at multiples of a number of steps, and those that explorers still need.

Every part is stored beside the checksums of its arrays, against which reads are checked
(`integrity.py`).
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orbax.checkpoint import v1 as ocp

from grre_jax.errors import DataError
from grre_jax.training.checkpoints import integrity
from grre_jax.training.checkpoints.contents import (
    CheckpointFolder,
    abstract,
    gone,
    listed,
    parts,
    reason,
)
from grre_jax.training.checkpoints.orbax_lock import quiet, turn
from grre_jax.training.checkpoints.retention import Keep
from grre_jax.training.state import TrainState

# A checkpoint that is being removed loses its next file, or its name, within this time.
REMOVAL_SECONDS = 5.0


class Checkpoints(CheckpointFolder):
    """The checkpoint folder of a run on a disk.

    Args:
        folder: made if absent.
        keep: policy of the checkpoints that are kept.
        read_only: leave checkpoints that another process may be writing.

    Raises:
        DataError: an evaluation stored with a checkpoint is damaged.
    """

    def __init__(self, folder: Path, keep: Keep, *, read_only: bool = False):
        self.folder = folder.absolute()
        _check_metrics(self.folder)
        self._saving: int | None = None
        self._checkpointer = ocp.training.Checkpointer(
            self.folder,
            preservation_policy=keep.policy(),
            save_decision_policy=ocp.training.save_decision_policies.FixedIntervalPolicy(1),
            cleanup_tmp_directories=not read_only,
        )

    @property
    def steps(self) -> list[int]:
        """Steps of the complete checkpoints, in order."""
        return sorted(checkpoint.step for checkpoint in self._checkpointer.checkpoints)

    def save(
        self, state: TrainState, *, wait: bool = False, metrics: Mapping[str, float] | None = None
    ) -> None:
        """Saves a state under its step, in the background; a step that is saved is left as it is.

        Args:
            state: parameters, optimizer state and step.
            wait: return when it is stored.
            metrics: scalars of an evaluation at this step, for the choice of the best.

        Raises:
            DataError: this checkpoint, or the one that was still being written, cannot be written;
                earlier ones are whole.
        """
        step = int(state.step)
        if step not in self.steps:
            self.wait()  # the one still being written comes first
            self._saving = step
            with self._failing(), turn(self._checkpointer.is_saving_in_progress):
                self._checkpointer.save_checkpointables_async(
                    step, integrity.beside(parts(state)), metrics=dict(metrics) if metrics else None
                )
        if wait:
            self.wait()

    def wait(self) -> None:
        """Returns when nothing is being written any more; raises DataError if it failed."""
        with self._failing():
            self._checkpointer.wait()

    def close(self) -> None:
        """Waits and releases the folder; raises DataError if a checkpoint cannot be written."""
        with self._failing():
            self._checkpointer.close()

    def _load(self, step: int, wanted: dict[str, Any]) -> dict[str, Any]:
        if step not in self.steps:
            raise DataError(
                f"{self.folder} has no checkpoint of step {step}: it holds {self.steps or 'none'}"
            )
        file = self.folder / str(step)
        try:
            return _loaded(file, wanted)
        except (OSError, ValueError, KeyError, RuntimeError) as error:
            before, go_on = [known for known in self.steps if known < step], ""
            if before:
                go_on = f", or move it away and continue from step {before[-1]} (`grre train` with"
                go_on += " --resume)"
            raise DataError(
                f"{file} cannot be read ({reason(error)}): restore it from a copy{go_on}"
            ) from error


def _check_metrics(folder: Path) -> None:
    """Checks the evaluations stored with the checkpoints, which Orbax reads when it opens the
    folder.

    Raises:
        DataError: one is damaged, with its file.
    """
    for step in listed(folder):
        file = folder / str(step) / "metrics" / "metrics"
        try:
            found = json.loads(file.read_text())
        except FileNotFoundError:
            continue  # saved without one, or being removed
        except ValueError as error:
            found = error
        if not isinstance(found, dict):
            raise DataError(
                f"{file} is damaged ({found}): restore it from a copy, or remove {file.parent}; "
                "that checkpoint is then not among the best that the run keeps"
            )


def _loaded(file: Path, wanted: dict[str, Any]) -> dict[str, Any]:
    """Returns some parts of a checkpoint, after a comparison with their checksums."""
    with turn(), quiet():
        wanted = integrity.asked_beside(wanted, lambda name: (file / name).is_dir())
        return integrity.checked(ocp.load_checkpointables(file, wanted))


def read_params(folder: Path, step: int, like: Any) -> Any:
    """Returns the parameters of a checkpoint (see `folder.read_params`)."""
    file = folder.absolute() / str(step)
    try:
        if not file.is_dir():
            raise FileNotFoundError(file)
        return _loaded(file, {"params": abstract(like)})["params"]
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        if _goes(folder, step):
            raise gone(folder, step) from error
        raise DataError(
            f"{file} cannot be read ({reason(error)}): restore it from a copy"
        ) from error


def _goes(folder: Path, step: int) -> bool:
    """True if a checkpoint that cannot be read was or is being removed: its files go first and its
    name last. Waits as long as files vanish.
    """
    left, until = -1, 0.0
    while step in listed(folder):
        now = sum(len(files) for _, _, files in os.walk(folder / str(step)))
        if now != left:
            left, until = now, time.monotonic() + REMOVAL_SECONDS
        elif time.monotonic() > until:
            return False
        time.sleep(0.1)
    return True
