"""The interface of a run's checkpoint folder, the contents of a checkpoint, and the causes of reads
that fail.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax

from grre_jax.errors import DataError
from grre_jax.storage.store_path import StorePath
from grre_jax.training.state import TrainState


class CheckpointGone(DataError):
    """A checkpoint was removed before or while it was read."""


class CheckpointFolder:
    """The checkpoint folder of a run; all processes of the run make every call together.

    `local.Checkpoints` and `object_store.StagedCheckpoints` write and read checkpoints.
    """

    folder: Path | StorePath  # its path or URL
    steps: list[int]
    _saving: int | None
    wait: Callable[[], None]
    _load: Callable[[int, dict[str, Any]], dict[str, Any]]  # some parts of a step, laid out alike

    def restore(self, like: TrainState, step: int | None = None) -> TrainState:
        """Returns a saved state.

        Args:
            like: arrays or shapes with shardings, by which the state is laid out.
            step: of the checkpoint; the newest if None.

        Raises:
            DataError: there is no such checkpoint, or it is damaged; names a checkpoint that the
                run can be continued from.
        """
        self.wait()
        if step is None:
            step = max(self.steps, default=0)
        loaded = self._load(step, abstract(parts(like)))
        return TrainState(loaded["params"], **loaded["training"])

    def restore_params(self, like: Any, step: int) -> Any:
        """Returns the parameters of a checkpoint alone.

        Args:
            like: arrays or shapes with shardings, by which the parameters are laid out.
            step: of the checkpoint.

        Raises:
            DataError: there is no such checkpoint, or it is damaged.
        """
        self.wait()
        return self._load(step, {"params": abstract(like)})["params"]

    @contextlib.contextmanager
    def _failing(self) -> Iterator[None]:
        try:
            yield
        except (OSError, ValueError, RuntimeError) as error:
            # TensorStore reports a full disk as ValueError.
            full = any(words in f"{error} {reason(error)}" for words in ("No space left", "ENOSPC"))
            why = "no space left on the disk" if full else reason(error)
            raise DataError(
                f"the checkpoint of step {self._saving} cannot be written to {self.folder}: {why};"
                " those before are whole: make room and continue from them (`grre train` with"
                " --resume), or start again if there are none"
            ) from error


def listed(folder: Path | StorePath) -> list[int]:
    """Returns the steps of the complete checkpoints in a folder, in order.

    Args:
        folder: path or URL of a checkpoint folder, which is neither opened nor changed.

    Raises:
        DataError: a store cannot be read.
    """
    if isinstance(folder, StorePath):
        try:
            names = [path.stem for path in folder.glob("*.json")]
        except OSError as error:
            raise DataError(
                f"{folder} cannot be listed ({error}); check your access to it"
            ) from error
    else:  # a checkpoint gets its name, a number, by a rename once it is whole
        names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    return sorted(int(name) for name in names if name.isdigit())


def gone(folder: Path | StorePath, step: int) -> CheckpointGone:
    """Returns the error of a checkpoint that was removed."""
    holds = listed(folder) or "none"
    return CheckpointGone(f"the checkpoint of step {step} is gone from {folder}: it holds {holds}")


def parts(state: TrainState) -> dict[str, Any]:
    """Returns a state as it is stored: the parameters can be read without the rest."""
    return {"params": state.params, "training": {"opt_state": state.opt_state, "step": state.step}}


def abstract(tree: Any) -> Any:
    """Returns shapes, dtypes and shardings of a tree of arrays."""
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), tree)


def reason(error: Exception) -> str:
    """Returns the cause of an error of Orbax in one line: the first error of TensorStore or of the
    system, since Orbax's own names only the handler that failed.
    """
    while error.__cause__ or error.__context__:
        error = error.__cause__ or error.__context__
    text = re.sub(r'Error opening "\w+" driver: ', "", str(error).split(" [tensorstore_spec")[0])
    told = text and not isinstance(error, LookupError)
    return text.splitlines()[0][:500] if told else repr(error)
