"""The way of a policy's weights from the learner to what samples.

In the learner's process the sampler gets the arrays themselves. Explorers on a cluster get them by
way of the host and of Ray's object store, one copy a node; each lays them out on its own devices.
`sampling.decoding.weights` then prepares them for decoding.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from grre_jax.parallel import processes


def on_host(params: Any) -> Any:
    """Returns the parameters as host arrays, whole in every process of the learner."""
    return jax.tree.map(processes.fetch, params)


class Outbox:
    """The policy that the learner has put into the object store of a cluster, the newest alone.

    Args:
        ray: the module, connected to the cluster.
    """

    def __init__(self, ray: Any) -> None:
        self._ray = ray
        self._version = -1
        self._reference: Any = None

    def reference(self, version: int, params: Any) -> Any:
        """Returns the reference to a policy, whose parameters are stored at the first call."""
        if version != self._version:
            self._reference = self._ray.put(params)
            self._version = version
        return self._reference


class Inbox:
    """The policy that an explorer samples with, on its devices.

    Args:
        like: parameters that are laid out as every policy is to be.
        full: adds the parameters that are not trained.
    """

    def __init__(self, like: Any, full: Callable[[Any], Any]) -> None:
        self._layout = jax.tree.map(lambda array: array.sharding, like)
        self._full = full
        self._version = -1
        self._policy: Any = None

    def policy(self, version: int, params: Any) -> Any:
        """Returns all parameters of a policy; those of the one before are freed first."""
        if version != self._version:
            self._policy = None
            self._policy = self._full(jax.device_put(params, self._layout))
            self._version = version
        return self._policy
