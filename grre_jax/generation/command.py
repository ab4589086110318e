"""`grre sample` from its options to its output."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, TextIO

from grre_jax import sampling
from grre_jax.console import make_console, progress_bar
from grre_jax.errors import naming
from grre_jax.generation import outputs, prompts
from grre_jax.generation.options import STANDARD, Options
from grre_jax.random_streams import Purpose, run_key
from grre_jax.sampling.text.stop_strings import StopStrings
from grre_jax.tasks import Tokenizer

# Completions per call of the sampler, whose prompts are held together and whose completions are
# written together. With this many the slots are busy; some are idle only towards the end of a call.
COMPLETIONS_PER_CALL = 512
STEPS, SHOWN_STEPS = 16, 4  # tokens between two pieces; if text is shown as it is drawn


def run(options: Options) -> int:
    """Draws the completions and shows or writes them; returns the exit status.

    Validates options, prompts and output paths before it loads weights.

    Raises:
        UsageError: an option or a prompt that cannot be used.
        DataError: a model, a run or a file of prompts that is missing or damaged.
    """
    policy = prompts.find(options)
    requests = prompts.read(options, policy)
    outputs.check(options.output)
    model, step = policy.load()
    draws = _Draws(sampling.prepared(model), options, policy.tokenizer)
    about = options.params.to_json() | {"seed": options.seed, "cache_dtype": options.cache_dtype}
    about["model"] = {"path": options.model, "step": step}
    with naming(options.output), outputs.opened(options.output) as out:
        if len(requests) == options.num_samples == 1 and not options.output:
            text = outputs.OneText(draws.decode, draws.stops, out)
            for piece in draws.pieces(requests, SHOWN_STEPS):
                text.piece(piece.tokens.tolist(), last=bool(piece.finish))
            out.write("\n")
            return 0
        for line in draws.lines(requests):
            if options.output:
                out.write(json.dumps(line | about) + "\n")
            else:
                _show(line, len(requests), out)
            out.flush()
    if options.output not in ("", STANDARD):
        print(f"wrote {len(requests)} prompts with their completions to {options.output}")
    return 0


class _Draws:
    """Draws the completions of a command's prompts."""

    def __init__(self, weights: sampling.Weights, options: Options, tokenizer: Tokenizer):
        self._weights = weights
        self._options = options
        self._eos_ids = tokenizer.eos_ids
        self.decode = tokenizer.decode
        self.stops = StopStrings(options.params.stop, tokenizer.decode)

    def pieces(self, requests: Sequence[prompts.Request], steps: int) -> Iterator[sampling.Piece]:
        """Yields the pieces of the completions of some prompts, as they are drawn."""
        for pieces in sampling.stream(
            self._weights,
            [request.tokens for request in requests],
            self._options.params,
            key=run_key(self._options.seed, Purpose.SAMPLE),
            group_size=self._options.num_samples,
            eos_ids=self._eos_ids,
            positions=[request.position for request in requests],
            max_concurrent=self._options.max_concurrent,
            cache_dtype=self._options.cache_dtype,
            steps=steps,
            decode=self.decode,
        ):
            yield from pieces

    def lines(self, requests: Sequence[prompts.Request]) -> Iterator[dict[str, Any]]:
        """Yields the line of each prompt, in order, as soon as its call has ended."""
        samples = self._options.num_samples
        size = max(1, COMPLETIONS_PER_CALL // samples)
        with progress_bar(len(requests) * samples, "completions") as ended:
            for start in range(0, len(requests), size):
                part = requests[start : start + size]
                found = [[[] for _ in range(samples)] for _ in part]
                for piece in self.pieces(part, STEPS):
                    found[piece.prompt][piece.sample].append(piece)
                    if piece.finish:
                        ended()
                for request, drawn in zip(part, found, strict=True):
                    yield request.fields | {
                        "completions": [self._completion(pieces) for pieces in drawn],
                        "prompt_tokens": request.tokens,
                        "position": request.position,
                    }

    def _completion(self, pieces: list[sampling.Piece]) -> dict[str, Any]:
        return outputs.completion(pieces, self.decode, self.stops)


def _show(line: dict[str, Any], prompts: int, out: TextIO) -> None:
    """Writes the texts of a prompt's completions, each below its number."""
    console = make_console(file=out)
    for number, completion in enumerate(line["completions"], 1):
        header = (
            f"--- prompt {line['position'] + 1} of {prompts}, sample {number}:"
            f" {len(completion['tokens'])} tokens, {completion['finish_reason']}"
        )
        console.print(header, style="bold", highlight=False, soft_wrap=True)
        out.write(outputs.printable(completion["text"], out) + "\n")
