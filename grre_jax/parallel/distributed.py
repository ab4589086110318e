"""Joining the processes of a run, and ending together when one of them fails.

Every process of a run executes the same program: each computes its part of every array, and all of
them take the same steps. A process that ends therefore stops the others in the middle of a
computation:

- A process that fails reports its error and ends at once, without waiting for others.
- The others find its connections closed (CPU) and report that; or JAX finds its heartbeats missing,
  and ends them with a message of its own.
"""

import contextlib
import os
import socket
import sys
import time
import traceback
from collections.abc import Iterator
from typing import NoReturn

import jax
from jax.experimental import multihost_utils

from grre_jax.errors import DataError, UsageError

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
    given = (coordinator, num_processes, process_id)
    alone_unless_found = given == (None, None, None)
    if not alone_unless_found:
        _check(*given)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    try:
        jax.distributed.initialize(
            *given,
            # Arguments that are given win over the variables of a cluster.
            cluster_detection_method=None if alone_unless_found else "deactivate",
            initialization_timeout=timeout,
            heartbeat_timeout_seconds=HEARTBEAT_SECONDS,
            shutdown_timeout_seconds=SHUTDOWN_SECONDS,
        )
        jax.devices()  # the processes exchange their devices here
    except (ValueError, RuntimeError) as error:
        # JAX knows no cluster; or this is a Python session that has computed already.
        known = "coordinator_address" if isinstance(error, ValueError) else "must be called before"
        if alone_unless_found and known in str(error):
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
