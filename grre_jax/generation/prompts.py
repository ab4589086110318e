"""Prompts of `grre sample`, of the command line or of JSON lines, and the model that reads them.

Both are checked before anything is computed; the weights are loaded last.
"""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Any

from grre_jax import models, tasks
from grre_jax.errors import DataError, UsageError
from grre_jax.generation.options import STANDARD, Options
from grre_jax.json_files import TEXT, Domain, json_lines, list_of, message_text, require
from grre_jax.models import ModelConfig, Transformer
from grre_jax.sampling_params import SamplingParams
from grre_jax.storage import store_path
from grre_jax.storage.store_path import StorePath
from grre_jax.training import build, policies
from grre_jax.training.config.run import Config

# Fields of an output line that its input line may not have.
WRITTEN_FIELDS = frozenset(
    ("completions", "prompt_tokens", "position", "model", "seed", "cache_dtype")
    + SamplingParams.names()
)
_MESSAGE = Domain(
    "an object with role and content",
    lambda x: isinstance(x, dict) and TEXT.holds(x.get("role")) and "content" in x,
)
_MESSAGES = list_of(_MESSAGE, f"a list of one or more, each {_MESSAGE.text}")


@dataclasses.dataclass(frozen=True)
class Policy:
    """A model that is not loaded yet; `run` and `shape` are None without a run and a folder."""

    path: Path | StorePath
    run: Config | None
    source: models.ModelSource
    tokenizer: tasks.Tokenizer
    shape: ModelConfig | None

    def load(self) -> tuple[Transformer, int | None]:
        """Loads the model; returns it with its step, which is None without a run.

        Raises:
            DataError: weights or checkpoints that are missing or damaged.
        """
        if self.run is not None:
            return policies.policy(self.path, dataclasses.replace(self.run, model=self.source))
        dtype, compute = build.dtypes(self.source)
        model = models.load(self.path, dtype=dtype, compute_dtype=compute)
        model.limit_ids(self.tokenizer.vocab_size)
        return model, None


@dataclasses.dataclass(frozen=True)
class Request:
    """A prompt: its index, part of the address of its draws, its tokens, and its line's fields."""

    position: int
    tokens: list[int]
    fields: dict[str, Any]


def find(options: Options) -> Policy:
    """Returns the model that the options name, with its tokenizer.

    Raises:
        UsageError: an unknown dtype, or a system message for a tokenizer without a chat template.
        DataError: the model is missing, or its tokenizer missing, damaged or not supported.
    """
    path = store_path.of(options.model)
    run = policies.load_config(path) if policies.is_run(path) else None
    source = run.model if run else models.ModelSource(path=str(path))
    template = {
        "system_prompt": source.system_prompt if options.system is None else options.system,
        "template_arguments": source.template_arguments | options.template_arguments,
    }
    if options.raw:
        template = {"system_prompt": None, "template_arguments": {}, "template_date": ""}
    dtype = options.dtype or source.dtype
    compute_dtype = options.compute_dtype or source.compute_dtype
    source = dataclasses.replace(source, dtype=dtype, compute_dtype=compute_dtype, **template)
    build.dtypes(source)
    if not source.path:
        if options.system is not None or options.template_arguments:
            raise UsageError(f"--system, --template-arguments: {path} has no chat template")
        tokenizer = build.build_tokenizer(run, run.task.build(run.seed))
        return Policy(path, run, source, tokenizer, None)
    tokenizer = tasks.load_tokenizer(
        source.path,
        source.system_prompt,
        template_arguments=source.template_arguments,
        date=source.template_date,
    )
    return Policy(path, run, source, tokenizer, models.load_config(source.path))


def read(options: Options, policy: Policy) -> list[Request]:
    """Reads the prompts that the options give, in order.

    Raises:
        UsageError: a prompt of the command line that cannot be used.
        DataError: a file that cannot be read, or a line of it that cannot be used; named.
    """
    name = "standard input" if options.input == STANDARD else options.input
    try:
        if not name:
            lines = [(f"--prompt {n}", {"prompt": x}) for n, x in enumerate(options.prompts, 1)]
        elif options.input == STANDARD:
            lines = list(json_lines(sys.stdin.buffer, name))
        else:
            lines = list(json_lines(Path(name).read_bytes().split(b"\n"), name))
        requests = [
            Request(number, _tokens(fields, where, options, policy), fields)
            for number, (where, fields) in enumerate(lines)
        ]
    except OSError as error:
        raise DataError(f"{name}: expected a file of JSON lines, got {error.strerror}") from error
    except DataError as error:
        raise error if name else UsageError(str(error)) from error
    if not requests:
        raise DataError(f'{name}: expected lines of {{"prompt": "..."}}, got none')
    return requests


def _tokens(fields: dict[str, Any], where: str, options: Options, policy: Policy) -> list[int]:
    if ("prompt" in fields) == ("messages" in fields):
        raise DataError(f"{where}: expected either field prompt or field messages")
    if written := sorted(fields.keys() & WRITTEN_FIELDS):
        raise DataError(f"{where}: grre sample writes {', '.join(written)}. Rename the fields")
    try:
        tokens = _encode(fields, where, options, policy.tokenizer)
    except UsageError as error:
        raise DataError(f"{where}: {error}") from error
    shape = policy.shape
    start = policy.tokenizer.eos_ids[0] if shape is None else shape.start_id
    if not tokens and start is None:
        raise DataError(f"{where}: expected some text, the model has no beginning-of-text token")
    size = max(len(tokens), 1) + options.params.max_new_tokens
    most = (shape or ModelConfig).max_positions
    if size > most:
        raise DataError(f"{where}: expected at most {most} tokens with the new ones, got {size}")
    return tokens or [start]


def _encode(
    fields: dict[str, Any], where: str, options: Options, tokenizer: tasks.Tokenizer
) -> list[int]:
    if "prompt" in fields:
        require(fields["prompt"], TEXT, where, "prompt")
        # A tokenizer without chat templates has one encoding only.
        raw = getattr(tokenizer, "encode_text", tokenizer.encode_prompt)
        return (raw if options.raw else tokenizer.encode_prompt)(fields["prompt"])
    if options.raw or not getattr(tokenizer, "has_template", False):
        raise DataError(f"{where}: field messages needs a chat template. Give the text as prompt")
    messages = []
    require(fields["messages"] or None, _MESSAGES, where, "messages")
    for number, message in enumerate(fields["messages"]):
        content = message_text(message["content"], f"{where}: message {number}")
        require(content, TEXT, f"{where}: message {number}", "content")
        messages.append(message | {"content": content})
    return tokenizer.encode_messages(messages)
