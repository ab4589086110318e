"""New weights to the sampler: of the learner's parameters the policy that explorers sample with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import jax

from grre_jax.parallel import processes
from grre_jax.training import build
from grre_jax.training.checkpoints import Checkpoints, digest
from grre_jax.training.metrics import Stopwatch

if TYPE_CHECKING:
    from grre_jax.training.actors.cluster import Explorers
    from grre_jax.training.actors.explorer import Explorer


class Policy(NamedTuple):
    """A policy that samples.

    Attributes:
        version: of the policy.
        weights: as the explorer takes them; None in a process that has no explorers.
        metadata: of the data sets that it samples.
    """

    version: int
    weights: Any
    metadata: dict[str, Any]


def publish(
    version: int,
    params: Any,
    parts: build.Parts,
    explorer: Explorer | Explorers,
    checkpoints: Checkpoints,
    watch: Stopwatch,
) -> Policy:
    """Gives the explorer a policy: prepared for decoding, or on a cluster put where all explorers
    read it. Takes all processes of a run.

    Args:
        version: of the policy.
        params: its trained parameters.
        parts: have the frozen parameters and the provenance.
        checkpoints: the metadata names the one of this version, if it was saved.
        explorer: samples with it.
        watch: counts the seconds.
    """
    full = jax.block_until_ready(parts.full(params))  # of a step that still computes
    with watch("weights"):
        checksum = digest(full)
    checkpoint = f"checkpoints/{version}" if version in checkpoints.steps else ""
    metadata = parts.provenance() | {"checkpoint": checkpoint, "weights": checksum}
    if not parts.config.cluster.samples:
        return Policy(version, explorer.policy(full), metadata)
    # Explorers on a cluster have the frozen parameters.
    trained = processes.fetch(params)
    # The other processes took part in gathering alone.
    weights = explorer.policy(trained) if processes.is_first() else None
    return Policy(version, weights, metadata)
