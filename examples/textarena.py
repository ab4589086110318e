"""Games of TextArena (Guertler et al., arXiv 2504.11442) for one player, by the task `gymnasium`.

The reward is the game's, at its end.

    grre train RUN.py --task.name gymnasium --task.options.env examples/textarena.py:make \\
        --task.options.arguments '{"game": "GuessTheNumber-v0"}'
"""

import contextlib
import random

import textarena


def make(game, **arguments):
    """A game that has not begun, without the wrappers that repeat earlier messages."""
    return Game(textarena.make(f"{game}-raw", **arguments))


class Game:
    """A game with Gymnasium's interface."""

    def __init__(self, game):
        self.game = game
        self.draws = random.Random(0)

    def reset(self, seed):
        """Begins; returns the rules."""
        self.draws.seed(seed)
        with self.drawing():
            self.game.reset(num_players=1, seed=seed)
            return self.written(), {}

    def step(self, action):
        """Takes a move; returns the game's response."""
        with self.drawing():
            done, _ = self.game.step(action)
            if not done:
                return self.written(), 0.0, False, False, {}
            rewards, _ = self.game.close()
            return "", rewards[0], True, False, {}

    def close(self):
        """There is nothing to close."""

    def written(self):
        """What the game wrote since the last move."""
        own = textarena.ObservationType.PLAYER_ACTION
        _, messages = self.game.get_observation()
        return "\n".join(text for _, text, kind in messages if kind is not own)

    @contextlib.contextmanager
    def drawing(self):
        """Games draw from Python's own generator, so each has a state of it to itself."""
        outer = random.getstate()
        random.setstate(self.draws.getstate())
        try:
            yield
        finally:
            self.draws.setstate(random.getstate())
            random.setstate(outer)
