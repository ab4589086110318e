"""Stages 1, 2 and 4 of the road of the data: choosing, reading and prefetching.

In: a training step, the run's schedule, and the rollout folders (`sources.Source`). Out: the groups
that the step trains on by folder and number (`Pick`); these groups, in their order, in the policy's
own tokens and within the run's limits; and their `pack.PackedBatch` on the devices. A thread
prepares the next step while the devices compute. The choice is a function of the step and of the
sealed groups, so a resumed run needs only its step, and the thread has no state that it would miss.

The groups of a step come from up to three streams, in this order: the run's own samples
(`plan.Samples`), data.path, and data.mix (both `Stored`).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import jax
from jax.sharding import Mesh

from grre_jax import random_streams, rollouts
from grre_jax.objectives import Objective
from grre_jax.parallel import mesh as meshes, processes
from grre_jax.random_streams import Purpose
from grre_jax.rollouts import Group
from grre_jax.training import build
from grre_jax.training.config.run import Config
from grre_jax.training.data.pack import BatchShape, PackedBatch, pack
from grre_jax.training.data.plan import Samples
from grre_jax.training.data.sources import Source, usable


class Pick(NamedTuple):
    """One group of a step.

    Attributes:
        source: the folder that the group is in.
        index: the group's number in that folder.
        age: of the policy that sampled it, in updates; NaN if another run's policy did.
    """

    source: Source
    index: int
    age: float


@dataclasses.dataclass(frozen=True)
class Stored:
    """Groups of existing folders, in an order drawn for each epoch.

    Args:
        sources: the folders.
        order: of their groups.
    """

    sources: tuple[Source, ...]
    order: rollouts.TrainingOrder

    def picks(self, step: int) -> list[Pick]:
        """Returns the step's groups; the versions of their policies are another run's."""
        places = self.order.indices(step)
        return [Pick(self.sources[which], index, math.nan) for which, index in places]


@dataclasses.dataclass(frozen=True)
class Chooser:
    """Chooses the groups of every step of a run.

    Args:
        own: the run's own samples; None if the run samples nothing.
        stored: what it reads besides, in the order within a step.
    """

    own: Samples | None
    stored: tuple[Stored, ...] = ()

    def __call__(self, step: int) -> list[Pick]:
        """Returns the groups of a step, in order.

        Raises:
            DataError: a group of the run's own is not in its folder.
            CorruptShard: a group whose rewards decide cannot be read.
        """
        picks: list[Pick] = []
        if self.own:
            source = self.own.source
            # The version is that of the data set: with regime.newest the schedule does not know it.
            picks += [Pick(source, i, step - source.version(i)) for i in self.own.groups(step)]
        for stream in self.stored:
            picks += stream.picks(step)
        return picks

    def ready(self, step: int) -> bool:
        """True if the step may be prepared before the steps before it are done.

        With dynamic sampling a step's groups are known only once their rewards are read: they are
        not read ahead.
        """
        return not self.own or (not self.own.rounds and not self.own.missing(step))


def own_samples(config: Config) -> Samples:
    """Returns the run's own samples, from its folder."""
    source = Source(rollouts.read(config.folder / "rollouts"))
    steps = config.training.steps
    return Samples(source, config.schedule, steps, config.data.dynamic_sampling)


def stored_streams(
    parts: build.Parts, folders: Mapping[str, rollouts.RolloutReader]
) -> tuple[Stored, ...]:
    """Returns the streams of data.path and data.mix, in that order, every group checked.

    Raises:
        UsageError, DataError: as `sources.usable`.
    """
    config = parts.config
    data = config.data
    streams = []
    if data.path:
        source = Source(folders[data.path], parts.tokenizer)
        per_step = config.training.prompts_per_step - config.mixed_per_step
        streams.append(_stored(parts, [source], per_step, config.seed))
    if data.mix:
        sources = [
            Source(folders[entry.path], parts.tokenizer, entry.expert, mixed=True)
            for entry in data.entries
        ]
        # The seed of data.path's own order is the run's: the mix has another one.
        seed = int(random_streams.purpose_key(config.seed, Purpose.MIX)[1][0])
        shares = [entry.share for entry in data.entries]
        streams.append(_stored(parts, sources, config.mixed_per_step, seed, shares))
    return tuple(streams)


def _stored(
    parts: build.Parts,
    sources: Sequence[Source],
    per_step: int,
    seed: int,
    shares: Sequence[float] = (1.0,),
) -> Stored:
    """Returns the stream of folders; every group is checked."""
    config = parts.config
    groups = []
    complete = True
    for source in sources:
        kept, with_logprobs = usable(parts, source)
        groups.append((source.reader, kept))
        complete &= with_logprobs
    order = rollouts.TrainingOrder(
        groups,
        seed,
        per_step,
        shares=shares,
        shuffle=config.data.order == "shuffled",
    )
    # If the objective needs no log-probs and some groups of a mix have none, all are dropped: every
    # step then has the same arrays, and one step is compiled.
    keep = "old_logprobs" in parts.objective.requires or complete
    return Stored(tuple(dataclasses.replace(s, with_logprobs=keep) for s in sources), order)


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
    replica = meshes.replicated(mesh)
    arrays, structure = jax.tree.flatten(batch)
    # Arrays of tokens are [micro-batches, rows, row tokens, ...], those of responses have fewer
    # axes.
    placed = [processes.put(x, cut if x.ndim >= 3 else replica) for x in arrays]
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
        self._begun: dict[int, Future[Prepared]] = {}  # one step at most

    def __enter__(self) -> Prefetcher:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    def begin(self, step: int) -> None:
        """Prepares a step in the background if its data is ready, unless it did already. Another
        step that was begun before is dropped unless it was taken.
        """
        if step not in self._begun:
            self.settle()
            ready = self._ready(step)
            self._begun = {step: self._pool.submit(self._prepare, step)} if ready else {}

    def settle(self) -> None:
        """Waits until nothing runs in the background: what the thread reads may then change."""
        for future in self._begun.values():
            # Waits without raising: an error is raised where its step is taken, if it ever is.
            future.exception()

    def take(self, step: int) -> Prepared:
        """Returns the data of a step, and prepares it now if it was not prepared in advance.

        Raises:
            DataError: as `prepare`; an error of the background thread is raised here.
        """
        self.settle()
        future = self._begun.get(step)
        self._begun = {}
        return future.result() if future else self._prepare(step)
