"""`grre sample` from its options to its output: completions of given prompts by any model, on the
terminal or as JSON lines.
"""

import contextlib
import dataclasses
import functools
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

import jax
import numpy as np
from flax import nnx

from grre_jax import sampling, tasks
from grre_jax.console import progress_bar
from grre_jax.errors import DataError, UsageError
from grre_jax.json_files import json_lines, require
from grre_jax.models import Transformer
from grre_jax.random_streams import Purpose, run_key
from grre_jax.sampling.stop_strings import StopStrings
from grre_jax.sampling_params import SampleOptions, SamplingParams
from grre_jax.tasks.datasets.questions import plain_messages
from grre_jax.training import policies
from grre_jax.training.config.run import Config

STANDARD = "-"  # a file's name that means standard output
# Completions per call of the sampler. With this many its slots are busy until towards the end.
COMPLETIONS_PER_CALL = 512
LOGPROBS = {"behavior": "logprobs", "sampling": "sampling_logprobs", "policy": "policy_logprobs"}
# Fields of an output line that its input line may not have.
WRITTEN_FIELDS = {*SamplingParams.names(), "completions", "prompt_tokens", "position"}
WRITTEN_FIELDS |= {"model", "seed", "cache_dtype"}


@dataclasses.dataclass(frozen=True)
class Policy:
    """A model with its tokenizer; `run` is its configuration, `step` None without a run."""

    run: Config
    tokenizer: tasks.Tokenizer
    model: Transformer
    step: int | None

    @functools.cached_property
    def weights(self) -> sampling.Weights:
        """The model as the sampler takes it."""
        return sampling.prepared(self.model)


def run(options: SampleOptions) -> int:
    """Loads the model, checks the prompts, draws and writes; returns the exit status.

    Raises:
        UsageError: an option or a prompt that cannot be used.
        DataError: a model, a run or a file of prompts that is missing or damaged.
    """
    to_file = options.output not in ("", STANDARD)
    path = Path(options.output)
    if to_file and (path.exists() or not path.parent.is_dir()):
        raise UsageError(f"--output {path}: expected a new file in an existing folder")
    policy = find(options)
    requests = read(options, policy)
    about = options.params.to_json() | {"seed": options.seed, "cache_dtype": options.cache_dtype}
    about["model"] = {"path": options.model, "step": policy.step}
    with contextlib.ExitStack() as stack:
        out = stack.enter_context(open(path, "x", encoding="utf-8")) if to_file else sys.stdout
        for line in lines(policy, requests, options):
            if options.output:
                out.write(json.dumps(line | about) + "\n")
            else:
                show(line, len(requests), out)
            out.flush()
    if to_file:
        print(f"wrote {len(requests)} prompts with their completions to {options.output}")
    return 0


def find(options: SampleOptions) -> Policy:
    """Loads the model that the options name, with its tokenizer.

    Raises:
        UsageError: an unknown dtype, or a system message for a tokenizer without a chat template.
        DataError: the model or its tokenizer is missing, damaged or not supported.
    """
    overrides = {
        "dtype": options.dtype,
        "compute_dtype": options.compute_dtype,
        "system_prompt": options.system,
        "template_arguments": options.template_arguments,
    }
    fields = {name: value for name, value in overrides.items() if value is not None}
    parts, params, step = policies.load(options.model, fields)
    if options.system is not None and not parts.config.model.path:
        raise UsageError(f"--system: {options.model} has no chat template")
    model = nnx.merge(parts.graph, jax.device_put(params, jax.local_devices()[0]))
    return Policy(parts.config, parts.tokenizer, model, step)


def read(options: SampleOptions, policy: Policy) -> list[dict[str, Any]]:
    """Reads the prompts that the options give, in order: the fields of their lines with their
    tokens, `prompt_tokens`, and their index, `position`, a part of the address of their draws.

    Raises:
        DataError: a file that cannot be read, or a prompt that cannot be used; named.
    """
    name = options.input
    lines = [(f"--prompt {n}", {"prompt": x}) for n, x in enumerate(options.prompt, 1)]
    try:
        if name:
            lines = list(json_lines(Path(name).read_bytes().split(b"\n"), name))
    except OSError as error:
        raise DataError(f"{name}: expected a file of JSON lines, got {error.strerror}") from error
    if not lines:
        raise DataError(f'{name}: expected lines of {{"prompt": "..."}}, got none')
    requests = []
    for number, (where, fields) in enumerate(lines):
        tokens = _tokens(fields, where, policy, options.params.max_new_tokens)
        requests.append(fields | {"prompt_tokens": tokens, "position": number})
    return requests


def _tokens(fields: dict[str, Any], where: str, policy: Policy, limit: int) -> list[int]:
    if ("prompt" in fields) == ("messages" in fields):
        raise DataError(f"{where}: expected either field prompt or field messages")
    if written := sorted(fields.keys() & WRITTEN_FIELDS):
        raise DataError(f"{where}: grre sample writes {', '.join(written)}. Rename the fields")
    tokenizer = policy.tokenizer
    try:
        if "prompt" in fields:
            tokens = tokenizer.encode_prompt(require(fields["prompt"], str, where, "prompt"))
        elif getattr(tokenizer, "has_template", False):
            messages = plain_messages(fields["messages"], where, "messages")
            tokens = tokenizer.encode_messages([*messages])
        else:
            raise UsageError("field messages needs a chat template. Give the text as prompt")
    except UsageError as error:
        raise DataError(f"{where}: {error}") from error
    shape = policy.model.config
    size = max(len(tokens), 1) + limit
    if size > (most := shape.max_positions):
        raise DataError(f"{where}: expected at most {most} tokens with the new ones, got {size}")
    start = shape.start_id
    return tokens or [tokenizer.eos_ids[0] if start is None else start]


def lines(
    policy: Policy, requests: Sequence[dict[str, Any]], options: SampleOptions
) -> Iterator[dict[str, Any]]:
    """Yields the line of each prompt, in order, as soon as its call has ended."""
    decode = policy.tokenizer.decode
    stops = StopStrings(options.params.stop, decode)
    size = max(1, COMPLETIONS_PER_CALL // options.num_samples)
    with progress_bar(len(requests), "prompts") as ended:
        for start in range(0, len(requests), size):
            part = requests[start : start + size]
            drawn = sampling.sample(
                policy.weights,
                [request["prompt_tokens"] for request in part],
                options.params,
                key=run_key(options.seed, Purpose.SAMPLE),
                group_size=options.num_samples,
                eos_ids=policy.tokenizer.eos_ids,
                positions=np.array([request["position"] for request in part]),
                max_concurrent=options.max_concurrent,
                cache_dtype=options.cache_dtype,
                decode=decode,
            )
            samples = jax.device_get(drawn)
            for number, request in enumerate(part):
                completions = [
                    completion(samples, (number, sample), decode, stops)
                    for sample in range(options.num_samples)
                ]
                yield request | {"completions": completions}
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
    for number, row in enumerate(line["completions"], 1):
        if prompts > 1 or len(line["completions"]) > 1:
            size = f"{len(row['tokens'])} tokens, {row['finish_reason']}"
            out.write(f"--- prompt {line['position'] + 1} of {prompts}, sample {number}: {size}\n")
        out.write(row["text"] + "\n")
