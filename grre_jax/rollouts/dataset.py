"""The learner's view of a rollout folder: which groups to train on, and in which order.

The order is a pure function of (groups, seed, step), computed by Grain, so resuming a run needs one integer and no buffer.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from grre_jax.errors import DataError, UsageError
from grre_jax.rollouts.reader import RolloutReader
from grre_jax.rollouts.schema import Group


class GroupSource:
    """Groups of a rollout folder, as a random-access data source for Grain (`len(source)`, `source[index]`).

    The selecting methods return a smaller source and read the groups they select from once.

    Args:
      reader: the opened rollout folder; what is sealed after this call is not part of the source.
      numbers: the groups' numbers in the reader; all of them by default.

    Raises:
      DataError: there are no groups.
    """

    def __init__(self, reader: RolloutReader, numbers: Sequence[int] | None = None) -> None:
        self.reader = reader
        self.numbers = list(range(len(reader))) if numbers is None else list(numbers)
        if not self.numbers and not len(reader):
            raise DataError(
                f"Rollout folder {reader.folder} holds no groups; sample some with `grre train`, or use `grre rollouts import`."
            )
        if not self.numbers:
            raise DataError(f"No group of rollout folder {reader.folder} is selected; select at least one of its {len(reader)}.")

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, index: int) -> Group:
        return self.reader[self.numbers[index]]

    def __repr__(self) -> str:
        return f"GroupSource({str(self.reader.folder)!r}, {len(self)} of {len(self.reader)} groups)"  # Grain puts this in its state

    def where(self, keep: Callable[[Group], bool], described: str) -> "GroupSource":
        """The groups that `keep` says yes to.

        Args:
          keep: called once with every group.
          described: what is kept, for the message when nothing is.

        Raises:
          DataError: no group is kept.
        """
        return self._subset([number for number in self.numbers if keep(self.reader[number])], described)

    def with_signal(self) -> "GroupSource":
        """The groups whose rewards differ: the others have no group-relative advantage.

        Raises:
          DataError: there is none.
        """
        return self.where(lambda group: group.has_signal, "groups whose completions differ in reward")

    def questions(self, start: int = 0, stop: int | None = None) -> "GroupSource":
        """The groups of a range of questions, which are counted in the order in which they first appear.

        `questions(0, 900)` and `questions(900)` share no question, so one may train and the other evaluate.

        Args:
          start: first question.
          stop: the question after the last, or None for all that follow.

        Raises:
          UsageError: a negative or empty range.
          DataError: no question lies in it.
        """
        if start < 0 or (stop is not None and stop <= start):
            raise UsageError(f"Question range {start} to {stop} holds nothing; give 0 <= start < stop.")
        order: dict[tuple[str, str], int] = {}
        places = []
        for number in self.numbers:
            group = self.reader[number]
            places.append(order.setdefault((group.task, group.question_id or group.prompt), len(order)))
        kept = [number for number, place in zip(self.numbers, places, strict=True) if start <= place and (stop is None or place < stop)]
        return self._subset(kept, f"questions {start} to {'the last' if stop is None else stop - 1} of its {len(order)} (from 0)")

    def _subset(self, numbers: list[int], described: str) -> "GroupSource":
        if not numbers:
            looked = f"among the {len(self)} groups looked at"
            raise DataError(f"Rollout folder {self.reader.folder} holds no {described} {looked}; loosen the selection.")
        return GroupSource(self.reader, numbers)


class TrainingOrder:
    """What each step trains on: `order[step]` is a list of groups, the same whenever it is asked for.

    Every epoch is a new permutation of the source, and a step may end one epoch and begin the next.

    Args:
      source: the groups.
      seed: seed of the permutations, 0 to 2**32 - 1.
      groups_per_step: groups in each step's list.

    Raises:
      UsageError: a seed or number of groups out of range.
    """

    def __init__(self, source: GroupSource, seed: int, groups_per_step: int) -> None:
        if groups_per_step < 1:
            raise UsageError(f"groups_per_step is {groups_per_step}; train on at least 1 group a step.")
        if not 0 <= seed < 2**32:
            raise UsageError(f"Data seed {seed} is out of range; give 0 to {2**32 - 1}.")
        import grain

        self.source = source
        self.groups_per_step = groups_per_step
        self._steps: Any = grain.MapDataset.source(source).shuffle(seed=seed).repeat().batch(groups_per_step, batch_fn=list)

    @property
    def steps_per_epoch(self) -> float:
        """Steps after which every group has been trained on once."""
        return len(self.source) / self.groups_per_step

    def __getitem__(self, step: int) -> list[Group]:
        """The groups of a step, from 0.

        Raises:
          IndexError: a negative step.
          CorruptShard, CorruptRecord: a group cannot be read as it was written.
        """
        if step < 0:
            raise IndexError(f"step {step}")
        return self._steps[step]

    def batches(self, start: int = 0, stop: int | None = None, *, prefetch: int = 4, threads: int = 1) -> Iterator[list[Group]]:
        """The groups of the steps from `start` (to before `stop`), read ahead by threads.

        Args:
          start: first step: on resume, the number of steps done.
          stop: the step after the last; None never ends.
          prefetch: steps read ahead; 0 for none.
          threads: threads that read.
        """
        import grain

        ahead = grain.ReadOptions(num_threads=threads if prefetch else 0, prefetch_buffer_size=prefetch)
        steps = self._steps[start:] if stop is None else self._steps[start:stop]
        return iter(steps.to_iter_dataset(ahead))


def training_order(source: GroupSource, seed: int, groups_per_step: int) -> TrainingOrder:
    """The order in which a learner trains on a source's groups; see `TrainingOrder`."""
    return TrainingOrder(source, seed, groups_per_step)
