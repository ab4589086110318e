"""Stage 4 of the road of the data, prefetching.

In: a training step. Out: its picks, its groups, and its `pack.PackedBatch` on the devices. A
thread prepares the next step while the devices compute.

A step's data is a function of the step, so the thread has no state that a resumed run would miss.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import jax
from jax.sharding import Mesh

from grre_jax.objectives import Objective
from grre_jax.parallel import mesh as meshes, processes
from grre_jax.rollouts import Group
from grre_jax.training import build
from grre_jax.training.data.choose import Chooser, Pick
from grre_jax.training.data.pack import BatchShape, PackedBatch, pack


class Prepared(NamedTuple):
    """The data of one step.

    Attributes:
        picks: the groups by folder and number.
        groups: the groups.
        batch: the groups as arrays on the devices.
    """

    picks: list[Pick]
    groups: list[Group]
    batch: PackedBatch


def prepare(step: int, choose: Chooser, parts: build.Parts) -> Prepared:
    """Chooses, reads and packs the data of a step.

    Raises:
        DataError: a group cannot be tokenised; or as `Chooser` and `pack`.
        CorruptShard: a group cannot be read as it was written.
    """
    picks = choose(step)
    groups = [pick.source.read(pick.index) for pick in picks]
    # Another run's data counts another policy's versions.
    version = step if parts.config.samples else None
    stored = parts.config.objective.stored_fields
    batch = place(groups, parts.shape, parts.objective, parts.mesh, version, stored)
    return Prepared(picks, groups, batch)


def place(
    groups: Sequence[Group],
    shape: BatchShape,
    objective: Objective,
    mesh: Mesh,
    learner_version: int | None = None,
    stored: Sequence[str] = (),
) -> PackedBatch:
    """Packs the groups of one step onto the devices: rows sharded over the mesh, responses
    replicated.

    The processes of a run all pass the same groups; each moves the rows of its own devices.
    Behaviour log-probs are carried if all groups have them, even if the objective needs none: the
    metrics then show how far the policy has moved from the data.

    Completions without a verdict are left out, and so are groups that have fewer than two verdicts
    because of that: the step is the one of the data without them.

    Args:
        groups: one step's, tokenised.
        shape: the run's batch shape.
        objective: decides which log-probs and marks the batch carries.
        mesh: the devices.
        learner_version: as for `pack`.
        stored: as for `pack`.

    Raises:
        DataError: as `pack`.
    """
    groups = [kept for group in groups if (kept := group.with_verdicts()) is not None]
    has_all = all(group.behavior_logprobs is not None for group in groups)
    batch = pack(
        groups,
        shape,
        behavior_logprobs="old_logprobs" in objective.requires or has_all,
        learner_version=learner_version,
        expert="expert" in objective.requires,
        stored=stored,
        components=objective.components,
        turns="turns" in objective.requires,
    )
    cut = meshes.rows(mesh, axis=1)
    whole = meshes.replicated(mesh)
    arrays, structure = jax.tree.flatten(batch)
    # Arrays of tokens are [micro-batches, rows, row tokens, ...], those of responses have fewer
    # axes.
    placed = [processes.put(x, cut if x.ndim >= 3 else whole) for x in arrays]
    return jax.tree.unflatten(structure, placed)


class Prefetcher:
    """Returns the data of each step, prepared in advance if it is ready by then. A context
    manager, which ends its thread.

    Args:
        prepare: prepares a step's data. It runs in the caller's thread or in another one, never in
            both at once.
        ready: True if a step's data may be read. Called in the caller's thread; cheap.
    """

    def __init__(self, prepare: Callable[[int], Prepared], ready: Callable[[int], bool]):
        self._prepare = prepare
        self._ready = ready
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="data")
        self._begun: tuple[int, Future[Prepared] | None] = (-1, None)

    def __enter__(self) -> Prefetcher:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    def begin(self, step: int) -> None:
        """Prepares a step in the background if its data is ready, unless it did already. Another
        step that was begun before is dropped unless it was taken.
        """
        begun, made = self._begun
        if made and begun == step:
            return
        self.settle()
        self._begun = step, self._pool.submit(self._prepare, step) if self._ready(step) else None

    def settle(self) -> None:
        """Waits until nothing runs in the background: what the thread reads may then change."""
        _, made = self._begun
        if made:
            # Waits without raising: an error is raised where its step is taken, if it ever is.
            made.exception()

    def take(self, step: int) -> Prepared:
        """Returns the data of a step, and prepares it now if it was not prepared in advance.

        Raises:
            DataError: as `prepare`; an error of the background thread is raised here.
        """
        self.settle()
        begun, made = self._begun
        self._begun = (-1, None)
        return made.result() if made and begun == step else self._prepare(step)
