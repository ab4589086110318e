"""A guessing game: a hidden number is found by guesses, each answered by the direction.

The policy reads `?` and writes one symbol a turn. The answer is `<` if the hidden number is
smaller, `>` if it is larger, `?` if the guess was no number; the right number ends the game with
reward 1. With 10 numbers and 4 turns halving finds every one; guessing without looking finds fewer
than four in ten. A turn is one token, so `sampling.max_turn_tokens` is 1.

    grre train configs/agent_guess.py
"""

import random

from grre_jax import tasks

SYMBOLS = "0123456789abcdefghijklmnopqrstuvwxyz"


class GuessNumber:
    """The task: games with the first `numbers` of SYMBOLS."""

    name, version, separator = "guess_number", "1", ""
    trusted_verifier = True  # steps in the run's own process

    def __init__(self, numbers):
        self.symbols = SYMBOLS[:numbers]
        self.tokenizer = tasks.CharTokenizer(self.symbols + "?<>$")

    def question(self, position):
        """A game of the training stream; its environment's seed decides the number."""
        return tasks.Question(f"guess_number/train/{position}", "", "")

    def evaluation(self, count):
        """The first `count` games that are held out."""
        return [tasks.Question(f"guess_number/held-out/{i}", "", "") for i in range(count)]

    def environment(self):
        """A game that has not begun."""
        return Game(self.symbols)


class Game:
    """One game."""

    def __init__(self, symbols):
        self.symbols = symbols

    def reset(self, question, seed):
        """Hides a number."""
        draw = random.Random(f"{question.question_id}/{seed}")
        self.hidden = draw.randrange(len(self.symbols))
        return [{"role": "user", "content": "?"}]

    def step(self, action):
        """Answers a guess with the direction."""
        guess = self.symbols.find(action) if len(action) == 1 else -1
        if guess == self.hidden:
            return "", 1.0, True, {}
        return "?" if guess < 0 else "<" if self.hidden < guess else ">", 0.0, False, {}


def build(seed=0, numbers=10):
    """Returns the task."""
    return GuessNumber(numbers)
