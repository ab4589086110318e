"""`grre sample` from its options to its output."""

from __future__ import annotations

import collections
from collections.abc import Callable, Sequence
from typing import Any

from grre_jax import sampling
from grre_jax.console import progress_bar
from grre_jax.generation import outputs, prompts
from grre_jax.generation.options import STANDARD, Options
from grre_jax.generation.prompts import Request
from grre_jax.random_streams import Purpose, run_key
from grre_jax.tasks import Tokenizer

# Completions per call of the sampler, whose prompts are held together. With this many the slots are
# busy; some are idle only towards the end of a call.
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
    tokenizer, total = policy.tokenizer, len(requests) * options.num_samples
    kind = outputs.OneText if total == 1 else outputs.Texts
    with outputs.opened(options.output) as out:
        model, step = policy.load()
        described = {"path": options.model, "step": step}
        writer = (outputs.JsonLines if options.output else kind)(
            tokenizer.decode, out, options, len(requests), described
        )
        weights, tokens = sampling.prepared(model), 0
        try:
            with progress_bar(total, "completions", bool(options.output)) as ended:
                size = max(1, COMPLETIONS_PER_CALL // options.num_samples)
                for start in range(0, len(requests), size):
                    some = requests[start : start + size]
                    tokens += _draw(weights, some, options, tokenizer, writer, ended)
        finally:
            writer.close()
    if options.output not in ("", STANDARD):
        print(
            f"wrote {len(requests)} prompts with {options.num_samples} completions each,"
            f" {tokens:,} tokens, to {options.output}"
        )
    return 0


def _draw(
    weights: Any,
    requests: Sequence[Request],
    options: Options,
    tokenizer: Tokenizer,
    writer: outputs.OutputWriter,
    ended: Callable[[], None],
) -> int:
    """Draws the completions of some prompts and writes them; returns the number of their tokens."""
    drawn, running = 0, collections.defaultdict(outputs.Completion)
    pieces = sampling.stream(
        weights,
        [request.tokens for request in requests],
        options.params,
        key=run_key(options.seed, Purpose.SAMPLE),
        group_size=options.num_samples,
        eos_ids=tokenizer.eos_ids,
        positions=[request.position for request in requests],
        max_concurrent=options.max_concurrent,
        cache_dtype=options.cache_dtype,
        steps=SHOWN_STEPS if isinstance(writer, outputs.OneText) else STEPS,
        decode=tokenizer.decode,
    )
    for some in pieces:
        for piece in some:
            at, request = (piece.prompt, piece.sample), requests[piece.prompt]
            completion = running[at]
            before = len(completion.tokens)
            completion.add(piece)
            writer.piece(completion.tokens[before:])
            if piece.finish:
                drawn += len(completion.tokens)
                writer.ended(request, piece.sample, running.pop(at))
                ended()
    return drawn
