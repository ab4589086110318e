"""Outputs of completions: fields of a JSON line, and text on the terminal."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from grre_jax.errors import UsageError
from grre_jax.generation.options import STANDARD
from grre_jax.sampling import Piece
from grre_jax.sampling.text.incremental_text import IncrementalText
from grre_jax.sampling.text.stop_strings import StopStrings

# All control characters but tab and newline: a model's text must not move the cursor or rename the
# window.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
LOGPROBS = {"behavior": "logprobs", "sampling": "sampling_logprobs", "policy": "policy_logprobs"}


def completion(pieces: list[Piece], decode: Callable[[list[int]], str], stops: StopStrings) -> dict:
    """Returns a completion of an output line, of its pieces in order.

    A log-prob is the shortest decimal that reads back equal, or null if it is not finite.
    """
    tokens = np.concatenate([piece.tokens for piece in pieces]).tolist()
    text, stop = stops.cut(decode(tokens))
    line = {"text": text, "tokens": tokens, "finish_reason": pieces[-1].finish, "stop_string": stop}
    for name, field in LOGPROBS.items():
        values = np.concatenate([piece.logprobs[name] for piece in pieces]).astype(np.float32)
        line[field] = [float(str(x)) if np.isfinite(x) else None for x in values]
    return line


class OneText:
    """Writes a completion as it is drawn; text that may begin a stop string is held back."""

    def __init__(self, decode: Callable[[list[int]], str], stops: StopStrings, out: TextIO):
        self._text = IncrementalText(decode)
        self._stops = stops
        self._out = out
        self._held = ""
        self._stopped = False

    def piece(self, tokens: list[int], *, last: bool = False) -> None:
        """Writes the text of the tokens; behind the last ones what was held back."""
        if self._stopped:
            return
        new = self._text.push(tokens) + (self._text.finish() if last else "")
        text, stop = self._stops.cut(self._held + new)
        self._stopped = stop is not None
        held = 0 if last or self._stopped else self._stops.held(text)
        self._held = text[len(text) - held :]
        self._out.write(printable(text[: len(text) - held], self._out))
        self._out.flush()


def check(path: str) -> None:
    """Checks that an output can be written.

    Raises:
        UsageError: the file exists, or its folder does not.
    """
    if path not in ("", STANDARD) and (Path(path).exists() or not Path(path).parent.is_dir()):
        raise UsageError(f"--output {path}: expected a new file in an existing folder")


def opened(path: str) -> contextlib.AbstractContextManager[Any]:
    """Opens standard output, or a new file."""
    if path in ("", STANDARD):
        return contextlib.nullcontext(sys.stdout)
    return open(path, "x", encoding="utf-8")


def printable(text: str, out: TextIO) -> str:
    """Returns the text with the characters that the file's encoding lacks replaced and, on a
    terminal, control characters too.
    """
    if out.isatty():
        text = _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)
    encoding = out.encoding or "utf-8"
    return text.encode(encoding, "replace").decode(encoding)
