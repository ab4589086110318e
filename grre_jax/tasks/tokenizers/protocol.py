"""The interface of tokenizers, and what their loaders share."""

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from grre_jax.tasks.task import Question

# {"role": ..., "content": text}, and whatever else the chat template reads.
Message = dict[str, Any]


@runtime_checkable
class Tokenizer(Protocol):
    """Text to token ids and back.

    Attributes:
        vocab_size: number of ids; a model's embedding may have more rows.
        eos_ids: the ids that end a completion; the first is the one `encode_completion` writes.
        pad_id: the id that fills rows up; may equal an end id, for no mask is ever made from it.
        fingerprint: 16 hexadecimal digits, equal when texts become the same ids.
    """

    vocab_size: int
    eos_ids: tuple[int, ...]
    pad_id: int
    fingerprint: str

    def encode_prompt(self, question: Question | str) -> list[int]:
        """Returns the ids of a question as the policy sees it, chat template included."""

    def encode_completion(self, text: str) -> list[int]:
        """Returns the ids of a completion, its end token included."""

    def decode(self, ids: Iterable[int]) -> str:
        """Returns the text of some ids, without end and padding tokens."""

    def save(self, folder: str | Path) -> None:
        """Writes the tokenizer's files into a folder, which is made if it is missing."""


def content_digest(content: Any) -> str:
    """Returns the first 16 hexadecimal digits of the SHA-256 of JSON content."""
    return hashlib.sha256(
        json.dumps(content, ensure_ascii=False).encode("utf-8", "surrogatepass")
    ).hexdigest()[:16]
