"""Stop strings: a completion ends if one appears in its text, regardless of its tokens.

A stop string may begin in the middle of a token, extend over several and end in the middle of
another. The completion keeps the tokens up to and including the one that completes the first stop
string (they were drawn, and their log-probs remain valid); its text ends before the stop string.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Sequence

import numpy as np
from jaxtyping import Int

from grre_jax.sampling.text.incremental_text import IncrementalText


@dataclasses.dataclass
class _Progress:
    """The searched part of one completion.

    Attributes:
        tokens: tokens searched.
        text: decodes them.
        tail: end of their text, one character shorter than the longest stop string. It contains no
            stop string, but one may begin in it.
    """

    tokens: int
    text: IncrementalText
    tail: str = ""


class StopStrings:
    """Finds stop strings in the completions of one call, as they grow.

    It records how far each completion was searched, so every token is decoded a small constant
    number of times. A completion with fewer tokens than before is treated as a new one.

    Args:
        stops: the strings, as `SamplingParams.stop` checks them.
        decode: the tokenizer's, from token ids to text; special tokens that it omits cannot be part
            of a stop string.
    """

    def __init__(self, stops: Sequence[str], decode: Callable[[list[int]], str]):
        self.stops = tuple(stops)
        self._decode = decode
        self._tail = max(map(len, self.stops), default=1) - 1
        self._progress: dict[tuple[Hashable, int], _Progress] = {}

    def __call__(
        self, prompt: Hashable, sample: int, tokens: Int[np.ndarray, " tokens"]
    ) -> int | None:
        """Returns the number of tokens to keep if a stop string is complete in them, else None.

        Args:
            prompt, sample: which completion it is.
            tokens: all its tokens so far; those of earlier calls come first.
        """
        done = self._progress.get((prompt, sample))
        if done is None or len(tokens) < done.tokens:
            done = self._progress[prompt, sample] = _Progress(0, IncrementalText(self._decode))
        new = [int(token) for token in tokens[done.tokens :]]
        before = done.text.copy()
        text = done.tail + done.text.push(new)
        if self.cut(text)[1] is not None:
            return done.tokens + self._completed_by(before, done.tail, new)
        done.tokens, done.tail = len(tokens), text[max(0, len(text) - self._tail) :]
        return None

    def cut(self, text: str) -> tuple[str, str | None]:
        """Returns the text before the earliest stop string, and that stop string; the whole text
        and None if it contains none. Of two that begin together, the longer counts.
        """
        found = [(at, -len(stop), stop) for stop in self.stops if (at := text.find(stop)) >= 0]
        if not found:
            return text, None
        at, _, stop = min(found)
        return text[:at], stop

    def _completed_by(self, reader: IncrementalText, text: str, new: list[int]) -> int:
        """Returns the number of new tokens that complete a stop string."""
        for count, token in enumerate(new, 1):
            text += reader.push([token])
            if self.cut(text)[1] is not None:
                return count
        return len(new)
