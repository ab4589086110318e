"""The connection to a Ray cluster, which runs explorers, judges, learners and tasks on data sets.

Ray is imported here and where its objects are used, since it is an extra.
"""

import collections
import contextlib
import importlib
import itertools
import os
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

from grre_jax.errors import UsageError

T = TypeVar("T")
R = TypeVar("R")

# Environment variables that processes of the cluster inherit: they decide what XLA compiles.
INHERITED = ("JAX_PLATFORMS", "XLA_FLAGS", "JAX_ENABLE_COMPILATION_CACHE")
LOOPBACK = ("127.0.0.1", "localhost")
CONNECT_SECONDS = 10


@contextlib.contextmanager
def connected(address: str, *, learner: bool = False) -> Iterator[Any]:
    """Connects this process to a cluster, unless it belongs to one already.

    Args:
        address: local, auto or HOST:PORT; local starts a cluster on this machine, which ends with
            the context; empty for no cluster.
        learner: Ray starts the learner: print what its processes print, and start the dashboard,
            which Ray Train queries.

    Yields:
        The module `ray`; None if the address is empty.

    Raises:
        UsageError: Ray is not installed, or the cluster cannot be reached.
    """
    if not address:
        yield None
        return
    host, port = _place(address)
    if host in LOOPBACK:
        # Otherwise Ray replaces a loopback address by the host's own. Read when Ray is imported.
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    try:
        ray = importlib.import_module("ray")
    except ImportError as error:
        raise UsageError(
            f"cluster.address: {address!r} needs Ray ({error}): pip install 'grre-jax[cluster]'"
        ) from error
    if ray.is_initialized():
        yield ray
        return
    variables = {name: os.environ[name] for name in INHERITED if name in os.environ}
    options: dict[str, Any] = {"address": address, "runtime_env": {"env_vars": variables}}
    if address == "local":
        # Ray would listen on the host's address.
        options |= {"_node_ip_address": "127.0.0.1", "include_dashboard": learner}
    try:
        if port:  # Ray itself tries for minutes
            socket.create_connection((host, int(port)), CONNECT_SECONDS).close()
        ray.init(logging_level="WARNING", log_to_driver=learner, **options)
    except (OSError, ValueError, RuntimeError) as error:
        raise UsageError(f"cluster.address: {address!r} cannot be reached ({error})") from error
    try:
        yield ray
    finally:
        ray.shutdown()


def _place(address: str) -> tuple[str, str]:
    """Returns host and port of a cluster; empty if Ray finds them, or starts it."""
    if address == "auto":
        address = os.environ.get("RAY_ADDRESS", address)
    if address == "local":
        return "127.0.0.1", ""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), port if host else ""


def require(ray: Any, placed: Iterable[tuple[str, int, int, Mapping[str, float]]]) -> None:
    """Checks that a cluster has room for the least number of all that is placed on it.

    Args:
        ray: the module, connected.
        placed: kind, least and most number, and amounts by resource of each.

    Raises:
        UsageError: it lacks a resource; the message has the needed and the available amount.
    """
    needed: collections.Counter[str] = collections.Counter()
    for _, least, _, each in placed:
        for name, amount in each.items():
            needed[name] += least * amount
    available = ray.cluster_resources()
    for name, amount in needed.items():
        if amount > available.get(name, 0):
            raise UsageError(f"cluster: expected {amount:g} {name}, got {available.get(name, 0):g}")


def mapped(ray: Any, function: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
    """Yields the results of a function for items, in their order, each computed by a task with one
    processor and, if the cluster has any, one GPU. A task whose process is lost is run again.

    Args:
        ray: the module, connected.
        function: picklable.
        items: its arguments.

    Raises:
        Exception: of a call.
    """
    resources = ray.cluster_resources()
    gpus = int(resources.get("GPU", 0))
    task = ray.remote(num_cpus=1, num_gpus=min(gpus, 1), max_retries=-1)(_called)
    most = 2 * (gpus or int(resources.get("CPU", 1)))  # results wait in the object store
    rest = iter(items)
    pending = collections.deque(
        task.remote(function, item) for item in itertools.islice(rest, most)
    )
    while pending:
        try:
            result = ray.get(pending.popleft())
        except ray.exceptions.RayTaskError as error:
            raise error.cause from None
        pending += [task.remote(function, item) for item in itertools.islice(rest, 1)]
        yield result


def _called(function: Callable[[T], R], item: T) -> R:
    return function(item)  # Ray takes no `partial` for a task
