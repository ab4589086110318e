"""The groups of rollout folders that a learner trains on, their order and their shares.

The order is a pure function of (groups, seed, step), computed by Grain, so resuming a run needs one
integer and no buffer.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from grre_jax.errors import DataError, UsageError
from grre_jax.rollouts.reader import RolloutReader
from grre_jax.rollouts.schema import Group

STEPS_AHEAD = 4  # that `TrainingOrder.batches` reads

# A rollout folder, and numbers of its groups.
Source = tuple[RolloutReader, Sequence[int]]


def _source_seed(seed: int, which: int) -> int:
    """Returns the seed of a source's permutations."""
    if not 0 <= seed < 2**32:
        raise UsageError(f"Data seed {seed} is out of range; give 0 to {2**32 - 1}.")
    # Not seed + which: Grain permutes epoch e by its seed + e, and a source would repeat, an epoch
    # later, the permutations of the one before it.
    return int(np.random.SeedSequence([seed, which]).generate_state(1)[0]) if which else seed


def _epochs(which: int, numbers: Sequence[int], seed: int, shuffle: bool) -> Any:
    """Returns (`which`, number) for the groups of a source, epoch after epoch, as a Grain
    dataset.
    """
    import grain

    epoch = grain.MapDataset.range(len(numbers)).map(lambda index: (which, numbers[index]))
    # In this order the index counts on from epoch to epoch, and Grain permutes each one anew.
    return (epoch.shuffle(seed=seed) if shuffle else epoch).repeat()


class TrainingOrder:
    """The groups that each step trains on: `order[step]` is a list of groups, the same at every
    call.

    Every epoch is a new permutation of the source, and a step may end one epoch and begin the next.
    Of several sources, each has its share of any run of groups, as nearly as whole groups allow,
    and its own epochs.

    Args:
        sources: folders, each with the numbers of its groups.
        seed: seed of the permutations, 0 to 2**32 - 1; of the first source. Those of others are
            drawn from it and the source's number.
        prompts_per_step: groups in each step's list.
        shares: share of each of several sources; they need not add to 1.
        shuffle: False takes every epoch in the source's own order.

    Raises:
        UsageError: a seed out of range.
        DataError: a source has no groups.

    Examples:
        Four groups, two per step; a run that continues at step 3 reads the same groups:

        >>> from grre_jax import rollouts
        >>> groups = [
        ...     rollouts.Group(group_id=name, prompt="1+1=", texts=["2", "3"], rewards=[1, 0])
        ...     for name in "abcd"
        ... ]
        >>> _ = rollouts.write("my_rollouts", groups, writer="me")
        >>> reader = rollouts.read("my_rollouts")
        >>> sources = [(reader, range(len(reader)))]
        >>> order = rollouts.TrainingOrder(sources, seed=0, prompts_per_step=2)
        >>> sorted(group.group_id for step in (0, 1) for group in order[step])
        ['a', 'b', 'c', 'd']
        >>> next(order.batches(start=3)) == order[3]
        True
    """

    def __init__(
        self,
        sources: Sequence[Source],
        seed: int,
        prompts_per_step: int,
        *,
        shares: Sequence[float] = (1.0,),
        shuffle: bool = True,
    ) -> None:
        import grain

        self._readers = [reader for reader, _ in sources]
        for reader, numbers in sources:
            if not len(numbers):
                raise DataError(
                    f"No group of {reader.folder} is selected, of {len(reader)}; sample some with"
                    " `grre train`, or use `grre rollouts import`."
                )
        numbered = enumerate(numbers for _, numbers in sources)
        streams = [_epochs(i, numbers, _source_seed(seed, i), shuffle) for i, numbers in numbered]
        stream = streams[0] if len(streams) == 1 else grain.MapDataset.mix(streams, list(shares))
        self._steps: Any = stream.batch(prompts_per_step, drop_remainder=True, batch_fn=list)

    def __len__(self) -> int:
        """Number of steps."""
        return len(self._steps)

    def indices(self, step: int) -> list[tuple[int, int]]:
        """Returns the groups of a step without reading them.

        Args:
            step: from 0.

        Returns:
            (number of the source, the group's number in its folder) per group.

        Raises:
            IndexError: a step out of range.
        """
        if not 0 <= step < len(self):
            raise IndexError(f"step {step}")
        return self._steps[step]

    def __getitem__(self, step: int) -> list[Group]:
        """Returns the groups of a step, from 0.

        Raises:
            IndexError: a step out of range.
            CorruptShard: a group cannot be read as it was written.
        """
        return self._read(self.indices(step))

    def _read(self, groups: Sequence[tuple[int, int]]) -> list[Group]:
        return [self._readers[which][number] for which, number in groups]

    def batches(self, start: int = 0, stop: int | None = None) -> Iterator[list[Group]]:
        """Returns the groups of the steps from `start` (to before `stop`), read ahead by a thread.

        Args:
            start: first step; on resume, the number of steps done.
            stop: the step after the last; None never ends.
        """
        import grain

        ahead = grain.ReadOptions(num_threads=1, prefetch_buffer_size=STEPS_AHEAD)
        return iter(self._steps[start:stop].map(self._read).to_iter_dataset(ahead))
