"""Outputs of completions: text on the terminal as it is drawn, or JSON lines in the order of the
prompts.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from grre_jax.console import make_console
from grre_jax.errors import UsageError, naming
from grre_jax.generation.options import STANDARD, Options
from grre_jax.generation.prompts import Request
from grre_jax.sampling.text.incremental_text import IncrementalText
from grre_jax.sampling.text.stop_strings import StopStrings

# All control characters but tab and newline: a model's text must not move the cursor or rename the
# window.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
LOGPROBS = {"behavior": "logprobs", "sampling": "sampling_logprobs", "policy": "policy_logprobs"}


@dataclasses.dataclass
class Completion:
    """One completion, piece by piece.

    Attributes:
        tokens: ids, the ending EOS included; up to the token that completes a stop string, if one
            ends it.
        logprobs: of each token, float32 nats, by the names of `LOGPROBS`.
        finish: "" while it runs, then "stop" (EOS or a stop string) or "length".
    """

    tokens: list[int] = dataclasses.field(default_factory=list)
    logprobs: dict[str, list[float | None]] = dataclasses.field(
        default_factory=lambda: {name: [] for name in LOGPROBS}
    )
    finish: str = ""

    def add(self, piece: Any) -> None:
        """Appends a piece of `sampling.stream`."""
        self.tokens += [int(token) for token in piece.tokens]
        for name, values in self.logprobs.items():
            values += _floats(piece.logprobs[name])
        self.finish = piece.finish

    def as_json(self, decode: Callable[[list[int]], str], stops: StopStrings) -> dict[str, Any]:
        """Returns a completion of an output line.

        Args:
            decode: the tokenizer's.
            stops: the stop strings.

        Returns:
            text (before the stop string, if one ends it), tokens, finish_reason, stop_string (null
            if none ends it) and, one number per token (null if not finite), logprobs (at the
            sampling temperature over the full vocabulary), sampling_logprobs (of the truncated
            distribution drawn from) and policy_logprobs (at temperature 1).
        """
        text, stop = stops.cut(decode(self.tokens))
        scores = {LOGPROBS[name]: values for name, values in self.logprobs.items()}
        return {
            "text": text,
            "tokens": self.tokens,
            "finish_reason": self.finish,
            "stop_string": stop,
            **scores,
        }


class OutputWriter:
    """Writes completions as they grow and end; this one writes nothing.

    Args:
        decode: the tokenizer's, from token ids to text.
        out: the open file.
        options: of the command.
        prompts: number of prompts.
        model: field "model" of JSON lines.
    """

    def __init__(
        self,
        decode: Callable[[list[int]], str],
        out: TextIO,
        options: Options,
        prompts: int = 1,
        model: Mapping[str, Any] | None = None,
    ):
        self._decode, self._out, self._options = decode, out, options
        self._prompts, self._model = prompts, model
        self._stops = StopStrings(options.params.stop, decode)

    def piece(self, tokens: list[int]) -> None:
        """Takes new tokens of a completion."""

    def ended(self, request: Request, sample: int, completion: Completion) -> None:
        """Takes a completion that has ended."""

    def close(self) -> None:
        """Ends the output, but leaves the file open."""

    def _write(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()


class OneText(OutputWriter):
    """Writes the text of the only completion as it is drawn.

    Text that may begin a stop string is held back until it is certain.
    """

    _held, _stopped, _begun = "", False, False

    def piece(self, tokens: list[int]) -> None:
        """Writes the text of the tokens."""
        self._show(self._text.push(tokens))

    def ended(self, request: Request, sample: int, completion: Completion) -> None:
        """Writes the text that was held back."""
        self._show(self._text.finish(), last=True)

    def close(self) -> None:
        """Ends the line."""
        if self._begun:
            self._write("\n")

    @cached_property
    def _text(self) -> IncrementalText:
        return IncrementalText(self._decode)

    def _show(self, text: str, *, last: bool = False) -> None:
        self._begun = True
        if self._stopped:
            return
        text, stop = self._stops.cut(self._held + text)
        self._stopped = stop is not None
        held = 0 if last or self._stopped else self._stops.held(text)
        shown, self._held = text[: len(text) - held], text[len(text) - held :]
        self._write(printable(shown, self._out))


class Texts(OutputWriter):
    """Writes the text of several completions, each whole and with its number, as they end."""

    def ended(self, request: Request, sample: int, completion: Completion) -> None:
        """Writes a header and the text."""
        samples = self._options.num_samples
        which = [f"prompt {request.position + 1} of {self._prompts}"] * (self._prompts > 1)
        which += [f"sample {sample + 1} of {samples}"] * (samples > 1)
        count = len(completion.tokens)
        header = f"--- {', '.join(which)}: {count} token{'s' * (count != 1)}, {completion.finish}"
        console = make_console(file=self._out)
        console.print(header, style="bold", highlight=False, soft_wrap=True)
        text = self._stops.cut(self._decode(completion.tokens))[0]
        self._write(printable(text, self._out) + "\n")


class JsonLines(OutputWriter):
    """Writes a line of JSON per prompt, in the order of the prompts, as soon as it is complete: the
    input line's fields, then `prompts.WRITTEN_FIELDS`.

    With a reward added to each completion, `grre rollouts import jsonl` reads it.
    """

    def __init__(self, *writer: Any):
        super().__init__(*writer)
        self._next = 0
        self._ended: dict[int, tuple[Request, dict[int, dict[str, Any]]]] = {}

    def ended(self, request: Request, sample: int, completion: Completion) -> None:
        """Writes the lines that are now complete and next in order."""
        _, found = self._ended.setdefault(request.position, (request, {}))
        found[sample] = completion.as_json(self._decode, self._stops)
        while len(self._ended.get(self._next, ((), ()))[1]) == self._options.num_samples:
            request, found = self._ended.pop(self._next)
            line = request.fields | {
                "completions": [found[number] for number in sorted(found)],
                "prompt_tokens": request.tokens,
                "position": request.position,
                "model": self._model,
            }
            self._write(_json(line | self._options.settings(), self._out) + "\n")
            self._next += 1


@contextlib.contextmanager
def opened(path: str) -> Iterator[TextIO]:
    """Opens standard output, or a new file, which is removed again if nothing was written to it.

    Raises:
        UsageError: the file exists, or its folder does not.
    """
    if path in ("", STANDARD):
        yield sys.stdout
        return
    try:
        file = open(path, "x", encoding="utf-8")  # noqa: SIM115  (closed below)
    except FileExistsError as error:
        raise UsageError(f"--output {path} exists: choose another file, or remove it") from error
    except FileNotFoundError as error:
        raise UsageError(
            f"--output {path}: the folder {Path(path).parent} does not exist: make it first"
        ) from error
    try:
        with naming(path), file:
            yield file
    finally:
        if Path(path).stat().st_size == 0:
            Path(path).unlink()


def _json(line: dict[str, Any], out: TextIO) -> str:
    """JSON, with escapes if the file's encoding cannot write it (half of a surrogate pair)."""
    text = json.dumps(line, ensure_ascii=False)
    try:
        text.encode(out.encoding or "utf-8")
    except UnicodeEncodeError:
        return json.dumps(line)
    return text


def printable(text: str, out: TextIO) -> str:
    """Returns the text with the characters that the file's encoding lacks replaced and, on a
    terminal, control characters too.
    """
    if out.isatty():
        text = _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)
    encoding = out.encoding or "utf-8"
    return text.encode(encoding, "replace").decode(encoding)


def _floats(values: Any) -> list[float | None]:
    """Float32 numbers as the shortest decimals that read back equal; None if not finite."""
    return [
        float(str(value)) if np.isfinite(value) else None
        for value in np.asarray(values, np.float32)
    ]
