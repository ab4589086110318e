"""Stages 1 and 2 of the road of the data, choosing and reading.

In: a training step, the run's schedule, and the rollout folders (`sources.Source`). Out: a
`Choice`, the groups that the step trains on by folder and number; and these groups, in its order,
in the policy's own tokens and within the run's limits. A choice is a function of the step and of
what is sealed, so a resumed run needs only its step.

The groups of a step come from up to three streams, in this order: the run's own samples
(`Scheduled`, or `Newest`), data.path, and data.mix (both `Stored`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from grre_jax import random_streams, rollouts
from grre_jax.errors import DataError
from grre_jax.random_streams import Purpose
from grre_jax.rollouts import Group
from grre_jax.training import build
from grre_jax.training.config.run import Config
from grre_jax.training.data import plan
from grre_jax.training.data.plan import Schedule
from grre_jax.training.data.sources import Source, usable


class Pick(NamedTuple):
    """One group of a step.

    Attributes:
        source: the folder that the group is in.
        index: the group's number in that folder.
        version: the policy version that sampled it, in the learner's count; -1 if another run's
            policy did.
    """

    source: Source
    index: int
    version: int


class Choice(NamedTuple):
    """The groups that one step trains on.

    Attributes:
        step: the training step.
        picks: its groups, in order.
    """

    step: int
    picks: tuple[Pick, ...]

    @property
    def ages(self) -> Float[np.ndarray, " groups"]:
        """[groups] Age of each group's policy in updates; NaN if another run's policy sampled."""
        versions = np.array([pick.version for pick in self.picks], float)
        return np.where(versions < 0, np.nan, self.step - versions)


@dataclasses.dataclass(frozen=True)
class Scheduled:
    """The run's own samples, each of the policy version that the schedule names.

    Without replay and reuse, step s has the positions s*G to (s+1)*G - 1 of the prompt stream.

    Args:
        source: the run's rollout folder.
        schedule: of the run.
        rounds: of dynamic sampling; 0 for none.
    """

    source: Source
    schedule: Schedule
    rounds: int = 0

    def picks(self, step: int) -> list[Pick]:
        """Returns the step's groups, without the positions that dynamic sampling found no signal
        for.

        Raises:
            DataError: a group is not in the folder.
        """
        found = []
        for position, version in self.schedule(step).samples:
            index = plan.chosen(self.source, position, version, self.rounds)
            if index is not None:
                found.append(Pick(self.source, index, version))
        return found

    def missing(self, step: int) -> dict[int, list[int]]:
        """Returns the positions that the step still lacks, by the version that samples them."""
        return plan.missing(self.source, self.schedule(step).samples, self.rounds)


@dataclasses.dataclass(frozen=True)
class Newest:
    """The run's own samples of `regime.newest`: at each position the first sealed
    group that is young enough.

    Groups that are sealed later change nothing, so a restarted learner trains on the same groups.
    No group is trained on at a greater age than the regime's largest.

    Args:
        source: the run's rollout folder.
        schedule: of the run.
        steps: number of steps of the run.
    """

    source: Source
    schedule: Schedule
    steps: int

    def index(self, position: int, step: int) -> int | None:
        """Returns the number of the group that `step` trains on at a position; None if it is not
        sealed yet.
        """
        allowed = self.schedule.regime.window(step, self.steps)
        sealed = self.source.reader.index.get(position, ())
        return next((i for i in sealed if self.source.version(i) in allowed), None)

    def picks(self, step: int) -> list[Pick]:
        """Returns the step's groups.

        Raises:
            DataError: a position has no group that is young enough.
        """
        found = []
        for position in self.schedule(step).fresh:
            index = self.index(position, step)
            if index is None:
                raise DataError(
                    f"{self.source.reader.folder} holds no group young enough for step {step} at"
                    f" position {position}"
                )
            found.append(Pick(self.source, index, self.source.version(index)))
        return found

    def missing(self, step: int) -> dict[int, list[int]]:
        """Returns the positions that the step still lacks, under the oldest version that may
        sample them.
        """
        found = [p for p in self.schedule(step).fresh if self.index(p, step) is None]
        return {self.schedule.regime.window(step, self.steps).start: found} if found else {}


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
        return [Pick(self.sources[which], index, -1) for which, index in self.order.indices(step)]


@dataclasses.dataclass(frozen=True)
class Chooser:
    """Chooses the groups of every step of a run.

    Args:
        own: the run's own samples; None if the run samples nothing.
        stored: what it reads besides, in the order within a step.
    """

    own: Scheduled | Newest | None
    stored: tuple[Stored, ...] = ()

    def __call__(self, step: int) -> Choice:
        """Returns the choice of a step.

        Raises:
            DataError: a group of the run's own is not in its folder.
            CorruptShard: a group whose rewards decide cannot be read.
        """
        streams = ((self.own,) if self.own else ()) + self.stored
        picks = tuple(pick for stream in streams for pick in stream.picks(step))
        return Choice(step, picks)

    def missing(self, step: int) -> dict[int, list[int]]:
        """Returns the positions of the run's own samples that a step still lacks, by the version
        that samples them (the oldest one allowed, with `regime.newest`).
        """
        return self.own.missing(step) if self.own else {}

    def ready(self, step: int) -> bool:
        """True if the step may be prepared before the steps before it are done.

        With dynamic sampling a step's groups are known only once their rewards are read: they are
        not read ahead.
        """
        return not getattr(self.own, "rounds", 0) and not self.missing(step)


def read(choice: Choice) -> list[Group]:
    """Reads the groups of a step.

    Returns:
        One group per pick of the choice, in its order. Groups of a mix have unknown policy
        versions, -1: another run's count does not tell how far this run's policy has moved.

    Raises:
        DataError: a group cannot be tokenised.
        CorruptShard: a group cannot be read as it was written.
    """
    return [pick.source.read(pick.index) for pick in choice.picks]


def make_chooser(config: Config, own: Source | None, stored: tuple[Stored, ...]) -> Chooser:
    """Returns the chooser of a run.

    Args:
        config, stored: of the run.
        own: its rollout folder; None if it samples nothing.
    """
    if own is None:
        return Chooser(None, stored)
    if config.regime.newest:
        return Chooser(Newest(own, config.schedule, config.training.steps))
    return Chooser(Scheduled(own, config.schedule, config.data.dynamic_sampling), stored)


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
