"""Base of the tasks whose questions are the beginnings of an environment, decided by a seed."""

import abc
import random
from dataclasses import dataclass
from typing import ClassVar

from grre_jax.domains import Record
from grre_jax.tasks.task import Question, check_template
from grre_jax.tasks.tokenizers.characters import CharTokenizer

END = "\x03"  # of a turn, in characters
ASCII = "".join(map(chr, range(32, 127))) + "\n" + END


@dataclass(eq=False, repr=False)
class SeededWorlds(Record, abc.ABC):
    """The base of such tasks, whose fields are their options.

    Args:
        template: the first message, with {observation}.

    Attributes:
        name: the task's, as rollouts record it.
        tokenizer: ASCII characters, for a new model.
        separator: the end of the line behind each observation.

    Raises:
        UsageError: an option out of its domain.
    """

    name: ClassVar[str]
    separator = "\n"
    tokenizer = CharTokenizer(ASCII, END)

    template: str = "{observation}"

    def __post_init__(self):
        super().__post_init__()
        check_template(self.template, "observation")

    @property
    @abc.abstractmethod
    def world(self) -> str:
        """The environment's name, part of the questions' names."""

    @property
    def training_source(self) -> str:
        """Name of the training stream, for provenance."""
        return f"{self.name}/{self.world}/train"

    @property
    def evaluation_source(self) -> str:
        """Name of the held-out questions, for provenance."""
        return f"{self.name}/{self.world}/held-out"

    def question(self, position: int) -> Question:
        """A world of the training stream, which its id and the environment's seed decide."""
        return Question(f"{self.training_source}/{position}", "", "")

    def evaluation(self, count: int) -> list[Question]:
        """The first `count` worlds that are held out."""
        return [Question(f"{self.evaluation_source}/{number}", "", "") for number in range(count)]

    def opening(self, observation: str) -> list[dict[str, str]]:
        """Returns the messages of an observation that a trajectory begins with."""
        return [{"role": "user", "content": self.template.replace("{observation}", observation)}]


def world_seed(question: Question, seed: int) -> int:
    """Returns the seed of a question's world in a group with this seed, from 0 to 2**31 - 1."""
    return random.Random(f"{question.question_id}/{seed}").getrandbits(31)
