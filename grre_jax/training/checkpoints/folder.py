"""Checkpoints of a run, on a disk or in an object store."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from grre_jax.storage.store_path import StorePath
from grre_jax.training.checkpoints import local, object_store
from grre_jax.training.checkpoints.contents import CheckpointFolder
from grre_jax.training.checkpoints.retention import Keep


def opened(
    folder: Path | StorePath,
    keep: Keep,
    *,
    read_only: bool = False,
    before: Callable[[], None] = lambda: None,
) -> CheckpointFolder:
    """Opens the checkpoint folder of a run.

    Args:
        folder: path or URL; made if absent.
        keep: policy of the checkpoints that are kept.
        read_only: leave checkpoints that another process may be writing.
        before: called in the first process before a checkpoint appears in an object store; if it
            raises, none appears.

    Raises:
        UsageError: a folder in an object store, and the processes share no local disk.
        DataError: an evaluation stored with a checkpoint is damaged.
    """
    if isinstance(folder, StorePath):
        return object_store.StagedCheckpoints(folder, keep, read_only=read_only, before=before)
    return local.Checkpoints(folder, keep, read_only=read_only)


def read_params(folder: Path | StorePath, step: int, like: Any) -> Any:
    """Returns the parameters of a checkpoint that another process wrote and may remove.

    Args:
        folder: path or URL of the checkpoint folder.
        step: of the checkpoint.
        like: arrays or shapes with shardings, by which the parameters are laid out.

    Raises:
        CheckpointGone: the checkpoint does not exist, or was removed while it was read.
        DataError: it exists and cannot be read.
    """
    read = object_store.read_params if isinstance(folder, StorePath) else local.read_params
    return read(folder, step, like)
