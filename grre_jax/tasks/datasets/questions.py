"""Questions of one's own, from JSON lines, JSON or Parquet files or a folder of `datasets`.

A record has a prompt ("prompt", "question" or "problem") and perhaps an answer ("answer",
"solution", "target" or "ground_truth"). The prompt is a text, the user's turn of the model's chat
template, or a list of messages as TRL has them. Completions are right if they are the answer, white
space at their ends aside; `task.reward` names other rewards.
"""

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grre_jax.domains import Count
from grre_jax.errors import UsageError
from grre_jax.json_files import OBJECT, TEXT, Domain, message_text, require
from grre_jax.tasks.datasets.stored_questions import Entry, StoredQuestions
from grre_jax.tasks.datasets.stored_records import Record
from grre_jax.tasks.task import Question, Verdict

PROMPTS = ("prompt", "question", "problem")
ANSWERS = ("answer", "solution", "target", "ground_truth")
ROLES = ("system", "user", "assistant")
_PROMPT = TEXT | Domain("a list of messages", lambda value: isinstance(value, list))
_MESSAGES = Domain(
    f"messages of {', '.join(ROLES)} that end with a user's",
    lambda value: (
        isinstance(value, list)
        and value != []
        and all(OBJECT.holds(message) and message.get("role") in ROLES for message in value)
        and value[-1]["role"] == "user"
    ),
)


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

    path: str | Path | None = None
    held_out: Count | None = None

    def __post_init__(self):
        if self.path is None:
            raise UsageError(
                "task.options.path: expected a file or folder of questions, got none. Pass"
                " --task.options.path FILE.jsonl."
            )
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
        prompt = require(record.get(name), _PROMPT, where, " or ".join(PROMPTS))
        messages = prompt if isinstance(prompt, list) else [{"role": "user", "content": prompt}]
        said = texts(messages, where, name)
        answer = next((record[name] for name in ANSWERS if record.get(name) is not None), "")
        family, question = self._entry(split, "\n\n".join(said), str(answer))
        if len(messages) > 1:
            turns = zip(messages, said, strict=True)
            turns = tuple({"role": message["role"], "content": text} for message, text in turns)
            question = dataclasses.replace(question, messages=turns)
        return [(family, question)]


def texts(messages: Any, where: str, name: str) -> list[str]:
    """Returns the texts of the messages that a field of a record holds.

    Raises:
        DataError: they are not messages that end with a user's.
    """
    require(messages, _MESSAGES, where, name)
    contents = [message_text(message.get("content"), where) for message in messages]
    return [require(content, TEXT, where, "content") for content in contents]
