"""A guessing game: a hidden number is found by guesses, each answered by the direction.

The policy reads `?` and writes one symbol a turn. The answer is `<` if the hidden number is
smaller, `>` if it is larger, `?` if the guess was no number; the right number ends the game with
reward 1. With 10 numbers and 4 turns halving finds every one; guessing without looking finds fewer
than four in ten.
"""

from __future__ import annotations

import random

from grre_jax.tasks.environments.environment import Step
from grre_jax.tasks.task import Question, whole_number
from grre_jax.tasks.tokenizers.characters import CharTokenizer

SYMBOLS = "0123456789abcdefghijklmnopqrstuvwxyz"


class GuessNumber:
    """The task. `sampling.max_turns` limits the guesses; a turn is one token, so
    `sampling.max_turn_tokens` is 1.

    Attributes:
        name, version: as rollouts record them.
        tokenizer: characters: the numbers' symbols, `?<>` and the end.
        separator: nothing stands between turns.
    """

    name, version, separator = "guess_number", "1", ""
    trusted_verifier = True
    training_source = "guess_number/train"
    evaluation_source = "guess_number/held-out"

    def __init__(self, seed: int = 0, numbers: int = 10):
        """Makes the task.

        Args:
            seed: of the run; the hidden number is drawn by the environment's own.
            numbers: from 0 on, 2 to 36.

        Raises:
            UsageError: an option out of its domain.
        """
        self.symbols = SYMBOLS[: whole_number("numbers", numbers, 2, len(SYMBOLS))]
        self.tokenizer = CharTokenizer(self.symbols + "?<>$")

    def question(self, position: int) -> Question:
        """A game of the training stream; its environment's seed decides the number."""
        return Question(f"{self.training_source}/{position}", "", "")

    def evaluation(self, count: int) -> list[Question]:
        """The first `count` games that are held out."""
        return [Question(f"{self.evaluation_source}/{i}", "", "") for i in range(count)]

    def environment(self) -> Game:
        """A game that has not begun."""
        return Game(self.symbols)


class Game:
    """One game.

    Args:
        symbols: the numbers, in order.
    """

    def __init__(self, symbols: str):
        self._symbols, self.hidden = symbols, 0

    def reset(self, question: Question, seed: int) -> list[dict[str, str]]:
        """Hides a number."""
        draw = random.Random(f"{question.question_id}/{seed}")
        self.hidden = draw.randrange(len(self._symbols))
        return [{"role": "user", "content": "?"}]

    def step(self, action: str) -> Step:
        """Says where the hidden number is."""
        guess = self._symbols.find(action) if len(action) == 1 else -1
        if guess == self.hidden:
            return Step(reward=1.0, done=True)
        return Step("?" if guess < 0 else "<" if self.hidden < guess else ">")
