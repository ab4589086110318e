"""Chained arithmetic in which multiplications are worked first: 3+5*2-1 is 5*2=0, 3+0=3, 3-1=2."""

import functools

import numpy as np

from grre_jax.random_streams import Purpose
from grre_jax.tasks.datasets.arithmetic import Arithmetic


class Precedence(Arithmetic):
    """The task. A flawed step of a demonstration works the last operation, whatever it is; steps
    are not corrupted.
    """

    def steps(self, prompts, positions=None):
        """The steps of each prompt; see `Arithmetic.steps`."""
        xp = prompts.__array_namespace__()
        at_places = functools.partial(xp.take_along_axis, axis=1)
        plus, minus, times = map(self.tokenizer.ids.get, "+-*")
        steps = []
        values = prompts[:, 0:-1:2]
        operations = prompts[:, 1:-1:2]
        for step in range(self.operands - 1):
            # The operation that is worked next: the first multiplication, or the first of all.
            next_ = xp.argmax(operations == times, axis=1, keepdims=True)
            if positions is not None:
                flawed, _ = self._drawn(Purpose.FLAW, self.flaw, positions)
                next_ = xp.where(flawed[:, step, None], operations.shape[1] - 1, next_)
            left = at_places(values, next_)
            operation = at_places(operations, next_)
            right = at_places(values, next_ + 1)
            other = xp.where(operation == minus, left - right, left * right)
            value = xp.where(operation == plus, left + right, other) % 10
            steps.append([column[:, 0] for column in (left, operation, right, value)])
            place = np.arange(operations.shape[1])[None]
            kept = at_places(values, place + (place > next_))
            values = xp.where(place == next_, value, kept)
            place = place[:, :-1]
            operations = at_places(operations, place + (place >= next_))
        return steps
