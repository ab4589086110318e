"""Prompts of `grre sample`, of the command line or of JSON lines, and the model that reads them."""

import dataclasses
from pathlib import Path
from typing import Any

import jax
from flax import nnx

from grre_jax import tasks
from grre_jax.errors import DataError, UsageError
from grre_jax.generation.options import Options
from grre_jax.json_files import json_lines, require
from grre_jax.models import Transformer
from grre_jax.sampling_params import SamplingParams
from grre_jax.tasks.datasets.questions import plain_messages
from grre_jax.training import policies
from grre_jax.training.config.run import Config

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


@dataclasses.dataclass(frozen=True)
class Request:
    """A prompt: its index, part of the address of its draws, its tokens, and its line's fields."""

    position: int
    tokens: list[int]
    fields: dict[str, Any]


def find(options: Options) -> Policy:
    """Loads the model that the options name, with its tokenizer.

    Raises:
        UsageError: an unknown dtype, or a system message for a tokenizer without a chat template.
        DataError: the model or its tokenizer is missing, damaged or not supported.
    """
    named = ("dtype", "compute_dtype")
    fields: dict[str, Any] = {name: x for name in named if (x := getattr(options, name))}
    if options.system is not None:
        fields["system_prompt"] = options.system
    fields["template_arguments"] = options.template_arguments
    parts, params, step = policies.load(options.model, fields)
    if options.system is not None and not parts.config.model.path:
        raise UsageError(f"--system: {options.model} has no chat template")
    model = nnx.merge(parts.graph, jax.device_put(params, jax.local_devices()[0]))
    return Policy(parts.config, parts.tokenizer, model, step)


def read(options: Options, policy: Policy) -> list[Request]:
    """Reads the prompts that the options give, in order.

    Raises:
        DataError: a file that cannot be read, or a prompt that cannot be used; named.
    """
    name = options.input
    lines = [(f"--prompt {n}", {"prompt": x}) for n, x in enumerate(options.prompt, 1)]
    try:
        if name:
            lines = list(json_lines(Path(name).read_bytes().split(b"\n"), name))
        requests = [
            Request(number, _tokens(fields, where, policy, options.params.max_new_tokens), fields)
            for number, (where, fields) in enumerate(lines)
        ]
    except OSError as error:
        raise DataError(f"{name}: expected a file of JSON lines, got {error.strerror}") from error
    if not requests:
        raise DataError(f'{name}: expected lines of {{"prompt": "..."}}, got none')
    return requests


def _tokens(fields: dict[str, Any], where: str, policy: Policy, limit: int) -> list[int]:
    if ("prompt" in fields) == ("messages" in fields):
        raise DataError(f"{where}: expected either field prompt or field messages")
    if written := sorted(fields.keys() & WRITTEN_FIELDS):
        raise DataError(f"{where}: grre sample writes {', '.join(written)}. Rename the fields")
    try:
        tokens = _encode(fields, where, policy.tokenizer)
    except UsageError as error:
        raise DataError(f"{where}: {error}") from error
    shape = policy.model.config
    size = max(len(tokens), 1) + limit
    if size > (most := shape.max_positions):
        raise DataError(f"{where}: expected at most {most} tokens with the new ones, got {size}")
    start = shape.start_id
    return tokens or [policy.tokenizer.eos_ids[0] if start is None else start]


def _encode(fields: dict[str, Any], where: str, tokenizer: tasks.Tokenizer) -> list[int]:
    if "prompt" in fields:
        require(fields["prompt"], str, where, "prompt")
        return tokenizer.encode_prompt(fields["prompt"])
    if not getattr(tokenizer, "has_template", False):
        raise DataError(f"{where}: field messages needs a chat template. Give the text as prompt")
    return tokenizer.encode_messages([*plain_messages(fields["messages"], where, "messages")])
