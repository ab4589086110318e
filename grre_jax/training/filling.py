"""Which row takes which completions: best fit, and a group cut in two where what that fills is worth a second copy of the prompt."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from grre_jax.errors import DataError


class Filling:
    """Rows that are filled group by group. A row is opened only when no open one takes what is left, so that empty rows come last.

    No group opens more rows than it fills alone, and every row but the first begins with at most one group's rest: the rows of the worst case (`BatchShape.of_run`) suffice.

    Args:
        rows: how many there are.
        length: tokens a row.
        share: completions of a group that lie in one row share one copy of the prompt; else each brings its own.
    """

    def __init__(self, rows: int, length: int, share: bool):
        self.used = np.zeros(rows, int)
        self.length, self.share, self._open = length, share, 0

    def place(self, group_id: str, prompt: int, lengths: Sequence[int]) -> Iterator[tuple[int, list[int]]]:
        """(row, numbers of completions) for all completions of a group; each time the row has taken the prompt and these.

        Args:
            group_id: for messages.
            prompt: tokens of the prompt.
            lengths: tokens of each completion.

        Raises:
            DataError: naming the group, if a completion is too long for a row, or no row is left.
        """
        for k, length in enumerate(lengths):
            if prompt + length > self.length:
                raise DataError(
                    f"completion {k} of group {group_id} has {length} tokens after a prompt of {prompt}: over row_tokens={self.length}; raise training.row_tokens"
                )
        # The longest first: what is hard to place is placed while there is room.
        left = sorted(range(len(lengths)), key=lambda k: (-lengths[k], k))
        while left:
            wanted = left if self.share else left[:1]
            row, taken = self._choose(group_id, prompt, [(k, int(lengths[k])) for k in wanted])
            self.used[row] += prompt + sum(int(lengths[k]) for k in taken)
            left = [k for k in left if k not in taken]
            yield row, sorted(taken)

    def _choose(self, group_id: str, prompt: int, wanted: list[tuple[int, int]]) -> tuple[int, list[int]]:
        room = self.length - self.used[: self._open]
        whole = prompt + sum(length for _, length in wanted)
        fits = np.flatnonzero(room >= whole)
        if fits.size:
            return int(fits[room[fits].argmin()]), [k for k, _ in wanted]
        last = self._open == len(self.used)
        if room.size:
            row = int(room.argmax())
            taken = _fitting(wanted, room[row] - prompt)
            if taken and (last or sum(length for _, length in taken) >= prompt):
                return row, [k for k, _ in taken]
        if last:
            raise DataError(
                f"the step's groups do not fit {len(self.used)} rows of {self.length} tokens at group {group_id}: a prompt or completion is over the run's limits"
            )
        self._open += 1
        return self._open - 1, [k for k, _ in _fitting(wanted, self.length - prompt)]


def _fitting(wanted: list[tuple[int, int]], room: int) -> list[tuple[int, int]]:
    """As many of the completions as fit, in their order."""
    taken = []
    for k, length in wanted:
        if length <= room:
            taken.append((k, length))
            room -= length
    return taken
