"""Small sums asked in words: a task that a small pretrained chat model solves sometimes, so that
there is something to reinforce.

A prompt is "What is 3 + 5? Answer with just the number." and the reward is 1 when the final number
of the answer is right, else 0. Training walks the finite set of questions in epochs, each in a
seeded order of its own.

A fifth of the questions is held out, chosen by a hash whatever the seed. 3 + 5 and 5 + 3 are on the
same side: a model cannot have trained on the mirror image of what it is evaluated on.

    grre train configs/smollm2_arithmetic.py
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated

import numpy as np
from jaxtyping import Int

from grre_jax import domains, random_streams, tasks
from grre_jax.tasks.verifiers.final_number import final_answer, verify_number

_MOST_QUESTIONS = 10**6
_HELD_OUT_ONE_IN = 5


@dataclass(eq=False, repr=False)
class ChatArithmetic(domains.Record):
    """The task; see the module's text.

    Args:
        seed: orders the epochs of training.
        operands: numbers in a question, at least 2.
        digits: of the largest operand: operands run from 0 to 10**digits - 1, or `below` - 1.
        template: the prompt, with {expression} where "3 + 5" goes.
        below: operands are smaller than this; 0 for 10**digits.

    Attributes:
        name: "chat_arithmetic".
        training_source, evaluation_source: names for provenance.
        training_size: distinct questions in training: 80 one-digit sums.

    Raises:
        UsageError: an option out of its domain, a template without {expression}, or more than a
            million questions.
    """

    name = "chat_arithmetic"
    trusted_verifier = True
    training_source = "chat_arithmetic/train"
    evaluation_source = "chat_arithmetic/held-out"

    seed: domains.Seed = 0
    operands: Annotated[int, "[2, 6]"] = 2
    digits: Annotated[int, "[1, 3]"] = 1
    template: str = "What is {expression}? Answer with just the number."
    below: int = 0

    def __post_init__(self):
        super().__post_init__()
        most = 10**self.digits
        self.values = domains.checked("below", Annotated[int, f"[2, {most}]"], self.below or most)
        if self.values**self.operands > _MOST_QUESTIONS:
            domain = f"at most {_MOST_QUESTIONS:,} questions of {self.values} numbers"
            raise domains.ConfigError("operands", domain, self.operands)
        if "{expression}" not in self.template:
            raise domains.ConfigError("template", "a text with {expression}", self.template)
        training, held_out = _split(self.operands, self.digits, self.values)
        self._training = training.tolist()
        self._held_out = held_out.tolist()
        self.training_size = len(self._training)
        self._order = random_streams.EpochStream(self.seed, self.training_size)

    def question(self, position: int) -> tasks.Question:
        """The question at a position of the training stream; UsageError for a bad position."""
        return self._as_question(self._training[self._order[position]])

    def evaluation(self, count: int) -> list[tasks.Question]:
        """The first `count` held-out questions, in the order of their hash, or all of them."""
        count = domains.checked("count", domains.Positive, count)
        return list(map(self._as_question, self._held_out[:count]))

    verify = staticmethod(verify_number)
    final_answer = staticmethod(final_answer)

    def _as_question(self, number: int) -> tasks.Question:
        values = [number // self.values**place % self.values for place in range(self.operands)]
        result = str(sum(values))
        words = list(map(str, values))
        prompt = self.template.replace("{expression}", " + ".join(words))
        return tasks.Question(f"chat_arithmetic/{'+'.join(words)}", prompt, result, result)


@lru_cache(maxsize=4)
def _split(
    operands: int, digits: int, base: int
) -> tuple[Int[np.ndarray, "training"], Int[np.ndarray, "held_out"]]:
    """Numbers of the training questions in order, and of the held-out ones by their hash."""
    numbers = np.arange(base**operands)
    values = np.stack([numbers // base**place % base for place in range(operands)], axis=1)
    # Questions that are one question but for the order of their operands share their smallest
    # number, and with it their hash.
    siblings = np.sort(values, axis=1)[:, ::-1] @ (base ** np.arange(operands))
    key = random_streams.purpose_key(digits, random_streams.Purpose.SPLIT)
    key = random_streams.fold_in(key, random_streams.address(ord("+")))
    rank = np.argsort(random_streams.shuffled(key, len(numbers)))
    families = rank[siblings]
    # The cut goes forward to the end of a family, so that none is torn.
    last = np.sort(families)[-(-len(numbers) // _HELD_OUT_ONE_IN) - 1]
    held_out = numbers[families <= last]
    # Not family by family: the first of them are to be of many.
    return numbers[families > last], held_out[np.argsort(rank[held_out])]
