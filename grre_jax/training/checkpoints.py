"""Checkpoints of a run, written by Orbax in the background into a folder that all processes of the
run share.

Each process writes and reads the arrays on its own devices, and a run may be resumed by another
number of processes. The first state (step 0, after any warm start) is always kept: it is the policy
of offline data and of the KL to the start.

Every part is stored beside the checksums of its arrays, against which reads are checked: neither
Orbax nor TensorStore notices a damaged bit in an array's data. An array's checksum is the sum of
its elements' bits, as unsigned integers modulo 2**32. It changes with any single damaged bit. It
does not depend on the order of the elements, so it is the same on any mesh, is computed where the
array's parts are, and costs one pass over them.
"""

import contextlib
import dataclasses
import hashlib
import math
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from orbax.checkpoint import v1 as ocp

from grre_jax.errors import DataError
from grre_jax.parallel import mesh as meshes
from grre_jax.training.config.sections import CheckpointConfig
from grre_jax.training.step import TrainState

_UNREADABLE = (OSError, ValueError, KeyError, RuntimeError)  # errors of Orbax for damaged files


@dataclasses.dataclass(frozen=True)
class _Needed:
    needed: Callable[[int], bool]

    def should_preserve(self, checkpoints: Sequence[Any], *, context: Any) -> list[bool]:
        return [self.needed(checkpoint.step) for checkpoint in checkpoints]


def _preserved(config: CheckpointConfig, needed: Callable[[int], bool] | None) -> Any:
    """Returns the preservation policy for Orbax."""
    kinds = ocp.training.preservation_policies
    # Step 0 is the policy of offline data and of the KL to the start.
    policies = [kinds.LatestN(config.keep), kinds.CustomSteps([0])]
    if needed:
        policies.append(_Needed(needed))
    if config.best:
        best = kinds.BestN(
            # Evaluations before a resume may lack the figure.
            get_metric_fn=lambda metrics: metrics.get(config.best_metric, -math.inf),
            n=config.best,
            # True, the default, would keep every checkpoint without an evaluation.
            keep_checkpoints_without_metrics=False,
        )
        policies.append(best)
    if config.keep_every:
        policies.append(kinds.EveryNSteps(config.keep_every))
    return kinds.AnyPreservationPolicy(policies)


class Checkpoints:
    """The checkpoint folder of a run; all processes of the run make every call together.

    Args:
        folder: made if absent.
        config: which checkpoints are kept.
        needed: returns True for a step that is kept for another reason; called at every save.
        read_only: leave checkpoints that another process may be writing.
    """

    def __init__(
        self,
        folder: Path,
        config: CheckpointConfig | None = None,
        needed: Callable[[int], bool] | None = None,
        *,
        read_only: bool = False,
    ):
        self.folder = folder.absolute()
        self._saving: int | None = None
        self._checkpointer = ocp.training.Checkpointer(
            self.folder,
            preservation_policy=_preserved(config or CheckpointConfig(), needed),
            # Every save that is asked for: the run itself decides when.
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
                parts = _parts(state)
                sums = {name + SUFFIX: checksums(x) for name, x in parts.items()}
                self._checkpointer.save_checkpointables_async(
                    step, parts | sums, metrics=dict(metrics) if metrics else None
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

    def restore(self, like: TrainState) -> TrainState:
        """Returns the newest state.

        Args:
            like: arrays or shapes with shardings, by which the state is laid out.

        Raises:
            DataError: the checkpoint is missing or damaged; names one that the run can be
                continued from.
        """
        loaded = self._load(max(self.steps, default=0), _parts(like))
        return TrainState(loaded["params"], **loaded["training"])

    def restore_params(self, like: Any, step: int) -> Any:
        """Returns the parameters of a checkpoint alone.

        Args:
            like: arrays or shapes with shardings, by which the parameters are laid out.
            step: of the checkpoint.

        Raises:
            DataError: the checkpoint is missing or damaged.
        """
        return self._load(step, {"params": like})["params"]

    def _load(self, step: int, like: dict[str, Any]) -> dict[str, Any]:
        self.wait()
        steps = self.steps
        if step not in steps:
            raise DataError(
                f"{self.folder} has no checkpoint of step {step}: it holds {steps or 'none'}"
            )
        try:
            return _loaded(self.folder / str(step), like)
        except _UNREADABLE as error:
            advice = "restore it from a copy"
            if earlier := [other for other in steps if other < step]:
                advice += f", or move it away and continue from step {earlier[-1]} (`grre train`"
                advice += " with --resume)"
            raise DataError(
                f"{self.folder / str(step)} cannot be read ({_reason(error)}): {advice}"
            ) from error

    @contextlib.contextmanager
    def _failing(self) -> Iterator[None]:
        try:
            yield
        except (OSError, ValueError, RuntimeError) as error:
            # TensorStore reports a full disk as ValueError.
            raise DataError(
                f"the checkpoint of step {self._saving} cannot be written to {self.folder}:"
                f" {_reason(error)}; those before are whole: continue from them with --resume"
            ) from error


def listed(folder: Path) -> list[int]:
    """Returns the steps of the complete checkpoints in a folder, in order; the folder is neither
    opened nor changed.
    """
    # A checkpoint gets its name, a number, by a rename once it is whole.
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    return sorted(int(name) for name in names if name.isdigit())


def _parts(state: TrainState) -> dict[str, Any]:
    """Returns a state as it is stored: the parameters can be read without the rest."""
    return {"params": state.params, "training": {"opt_state": state.opt_state, "step": state.step}}


def _loaded(file: Path, like: dict[str, Any]) -> dict[str, Any]:
    """Returns some parts of a checkpoint, after a comparison with their checksums."""
    shapes = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), like
    )
    # Checkpoints of earlier versions have no checksums.
    beside = {name: name + SUFFIX for name in like}
    checked = {name: sums for name, sums in beside.items() if (file / sums).is_dir()}
    targets = shapes | {sums: abstract_checksums(shapes[name]) for name, sums in checked.items()}
    with turn():
        loaded = ocp.load_checkpointables(file, targets)
    for name, sums in checked.items():
        _check(name, loaded[name], loaded[sums])
    return loaded


def _reason(error: BaseException) -> str:
    """Returns the cause of an error of Orbax in one line: the first error of TensorStore or of the
    system, since Orbax's own names only the handler that failed.
    """
    while error.__cause__ or error.__context__:
        error = error.__cause__ or error.__context__
    return repr(error)[:500]


_PAUSE = 0.002  # seconds between two checks for the end of a write in the background
_turn = threading.RLock()
_writing: Callable[[], bool] = bool


@contextlib.contextmanager
def turn(writing: Callable[[], bool] = bool) -> Iterator[None]:
    """Waits until no other thread uses Orbax and nothing is being written in the background, and
    excludes other threads until the block ends: Orbax numbers operations by one counter a process.

    Args:
        writing: returns True while a write that the block began continues in the background; the
            next turn waits for it.
    """
    global _writing
    with _turn:
        while _writing():
            time.sleep(_PAUSE)
        _writing = writing
        yield


SUFFIX = "_checksums"
# By bytes of an element; eight are two words.
UNSIGNED = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32, 8: jnp.uint32}


@jax.jit
def checksums(tree: Any) -> Any:
    """Returns for each array its checksum and a number for its dtype, uint32 [2]."""
    return jax.tree.map(_sum, tree)


def digest(params: Any) -> str:
    """Returns the SHA-256 (hexadecimal) over the name, dtype, shape and checksum of every array,
    which identifies a policy on any mesh.
    """
    arrays = jax.tree_util.tree_leaves_with_path(params)
    sums = jax.device_get(checksums(params))
    named = zip(arrays, jax.tree.leaves(sums), strict=True)
    text = "".join(
        f"{jax.tree_util.keystr(path)} {x.dtype} {x.shape} {int(checksum[0])}\n"
        for (path, x), checksum in named
    )
    return hashlib.sha256(text.encode()).hexdigest()


def abstract_checksums(tree: Any) -> Any:
    """Returns shapes, dtypes and shardings of `checksums(tree)`; the arrays may be deleted."""

    def one(x):
        # Two numbers, whole on every device however the array is cut.
        sharding = meshes.replicated(x.sharding.mesh)
        return jax.ShapeDtypeStruct((2,), jnp.uint32, sharding=sharding)

    return jax.tree.map(one, tree)


def _check(name: str, part: Any, sums: Any) -> None:
    """Compares a part of a checkpoint with its checksums.

    Args:
        name: of the part.
        part: its arrays, as they were read.
        sums: result of `checksums`, as it was stored.

    Raises:
        ValueError: arrays differ from the stored ones; names them.
    """
    now, stored = jax.device_get((checksums(part), sums))
    # An array that was converted to another dtype as it was read cannot be compared.
    differs = jax.tree.map(lambda a, b: a[1] == b[1] and a[0] != b[0], now, stored)
    named = jax.tree_util.tree_leaves_with_path(differs)
    if damaged := [jax.tree_util.keystr(path) for path, differs in named if differs]:
        raise ValueError(f"{name}: {damaged} are not what was stored, by their checksums")


def _sum(x: jax.Array) -> jax.Array:
    bits = jax.lax.bitcast_convert_type(x, UNSIGNED[x.dtype.itemsize])
    kind = jnp.uint32(zlib.crc32(str(x.dtype).encode()))
    # Unsigned sums wrap around, which is the modulus: the order of the elements does not matter.
    return jnp.stack([bits.astype(jnp.uint32).sum(dtype=jnp.uint32), kind])
