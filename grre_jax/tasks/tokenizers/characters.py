"""The interface of tokenizers, and a tokenizer of single characters, for tasks that need no
download.
"""

import hashlib
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from grre_jax.errors import UsageError
from grre_jax.json_files import read_object, require
from grre_jax.tasks.task import Question

# {"role": ..., "content": text}, and whatever else the chat template reads.
Message = dict[str, Any]
# In tokenizer_config.json this key says that the folder holds a CharTokenizer; transformers carries
# it along unread.
_CHARACTERS_KEY = "grre_characters"
_UNKNOWN = "\N{REPLACEMENT CHARACTER}"


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


class CharTokenizer:
    """One id a character: character number i of `characters` has id i.

    The end character is an ordinary, visible one: `decode` shows it, because an answer that ends
    and one that was cut off are different answers, and a verifier that sees only text must be able
    to tell. A pad character of its own is dropped.

    Examples:
        >>> from grre_jax import tasks
        >>> tokenizer = tasks.CharTokenizer("0123456789+=$", eos="$")
        >>> tokenizer.encode_prompt("1+2="), tokenizer.encode_completion("3")
        ([1, 10, 2, 11], [3, 12])
        >>> tokenizer.decode([3, 12]), tokenizer.vocab_size, tokenizer.eos_ids
        ('3$', 13, (12,))
    """

    def __init__(
        self, characters: str = "0123456789+-*=,>$", eos: str = "$", pad: str | None = None
    ):
        """Makes a tokenizer.

        Args:
            characters: the vocabulary, without repetition.
            eos: the character that ends a completion, one of `characters`.
            pad: the character of padding; the end character by default, and put last in the
                vocabulary if it is a new one.

        Raises:
            UsageError: a repeated character, or an end or pad that is not a single character (or no
                end in the vocabulary).
        """
        pad = eos if pad is None else pad
        single = len(eos) == len(pad) == 1 and eos in characters
        if len(set(characters)) < len(characters) or not single:
            raise UsageError(
                "characters, eos, pad: expected every character once, the end one of them and the"
                f" pad a single one, got {characters!r}, {eos!r}, {pad!r}."
            )
        self.characters = characters if pad in characters else characters + pad
        self.eos = eos
        self.pad = pad
        self.ids = {character: place for place, character in enumerate(self.characters)}
        self.vocab_size = len(self.characters)
        self.eos_ids = (self.ids[eos],)
        self.pad_id = self.ids[pad]
        self.fingerprint = content_digest(["characters", self.characters, eos, pad])

    def encode_prompt(self, question: Question | str) -> list[int]:
        """The ids of a prompt; UsageError names a character that is not in the vocabulary."""
        return self._encode(question.prompt if isinstance(question, Question) else question)

    def encode_completion(self, text: str) -> list[int]:
        """Ids of a completion and its end character; UsageError for an unknown character."""
        return self._encode(text if text.endswith(self.eos) else text + self.eos)

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids.

        Padding (where it is not the end character) is dropped; an id outside the vocabulary, which
        a model with a wider head may sample, becomes U+FFFD, so that no verifier takes it for
        something it is not.
        """
        kept = (token for token in map(int, ids) if token != self.pad_id or self.pad == self.eos)
        return "".join(
            self.characters[token] if 0 <= token < self.vocab_size else _UNKNOWN for token in kept
        )

    def save(self, folder: str | Path) -> None:
        """Writes tokenizer.json and tokenizer_config.json, which transformers' AutoTokenizer and
        `load_tokenizer` read.
        """
        import tokenizers

        backend = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocab=self.ids, unk_token=""))
        backend.pre_tokenizer = tokenizers.pre_tokenizers.Split(
            pattern=tokenizers.Regex(r"[\s\S]"), behavior="isolated"
        )
        backend.decoder = tokenizers.decoders.Fuse()
        backend.add_special_tokens(sorted({self.eos, self.pad}))
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        backend.save(str(folder / "tokenizer.json"))
        settings = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": self.eos,
            "pad_token": self.pad,
            "clean_up_tokenization_spaces": False,
            _CHARACTERS_KEY: self.characters,
        }
        (folder / "tokenizer_config.json").write_text(
            json.dumps(settings, indent=2) + "\n", encoding="utf-8"
        )

    @classmethod
    def load(cls, folder: str | Path) -> "CharTokenizer | None":
        """Reads what `save` wrote; None if the folder holds no character tokenizer."""
        path = Path(folder) / "tokenizer_config.json"
        settings = read_object(path) if os.path.lexists(path) else {}
        if _CHARACTERS_KEY not in settings:
            return None
        names = (_CHARACTERS_KEY, "eos_token", "pad_token")
        texts = [require(settings.get(name), str, path, name) for name in names]
        return cls(*texts)

    def _encode(self, text: str) -> list[int]:
        try:
            return [self.ids[character] for character in text]
        except KeyError as error:
            raise UsageError(
                f"The character {error.args[0]!r} of {text[:80]!r} is not in the vocabulary"
                f" {self.characters!r}: leave it out, or give the model a tokenizer that has it."
            ) from None
