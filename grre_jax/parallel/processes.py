"""The processes of a run: joining them, what they do together, and ending together when one of them
fails.

Every process of a run executes the same program: each computes its part of every array, and all of
them take the same steps. Every process calls every function that exchanges something, in the same
order and the same number of times. In a run of one process no function communicates.

A process that ends stops the others in the middle of a computation:

- A process that fails reports its error and ends at once, without waiting for others.
- The others find its connections closed (CPU) and report that; or JAX finds its heartbeats missing,
  and ends them with a message of its own.
"""

import contextlib
import os
import pickle
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

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
        text: to compare.
        what: names the text in the message.

    Raises:
        UsageError: in all processes, naming those that differ from the first.
    """
    (first,), *rest = records([text.encode()])
    if other := [i for i, (theirs,) in enumerate(rest, 1) if theirs != first]:
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


# A process without a heartbeat for this time is taken for lost: the others end within a minute.
HEARTBEAT_SECONDS = 40
# Time that a process that ends waits for the others to end too.
SHUTDOWN_SECONDS = 20

# Before a process that failed ends: if all fail, each reports it before the first ends the others.
REPORT_SECONDS = 2


@contextlib.contextmanager
def joined(
    coordinator: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
    *,
    timeout: int = 300,
    agreed: tuple[type[BaseException], ...] = (),
) -> Iterator[None]:
    """A context that makes this process one of a run's, if there are several.

    An error inside ends one process of several at once (`os._exit`, with the error's exit status),
    since at a normal exit it would wait for the others, and they for it.

    Args:
        coordinator: HOST:PORT of process 0. If this and the next two are None, JAX looks for a
            supported cluster (TPU pods, Slurm, GKE, Open MPI).
        num_processes: number of processes; 1 alone means no cluster.
        process_id: index of this process, from 0.
        timeout: seconds to wait for the others.
        agreed: exceptions that all processes raise together; they propagate.

    Raises:
        UsageError: arguments that cannot be used, or a cluster that JAX does not understand. If
            the processes do not find each other in time, JAX ends the program.
    """
    _join(coordinator, num_processes, process_id, timeout)
    if not jax.distributed.is_initialized() or jax.process_count() == 1:
        yield
        return
    together = None
    try:
        try:
            yield
        except agreed as error:
            # All processes come here, and so to the barrier below.
            together = error
        # A process that shuts down sends no heartbeats while it waits, and the first may export for
        # minutes.
        multihost_utils.sync_global_devices("grre ends")
        jax.distributed.shutdown()
    except BaseException as error:
        _end(error)
    # Outside of the `try`, whose handler would end the process.
    if together is not None:
        raise together


def _join(
    coordinator: str | None, num_processes: int | None, process_id: int | None, timeout: int
) -> None:
    """Joins the other processes, by the arguments of `joined`; precedes every use of JAX."""
    if num_processes == 1 and coordinator is None and process_id in (None, 0):
        return
    alone_unless_found = {coordinator, num_processes, process_id} == {None}
    if not alone_unless_found:
        _check(coordinator, num_processes, process_id)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    try:
        jax.distributed.initialize(
            coordinator,
            num_processes,
            process_id,
            # Arguments that are given win over the variables of a cluster.
            cluster_detection_method=None if alone_unless_found else "deactivate",
            initialization_timeout=timeout,
            heartbeat_timeout_seconds=HEARTBEAT_SECONDS,
            shutdown_timeout_seconds=SHUTDOWN_SECONDS,
        )
        jax.devices()  # the processes exchange their devices here
    except (ValueError, RuntimeError) as error:
        # JAX knows no cluster; or this is a Python session that has computed already.
        phrase = "coordinator_address" if isinstance(error, ValueError) else "must be called before"
        if alone_unless_found and phrase in str(error):
            return
        raise UsageError(
            f"this looks like a cluster, but JAX cannot join its processes ({error}): give"
            " --coordinator HOST:PORT --num-processes N --process-id I, or --num-processes 1 to"
            " run alone"
        ) from error


def _check(coordinator: str | None, num_processes: int | None, process_id: int | None) -> None:
    host, _, port = (coordinator or "").rpartition(":")
    address = bool(host) and port.isdigit() and 0 < int(port) < 65536
    numbers = None not in (num_processes, process_id) and 0 <= process_id < num_processes
    if not (address and numbers):
        raise UsageError(
            "--coordinator, --num-processes, --process-id: expected HOST:PORT of process 0, a"
            f" number of processes and an index below it, got {coordinator}, {num_processes} and"
            f" {process_id}"
        )
    # The coordinator, whose port must be free, runs in process 0.
    if process_id:
        return
    try:  # JAX itself ends the program without a message
        socket.create_server(("", int(port))).close()
    except OSError as error:
        raise UsageError(
            f"--coordinator: expected a free port of process 0, got {port} ({error.strerror})"
        ) from error


# ---- ending


def _end(error: BaseException) -> NoReturn:
    """Reports an error and ends the process."""
    if isinstance(error, (UsageError, DataError, OSError)):
        text = f"grre: {error}"
    else:
        text = (
            "".join(traceback.format_exception(error))
            + f"grre: process {jax.process_index()} failed, or lost another process of the run,"
            " whose output then has the cause. Saved checkpoints are kept: start all processes"
            " again with --resume"
        )
    # `os._exit` flushes no stream.
    sys.stdout.flush()
    print(text, file=sys.stderr, flush=True)
    time.sleep(REPORT_SECONDS)
    # A normal exit shuts JAX down (atexit), which waits for a process that may be lost.
    os._exit(getattr(error, "exit_status", 1))
