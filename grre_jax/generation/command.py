"""`grre sample` from its options to its output."""

import contextlib
import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

import jax
import numpy as np

from grre_jax import sampling
from grre_jax.console import progress_bar
from grre_jax.errors import UsageError, naming
from grre_jax.generation import prompts
from grre_jax.generation.options import STANDARD, Options
from grre_jax.random_streams import Purpose, run_key
from grre_jax.sampling.stop_strings import StopStrings
from grre_jax.tasks import Tokenizer

# Completions per call of the sampler. With this many its slots are busy until towards the end.
COMPLETIONS_PER_CALL = 512
# All control characters but tab and newline: a model's text must not move the cursor or rename the
# window.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
LOGPROBS = {"behavior": "logprobs", "sampling": "sampling_logprobs", "policy": "policy_logprobs"}


def run(options: Options) -> int:
    """Loads the model, checks the prompts, draws and writes; returns the exit status.

    Raises:
        UsageError: an option or a prompt that cannot be used.
        DataError: a model, a run or a file of prompts that is missing or damaged.
    """
    to_file = options.output not in ("", STANDARD)
    path = Path(options.output)
    if to_file and (path.exists() or not path.parent.is_dir()):
        raise UsageError(f"--output {path}: expected a new file in an existing folder")
    policy = prompts.find(options)
    requests = prompts.read(options, policy)
    about = options.params.to_json() | {"seed": options.seed, "cache_dtype": options.cache_dtype}
    about["model"] = {"path": options.model, "step": policy.step}
    with naming(options.output), contextlib.ExitStack() as stack:
        out = stack.enter_context(open(path, "x", encoding="utf-8")) if to_file else sys.stdout
        for line in lines(sampling.prepared(policy.model), requests, options, policy.tokenizer):
            if options.output:
                out.write(json.dumps(line | about) + "\n")
            else:
                show(line, len(requests), out)
            out.flush()
    if to_file:
        print(f"wrote {len(requests)} prompts with their completions to {options.output}")
    return 0


def lines(
    weights: sampling.Weights,
    requests: Sequence[prompts.Request],
    options: Options,
    tokenizer: Tokenizer,
) -> Iterator[dict[str, Any]]:
    """Yields the line of each prompt, in order, as soon as its call has ended."""
    decode = tokenizer.decode
    stops = StopStrings(options.params.stop, decode)
    size = max(1, COMPLETIONS_PER_CALL // options.num_samples)
    with progress_bar(len(requests), "prompts") as ended:
        for start in range(0, len(requests), size):
            part = requests[start : start + size]
            drawn = sampling.sample(
                weights,
                [request.tokens for request in part],
                options.params,
                key=run_key(options.seed, Purpose.SAMPLE),
                group_size=options.num_samples,
                eos_ids=tokenizer.eos_ids,
                positions=np.array([request.position for request in part]),
                max_concurrent=options.max_concurrent,
                cache_dtype=options.cache_dtype,
                decode=decode,
            )
            samples = jax.device_get(drawn)
            for number, request in enumerate(part):
                yield request.fields | {
                    "completions": [
                        completion(samples, (number, sample), decode, stops)
                        for sample in range(options.num_samples)
                    ],
                    "prompt_tokens": request.tokens,
                    "position": request.position,
                }
            ended(len(part))


def completion(
    samples: sampling.Samples,
    index: tuple[int, int],
    decode: Callable[[list[int]], str],
    stops: StopStrings,
) -> dict[str, Any]:
    """Returns a completion of an output line; a log-prob that is not finite is null."""
    length = int(samples.lengths[index])
    tokens = samples.tokens[index][:length].tolist()
    text, stop = stops.cut(decode(tokens))
    reason = "stop" if samples.finish_reasons[index] == sampling.FINISH_STOP else "length"
    line = {"text": text, "tokens": tokens, "finish_reason": reason, "stop_string": stop}
    for name, field in LOGPROBS.items():
        values = getattr(samples, f"{name}_logprobs")[index][:length].astype(np.float32)
        # The shortest decimals that read back equal.
        line[field] = [float(str(x)) if np.isfinite(x) else None for x in values]
    return line


def show(line: dict[str, Any], prompts: int, out: TextIO) -> None:
    """Writes the texts of a prompt's completions, each below its number if there are several."""
    for number, found in enumerate(line["completions"], 1):
        if prompts > 1 or len(line["completions"]) > 1:
            size = f"{len(found['tokens'])} tokens, {found['finish_reason']}"
            out.write(f"--- prompt {line['position'] + 1} of {prompts}, sample {number}: {size}\n")
        text = _CONTROL.sub("\ufffd", found["text"]) if out.isatty() else found["text"]
        out.write(text + "\n")
