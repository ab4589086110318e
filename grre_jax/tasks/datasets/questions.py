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

from grre_jax.domains import Positive
from grre_jax.errors import DataError, UsageError
from grre_jax.json_files import message_text
from grre_jax.tasks.datasets.stored_questions import Entry, StoredQuestions
from grre_jax.tasks.datasets.stored_records import Record, kinds_of
from grre_jax.tasks.task import Question, Verdict

PROMPTS = ("prompt", "question", "problem")
ANSWERS = ("answer", "solution", "target", "ground_truth")
ROLES = ("system", "user", "assistant")
MOST_HELD_OUT = 500


@dataclass(eq=False, repr=False)
class Questions(StoredQuestions):
    """The task; see the module's text.

    Args:
        path: a file, or a folder with the files of train and perhaps test.
        held_out: questions held out where there is no test split; None for a tenth of them, at
            most MOST_HELD_OUT.

    Attributes:
        name: "questions".
    """

    name = "questions"
    hub = ("", None)
    trusted_verifier = True

    path: str | Path | None = None
    held_out: Positive | None = None

    def __post_init__(self):
        if self.path is None:
            raise UsageError(
                "task.options.path: expected a file or folder of questions, got none. Pass"
                " --task.options.path FILE.jsonl."
            )
        super().__post_init__()

    def _number_held_out(self) -> int:
        if self.held_out is not None:
            return self.held_out
        return min(MOST_HELD_OUT, max(1, len(self._train) // 10))

    def verify(self, question: Question, completion: str) -> Verdict:
        """Compares a completion with the answer."""
        right = completion.strip() == question.answer.strip()
        return Verdict(float(right), correct=right)

    def final_answer(self, completion: str) -> str | None:
        """The completion without white space at its ends; None if nothing is left."""
        return completion.strip() or None

    def _questions_of(self, split: str, record: Record, where: str) -> Iterable[Entry]:
        name = next((name for name in PROMPTS if record.get(name)), None)
        if name is None:
            raise DataError(
                f"{where}: expected a field of {', '.join(PROMPTS)}, got {kinds_of(record)}."
            )
        messages = record[name] if isinstance(record[name], list) else None
        text = record[name] if messages is None else _joined(messages, f"{where}, {name}")
        if not isinstance(text, str):
            raise DataError(
                f"{where}, {name}: expected a text or a list of messages, got {str(text)[:80]!r}."
            )
        answer = next((record[name] for name in ANSWERS if record.get(name) is not None), "")
        family, question = self._entry(split, text, str(answer))
        if messages is not None and [m["role"] for m in messages] != ["user"]:
            said = tuple({"role": m["role"], "content": _text(m, where)} for m in messages)
            question = dataclasses.replace(question, messages=said)
        return [(family, question)]


def _joined(messages: list[Any], where: str) -> str:
    """Returns the texts of messages, one after the other.

    Raises:
        DataError: they are not messages that end with a user's.
    """
    roles = [m.get("role") if isinstance(m, dict) else None for m in messages]
    if not roles or any(role not in ROLES for role in roles) or roles[-1] != "user":
        raise DataError(
            f"{where}: expected messages of {', '.join(ROLES)} that end with a user's, got roles"
            f" {roles}."
        )
    return "\n\n".join(_text(message, where) for message in messages)


def _text(message: dict[str, Any], where: str) -> str:
    text = message_text(message.get("content"), where)
    if not isinstance(text, str):
        raise DataError(f"{where}: content: expected a text, got {str(text)[:80]!r}.")
    return text
