"""`grre sample` on the command line, and the flags of the sampling parameters."""

from __future__ import annotations

import argparse
import dataclasses
from typing import Any

from grre_jax.cli.parsing import add_command, add_options
from grre_jax.errors import UsageError
from grre_jax.generation.options import Options
from grre_jax.json_files import json_object
from grre_jax.sampling_params import CACHE_DTYPES, SamplingParams
from grre_jax.training.config.fields import fields


def add_params(parser: argparse._ActionsContainer, *, defaults: bool) -> None:
    """Adds a flag for every sampling parameter, whose value is None if not given.

    Args:
        parser: of a command.
        defaults: the defaults are those of `SamplingParams`, and the help names them.
    """
    for field in fields(SamplingParams()):
        options: dict[str, Any] = {"help": field.meaning.rstrip(".").replace("%", "%%")}
        if field.type.startswith("tuple"):
            options |= {"action": "append", "metavar": "TEXT"}
            options["help"] += "; may be given several times"
        else:
            kind = {"int": int, "float": float}[field.type]
            options |= {"type": kind, "metavar": "N" if kind is int else "X"}
            options["help"] += f" ({field.domain}); {field.default:g} if not given" * defaults
        parser.add_argument("--" + field.name.replace("_", "-"), **options)


def given_params(known: argparse.Namespace) -> dict[str, Any]:
    """Returns the sampling parameters that the command line gives, by name."""
    found = {name: getattr(known, name) for name in SamplingParams.names()}
    return {name: value for name, value in found.items() if value is not None}


def add_parser(commands: argparse._SubParsersAction) -> None:
    """Adds `sample` to the command line's commands."""
    parser = add_command(
        commands,
        "sample",
        _sample,
        "complete prompts with a model or with a run's last policy",
        "model MODEL: a Hugging Face folder, or a run folder (its last checkpoint)",
        description="Completes prompts, through the model's chat template if it has one. The texts"
        " are printed, or written as JSON lines with --output.",
        computes=True,
    )
    for title, options in _OPTIONS.items():
        group = parser.add_argument_group(title)
        add_options(group, options)
        if title == "completions":
            add_params(group, defaults=True)


_OPTIONS = {
    "prompts": """
        --prompt TEXT...: one user turn
        --input FILE []: JSON lines with "prompt" or "messages" each
        --system TEXT: system message; the chat template's if not given
        --template-arguments JSON [{}]: variables of the chat template, added to a run's:
            {"enable_thinking": false}
    """,
    "completions": """
        --num-samples K [1]: completions per prompt
        --seed N [0]: of the draws
    """,
    "computation": f"""
        --cache-dtype {"|".join(CACHE_DTYPES)}: of keys and values; the activations' if not given
        --max-concurrent N [32]: completions decoded side by side
        --dtype DTYPE []: of the parameters; float32, or the run's, if not given
        --compute-dtype DTYPE []: of the activations; the parameters' if not given
    """,
    "output": """
        --output FILE []: write JSON lines to a new file; - for standard output
    """,
}


def from_arguments(known: argparse.Namespace) -> Options:
    """Returns the options that the command line gives.

    Raises:
        UsageError: an option outside its domain, or two that exclude each other.
    """
    try:
        params = SamplingParams(**given_params(known))
    except ValueError as error:  # begins with the field's name
        name, _, rest = str(error).partition(":")
        raise UsageError(f"--{name.replace('_', '-')}:{rest}") from error
    named = [field.name for field in dataclasses.fields(Options) if hasattr(known, field.name)]
    given = {name: getattr(known, name) for name in named} | {"prompts": tuple(known.prompt)}
    given["template_arguments"] = json_object(known.template_arguments, "--template-arguments")
    return Options(**given | {"params": params})


def _sample(known: argparse.Namespace, _: list[str]) -> int:
    options = from_arguments(known)
    from grre_jax.generation import command

    return command.run(options)
