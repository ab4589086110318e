"""Stop strings: a completion ends if one appears in its text, regardless of its tokens.

A stop string may begin in the middle of a token, extend over several and end in the middle of
another. The completion keeps the tokens up to and including the one that completes the first stop
string (they were drawn, and their log-probs remain valid); its text ends before the stop string.
"""

import bisect
from collections.abc import Callable, Sequence
from typing import NamedTuple

# Tokens that may spell one character: its bytes.
TOKENS_PER_CHARACTER = 4


class StopStrings(NamedTuple):
    """Finds stop strings in completions.

    Args:
        stops: the strings, as `SamplingParams.stop` checks them.
        decode: the tokenizer's, from token ids to text; special tokens that it omits cannot be part
            of a stop string.
    """

    stops: Sequence[str]
    decode: Callable[[list[int]], str]

    def cut(self, text: str) -> tuple[str, str | None]:
        """Returns the text before the earliest stop string, and that stop string; the whole text
        and None if it contains none. Of two that begin together, the longer counts.
        """
        matches = [(at, -len(stop), stop) for stop in self.stops if (at := text.find(stop)) >= 0]
        if not matches:
            return text, None
        at, _, stop = min(matches)
        return text[:at], stop

    def kept(self, tokens: Sequence[int], searched: int = 0) -> int | None:
        """Returns the number of tokens to keep if a stop string is complete in them, else None.

        Args:
            tokens: of a completion.
            searched: tokens at the beginning that are known to contain none.
        """
        longest = max(map(len, self.stops), default=0)
        # One token more, which some decoders take a leading space from.
        start = max(0, searched - TOKENS_PER_CHARACTER * longest - 1)
        tokens = [int(token) for token in tokens[start:]]

        # Once complete, a stop string stays so as tokens are added: hence the bisection.
        def complete(count: int) -> bool:
            return self.cut(self.decode(tokens[:count]))[1] is not None

        if not complete(len(tokens)):
            return None
        new = searched - start + 1
        return start + bisect.bisect_left(range(len(tokens)), True, lo=new, key=complete)
