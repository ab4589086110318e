"""Stages 1 and 2 of the road of the data, choosing and reading.

In: a training step, the run's schedule, and the rollout folders (`sources.Source`). Out: the groups
that the step trains on by folder and number (`Pick`); and these groups, in their order, in the
policy's own tokens and within the run's limits. The choice is a function of the step and of the
sealed groups, so a resumed run needs only its step.

The groups of a step come from up to three streams, in this order: the run's own samples
(`plan.Samples`), data.path, and data.mix (both `Stored`).
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from grre_jax import random_streams, rollouts
from grre_jax.random_streams import Purpose
from grre_jax.training import build
from grre_jax.training.config.run import Config
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
        found = self.order.indices(step)
        return [Pick(self.sources[which], index, math.nan) for which, index in found]


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
