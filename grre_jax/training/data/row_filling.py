"""Assignment of completions to rows: best fit, and a group is divided if the tokens that this fills
are worth a second copy of the prompt.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from grre_jax.errors import DataError


class Filling:
    """Rows that are filled group by group.

    A row is opened only if no open one has room, so empty rows are the last ones. No group opens
    more rows than it fills alone, and every row but the first begins with at most the rest of one
    group: the rows of the worst case (`BatchShape.of_run`) suffice.

    Args:
        rows: number of rows.
        length: tokens per row.
        share: completions of a group in one row share one copy of the prompt; else each has its
            own.
    """

    def __init__(self, rows: int, length: int, share: bool):
        self.used = np.zeros(rows, int)
        self.length, self.share, self._open = length, share, 0

    def add(
        self, group_id: str, prompt: int, lengths: Sequence[int]
    ) -> Iterator[tuple[int, list[int]]]:
        """Adds all completions of a group to the rows.

        Args:
            group_id: for messages.
            prompt: number of tokens of the prompt.
            lengths: number of tokens of each completion.

        Yields:
            (row, numbers of completions), each after the row has taken the prompt and these.

        Raises:
            DataError: naming the group, if a completion is too long for a row, or no row is left.
        """
        # The longest first, while there is room.
        left = sorted(range(len(lengths)), key=lambda k: (-lengths[k], k))
        if left and prompt + lengths[left[0]] > self.length:
            raise DataError(
                f"completion {left[0]} of group {group_id} has {lengths[left[0]]} tokens after a"
                f" prompt of {prompt}: over pack_length={self.length}; raise training.pack_length"
            )
        while left:
            wanted = left if self.share else left[:1]
            row, taken = self._choose(group_id, prompt, wanted, lengths)
            self.used[row] += prompt + sum(lengths[k] for k in taken)
            left = [] if len(taken) == len(left) else [k for k in left if k not in taken]
            yield row, sorted(taken)

    def _choose(
        self, group_id: str, prompt: int, wanted: list[int], lengths: Sequence[int]
    ) -> tuple[int, list[int]]:
        room = self.length - self.used[: self._open]
        whole = prompt + sum(lengths[k] for k in wanted)
        largest = int(room.max(initial=-1))
        if largest >= whole:
            fits = np.flatnonzero(room >= whole)
            return int(fits[room[fits].argmin()]), wanted
        last = self._open == len(self.used)
        # A second copy of the prompt is worth what it fills, if that is as much as the copy takes.
        if largest > prompt and (last or largest >= 2 * prompt):
            taken = _fitting(wanted, lengths, largest - prompt)
            if taken and (last or sum(lengths[k] for k in taken) >= prompt):
                return int(room.argmax()), taken
        if last:
            raise DataError(
                f"the step's groups do not fit {len(self.used)} rows of {self.length} tokens at"
                f" group {group_id}: a prompt or completion is over the run's limits"
            )
        self._open += 1
        return self._open - 1, (
            wanted if whole <= self.length else _fitting(wanted, lengths, self.length - prompt)
        )


def _fitting(wanted: list[int], lengths: Sequence[int], room: int) -> list[int]:
    """Returns the completions that fit, taken in their order."""
    taken = []
    for k in wanted:
        if lengths[k] <= room:
            taken.append(k)
            room -= lengths[k]
    return taken
