"""Questions of one's own, from JSON lines, JSON or Parquet files.

A record has a prompt ("prompt", "question" or "problem") and perhaps an answer ("answer",
"solution", "target" or "ground_truth"). The prompt is a text, the user's turn of the model's chat
template, or a list of messages as TRL has them. Completions are right if they are the answer, white
space at their ends aside; `task.reward` names other rewards.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from grre_jax.domains import ConfigError, Count
from grre_jax.errors import DataError
from grre_jax.json_files import message_text, require
from grre_jax.tasks.datasets.stored_questions import Entry, Record, StoredQuestions
from grre_jax.tasks.task import Question, Verdict

PROMPTS = ("prompt", "question", "problem")
ANSWERS = ("answer", "solution", "target", "ground_truth")
Role = Literal["system", "user", "assistant"]


@dataclass(eq=False, repr=False)
class Questions(StoredQuestions):
    """The task; see the module's text.

    Args:
        path: a file, or a folder with the files of train and perhaps test.

    Attributes:
        name: "questions".
    """

    name = "questions"
    hub = ("", None)
    trusted_verifier = True

    held_out: Count | None = None

    def __post_init__(self):
        if self.path is None:
            raise ConfigError("task.options.path", "a file or folder of questions", self.path)
        super().__post_init__()

    def verify(self, question: Question, completion: str) -> Verdict:
        """Compares a completion with the answer."""
        right = completion.strip() == question.answer.strip()
        return Verdict(float(right), correct=right)

    def final_answer(self, completion: str) -> str | None:
        """The completion without white space at its ends; None if nothing is left."""
        return completion.strip() or None

    def _questions_of(self, split: str, record: Record, where: str) -> Iterable[Entry]:
        name = next((name for name in PROMPTS if record.get(name)), None)
        prompt = require(record.get(name), str | list, where, " or ".join(PROMPTS))
        messages = prompt if isinstance(prompt, list) else [{"role": "user", "content": prompt}]
        turns = plain_messages(messages, where, name)
        answer = next((record[name] for name in ANSWERS if record.get(name) is not None), "")
        messages = turns if len(turns) > 1 else None
        return [self._entry(split, joined(turns), str(answer), messages=messages)]


def plain_messages(messages: Any, where: str, name: str) -> tuple[dict[str, str], ...]:
    """Returns role and text of the messages that a field of a record holds.

    Raises:
        DataError: they are not messages that end with a user's.
    """
    rows = require(messages, tuple[dict[str, Any], ...], where, name)
    roles = [require(message.get("role"), Role, where, f"{name}: role") for message in rows]
    if roles[-1:] != ["user"]:
        raise DataError(f"{where}: {name}: expected messages that end with a user's, got {roles}")
    contents = [message_text(message.get("content"), where) for message in rows]
    texts = [require(content, str, where, "content") for content in contents]
    return tuple({"role": role, "content": text} for role, text in zip(roles, texts, strict=True))


def joined(messages: Iterable[dict[str, str]]) -> str:
    """Returns the texts of messages as one."""
    return "\n\n".join(message["content"] for message in messages)
