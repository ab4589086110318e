"""Checkpoints of a run, by Orbax: asynchronous, the newest few and the first.

The processes of a run make every call together; each writes and reads what lies on its own devices, and a run may be resumed by another number of them.

The first state (step 0, after any warm start) is always kept: it is the policy that offline data comes from and that KL to the start is taken from.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
from orbax.checkpoint import v1 as ocp

from grre_jax.errors import DataError
from grre_jax.training.state import TrainState


def _parts(state: TrainState) -> dict[str, Any]:
    # Parameters apart from the rest, so that they can be read alone.
    return {"params": state.params, "training": {"opt_state": state.opt_state, "step": state.step}}


def _abstract(tree: Any) -> Any:
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), tree)


class Checkpoints:
    """The checkpoint folder of a run.

    Args:
        folder: made if absent.
        keep: newest checkpoints kept besides step 0.
        read_only: leave alone what another process may be writing there.
    """

    def __init__(self, folder: str | Path, keep: int = 2, *, read_only: bool = False):
        self.folder = Path(folder).absolute()
        policies = ocp.training.preservation_policies
        self._checkpointer = ocp.training.Checkpointer(
            self.folder,
            preservation_policy=policies.AnyPreservationPolicy([policies.LatestN(keep), policies.CustomSteps([0])]),
            save_decision_policy=ocp.training.save_decision_policies.FixedIntervalPolicy(1),
            cleanup_tmp_directories=not read_only,
        )

    @property
    def steps(self) -> list[int]:
        """Steps that a complete checkpoint exists for, in order."""
        return sorted(checkpoint.step for checkpoint in self._checkpointer.checkpoints)

    def save(self, state: TrainState, *, wait: bool = False) -> None:
        """Saves the state under its step, in the background; `wait` returns when it is on disk. A step already saved is left as it is."""
        step = int(state.step)
        if step not in self.steps:
            self._checkpointer.save_checkpointables_async(step, _parts(state))
        if wait:
            self.wait()

    def wait(self) -> None:
        """Returns when nothing is being written any more."""
        self._checkpointer.wait()

    def restore(self, like: TrainState, step: int | None = None) -> TrainState:
        """The state saved at `step` (the newest if None), laid out like `like`.

        Raises:
            DataError: there is no such checkpoint.
        """
        self.wait()
        steps = self.steps
        step = steps[-1] if step is None and steps else step
        if step not in steps:
            raise DataError(
                f"{self.folder} has no checkpoint{'' if step is None else f' of step {step}'}: it holds {steps or 'none'}; start again with --overwrite"
            )
        loaded = self._checkpointer.load_checkpointables(step, _abstract(_parts(like)))
        return TrainState(loaded["params"], loaded["training"]["opt_state"], loaded["training"]["step"])

    def restore_params(self, like: Any, step: int) -> Any:
        """Only the parameters saved at `step`, laid out like `like`.

        Raises:
            DataError: there is no such checkpoint.
        """
        self.wait()
        if step not in self.steps:
            raise DataError(f"{self.folder} has no checkpoint of step {step}: it holds {self.steps or 'none'}")
        return self._checkpointer.load_checkpointables(step, {"params": _abstract(like)})["params"]

    def close(self) -> None:
        """Waits and lets go of the folder."""
        self._checkpointer.close()
