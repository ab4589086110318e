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
from grre_jax.models.config import ModelConfig
from grre_jax.models.transformer import Transformer
from grre_jax.sampling_params import SamplingParams
from grre_jax.storage import store_path
from grre_jax.storage.store_path import StorePath
from grre_jax.tasks import load_tokenizer
from grre_jax.training import build, policies
from grre_jax.training.config.run import Config

# Fields of an output line that its input line may not have.
WRITTEN_FIELDS = frozenset(
    ("completions", "prompt_tokens", "position", "model", "seed", "cache_dtype")
    + SamplingParams.names()
)
_NEEDED = ("role", "content")
_MESSAGE = Domain(
    "an object with the strings role and content",
    lambda value: isinstance(value, dict) and all(map(TEXT.holds, map(value.get, _NEEDED))),
)
_MESSAGES = list_of(_MESSAGE, f"a list of one or more, each {_MESSAGE.text}")


@dataclasses.dataclass(frozen=True)
class Policy:
    """A model that is not loaded yet.

    Attributes:
        path: a Hugging Face folder or a run's folder.
        run: the run's configuration; None for a model without a run.
        source: dtypes, with those of `Options`.
        tokenizer: the model's.
        max_positions: longest sequence that the model was made for, in tokens.
        vocab_size: tokens of the model's vocabulary.
        start_id: first token of an empty prompt; None if the model has none.
    """

    path: Path | StorePath
    run: Config | None
    source: models.ModelSource
    tokenizer: tasks.Tokenizer
    max_positions: int
    vocab_size: int
    start_id: int | None

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


def find(options: Options) -> Policy:
    """Returns the model that the options name, with its tokenizer.

    Raises:
        UsageError: an unknown dtype, or a system message for a tokenizer without a chat template.
        DataError: the model is missing, or its tokenizer missing, damaged or not supported.
    """
    path = store_path.of(options.model)
    run = policies.load_config(path) if policies.is_run(path) else None
    source = run.model if run else models.ModelSource(path=str(path))
    system = source.system_prompt if options.system is None else options.system
    arguments = source.template_arguments | options.template_arguments
    date = source.template_date
    if options.raw:
        system, arguments, date = None, {}, ""
    source = dataclasses.replace(
        source,
        dtype=options.dtype or source.dtype,
        compute_dtype=options.compute_dtype or source.compute_dtype,
        system_prompt=system,
        template_arguments=arguments,
        template_date=date,
    )
    build.dtypes(source)
    if options.tokenizer or source.path:
        tokenizer = load_tokenizer(
            options.tokenizer or source.path, system, template_arguments=arguments, date=date
        )
    elif system is not None or arguments:
        flag = "--system" if system is not None else "--template-arguments"
        raise UsageError(
            f"{flag} is given, but the model of run {path} has a character tokenizer, which has"
            " no chat template: leave it out"
        )
    else:
        tokenizer = build.build_tokenizer(run, run.task.build(run.seed))
    limits = ModelConfig.max_positions, tokenizer.vocab_size, tokenizer.eos_ids[0]
    if source.path:
        shape = models.load_config(source.path)
        limits = shape.max_positions, shape.vocab_size, shape.start_id
    return Policy(path, run, source, tokenizer, *limits)


@dataclasses.dataclass(frozen=True)
class Request:
    """One prompt.

    Attributes:
        position: index among the prompts, part of the address of its draws.
        tokens: token ids that the model reads.
        fields: all fields of its line.
    """

    position: int
    tokens: list[int]
    fields: dict[str, Any]


def read(options: Options, policy: Policy) -> list[Request]:
    """Reads the prompts that the options give, in order.

    Raises:
        UsageError: a prompt of the command line that cannot be used.
        DataError: a file that cannot be read, or a line of it that cannot be used; named.
    """
    if options.input:
        standard = options.input == STANDARD
        name = "standard input" if standard else options.input
        try:
            data = sys.stdin.buffer.read() if standard else Path(options.input).read_bytes()
        except OSError as error:
            raise DataError(
                f"{name} cannot be read ({error.strerror}): give a file of JSON lines"
            ) from error
        requests = [
            _request(number, fields, where, options, policy)
            for number, (where, fields) in enumerate(json_lines(data.split(b"\n"), name))
        ]
        if not requests:
            raise DataError(
                f'{name} has no prompts: write one JSON object per line, {{"prompt": "..."}}'
            )
        return requests
    try:
        return [
            _request(number, {"prompt": text}, f"--prompt {number + 1}", options, policy)
            for number, text in enumerate(options.prompts)
        ]
    except DataError as error:  # of the command line, not of a file
        raise UsageError(str(error)) from error


def _request(
    position: int, fields: dict[str, Any], where: str, options: Options, policy: Policy
) -> Request:
    given = [name for name in ("prompt", "messages") if name in fields]
    if len(given) != 1:
        raise DataError(
            f"{where}: needs either field prompt or field messages, and has"
            f" {' and '.join(given) or ', '.join(fields) or 'no field'}"
        )
    if taken := sorted(fields.keys() & WRITTEN_FIELDS):
        raise DataError(
            f"{where}: field {', '.join(taken)} is written by grre sample: rename it, or leave it"
            " out"
        )
    try:
        tokens = _encode(given[0], fields[given[0]], where, options, policy)
    except UsageError as error:
        raise DataError(f"{where}: {error}") from error
    if not tokens and policy.start_id is None:
        raise DataError(
            f"{where}: the prompt is empty, and the model has no beginning-of-text token: give it"
            " some text"
        )
    tokens = tokens or [policy.start_id]
    if max(tokens) >= policy.vocab_size:
        raise DataError(
            f"{where}: the tokenizer returns token {max(tokens)}, and the model's are 0 to"
            f" {policy.vocab_size - 1}: name the model's own tokenizer"
        )
    if len(tokens) + (new := options.params.max_new_tokens) > policy.max_positions:
        raise DataError(
            f"{where}: {len(tokens)} tokens and --max-new-tokens {new} are more"
            f" than the {policy.max_positions} that the model was made for: shorten the prompt or"
            " lower --max-new-tokens"
        )
    return Request(position, tokens, fields)


def _encode(kind: str, given: Any, where: str, options: Options, policy: Policy) -> list[int]:
    tokenizer = policy.tokenizer
    if kind == "prompt":
        require(given, TEXT, where, kind)
        # A tokenizer without chat templates has one encoding only.
        raw = getattr(tokenizer, "encode_text", tokenizer.encode_prompt)
        return raw(given) if options.raw else tokenizer.encode_prompt(given)
    if isinstance(given, list):
        given = [
            message | {"content": message_text(message["content"], f"{where}: message {number}")}
            if isinstance(message, dict) and "content" in message
            else message
            for number, message in enumerate(given)
        ]
    require(given or None, _MESSAGES, where, kind)
    if options.raw or not getattr(tokenizer, "has_template", False):
        reason = "--raw leaves it out" if options.raw else "the model has none"
        raise DataError(
            f"{where}: field messages needs a chat template, and {reason}: give the text as prompt"
        )
    return tokenizer.encode_messages(given)
