"""Operations that the processes of a run do together: actions of the first process, exchanged
integers and records, and shared arrays.

Every process calls every function here, in the same order and the same number of times. In a run
of one process no function communicates.
"""

import pickle
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P, Sharding
from jaxtyping import Int

from grre_jax.errors import DataError, UsageError


def many() -> bool:
    """True if the run has several processes."""
    return jax.process_count() > 1


def is_first() -> bool:
    """True in the process that prints and that writes the files of which a run has one."""
    return jax.process_index() == 0


def wait_for_all(name: str) -> None:
    """Returns when every process has called it with this name."""
    if many():
        multihost_utils.sync_global_devices(name)


def gather_ints(value: int) -> Int[np.ndarray, " processes"]:
    """Returns the value that each process gave, by process; magnitudes below 2^31."""
    if not many():
        return np.array([value])
    # int32: the arrays of a device have no 64-bit integers by default.
    return np.asarray(multihost_utils.process_allgather(np.int32(value)))


def on_first(action: Callable[[], Any]) -> Any:
    """Runs an action in the first process while the others wait.

    Args:
        action: called in the first process alone. It must not communicate.

    Returns:
        What the action returned, in the first process; None in the others.

    Raises:
        Exception: in the first process, what the action raised. The others raise the same if it
            was a UsageError, a DataError or an OSError, and a DataError that quotes it otherwise.
    """
    if not many():
        return action()
    result = None
    failure = None
    if is_first():
        try:
            result = action()
        except Exception as error:
            # Raised only after the exchange, in which the others wait.
            failure = error
    notes = records([] if failure is None else [pickle.dumps(_plain(failure))])[0]
    if failure is not None:
        raise failure
    if notes:
        raise pickle.loads(notes[0])
    return result


def _plain(error: Exception) -> Exception:
    """Returns the error that other processes raise in place of one of the first."""
    # Not the error itself: not every exception can be pickled and made again.
    for kind in (UsageError, DataError, OSError):
        if isinstance(error, kind):
            return kind(str(error))
    return DataError(f"process 0 failed: {error!r}")


def require_same(text: str, what: str) -> None:
    """Checks that all processes have the same text.

    Args:
        text: compared by its checksum.
        what: names the text in the message.

    Raises:
        UsageError: in all processes, naming those that differ from the first.
    """
    # Without the lowest bit the 32-bit checksum fits in an int32.
    sums = gather_ints(zlib.crc32(text.encode()) >> 1)
    if other := np.flatnonzero(sums != sums[0]).tolist():
        raise UsageError(
            f"{what} of process {', '.join(map(str, other))} differs from that of process 0: start"
            " all processes with the same"
        )


def records(mine: Sequence[bytes]) -> list[list[bytes]]:
    """Returns the records of every process, one list per process."""
    if not many():
        return [list(mine)]
    data = pickle.dumps(list(mine))
    sizes = gather_ints(len(data))
    # `process_allgather` takes arrays of one shape in all processes.
    padded = np.zeros(sizes.max(), np.uint8)
    padded[: len(data)] = np.frombuffer(data, np.uint8)
    everyone = np.asarray(multihost_utils.process_allgather(padded)).astype(np.uint8)
    return [pickle.loads(row[:size].tobytes()) for row, size in zip(everyone, sizes, strict=True)]


class LargestOf:
    """The largest of the processes' values, returned one call late: by then no process has to
    wait for the exchange.
    """

    def __init__(self) -> None:
        self._pending: jax.Array | None = None

    def __call__(self, value: int) -> int:
        """Returns the largest value of the previous call, 0 at the first; the same in every
        process.

        Args:
            value: at least 0.
        """
        if not many():
            return value
        previous = self._pending
        mesh = Mesh(np.array(jax.devices()), ("devices",))
        # An entry a device. The arrays of the processes differ, but `put` reads a process's own
        # entries alone.
        mine = put(np.full(mesh.size, value, np.int32), NamedSharding(mesh, P("devices")))
        # Dispatched, not waited for: the next call reads it.
        self._pending = jnp.max(mine)
        return 0 if previous is None else int(jax.device_get(previous))


# ---- arrays over the devices of several processes


def put(x: np.ndarray, sharding: Sharding) -> jax.Array:
    """Returns a host array on the devices.

    Args:
        x: of the global shape in every process. Only the part on the process's own devices is
            read.
        sharding: of the result.
    """
    if sharding.is_fully_addressable:
        return jax.device_put(x, sharding)
    return jax.make_array_from_callback(np.shape(x), sharding, lambda index: x[index])


def fetch(tree: Any) -> Any:
    """Returns arrays as whole host arrays in every process.

    Every device holds all of one array for a moment if a run has several processes.
    """

    def whole(x: jax.Array) -> np.ndarray:
        if x.is_fully_addressable:
            # `process_allgather` would join one copy of it from each process.
            return np.asarray(x)
        return np.asarray(multihost_utils.process_allgather(x, tiled=True))

    # `device_get` starts the copies of all arrays before it waits for the first.
    return jax.tree.map(whole, tree) if many() else jax.device_get(tree)


def own_rows(count: int) -> Int[np.ndarray, " own"]:
    """Returns which of so many rows this process records; each row belongs to one process."""
    return np.arange(jax.process_index(), count, jax.process_count())
