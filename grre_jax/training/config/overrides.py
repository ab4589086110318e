"""Fields of a configuration, overridden by dotted names on the command line."""

from __future__ import annotations

import ast
import dataclasses
import difflib
from collections.abc import Mapping, Sequence
from typing import Any

from grre_jax.errors import UsageError
from grre_jax.json_files import json_object
from grre_jax.training.config.fields import fields
from grre_jax.training.config.run import Config

# Names of fields in TRL, verl and others, by their last part.
FOREIGN_NAMES = {
    word: field
    for field, words in {
        "optimizer.learning_rate": "lr learning_rate_init",
        "optimizer.warmup_steps": "lr_warmup_steps num_warmup_steps",
        "optimizer.decay": "lr_scheduler_type lr_schedule scheduler",
        "optimizer.clip_norm": "max_grad_norm grad_clip clip_grad gradient_clipping",
        "optimizer.b1": "adam_beta1 beta1",
        "optimizer.b2": "adam_beta2 beta2",
        "optimizer.eps": "adam_epsilon",
        "optimizer.weight_decay": "wd",
        "training.steps": "max_steps num_steps total_steps total_training_steps num_train_steps",
        "training.prompts_per_step": (
            "groups_per_step batch_size train_batch_size per_device_train_batch_size"
        ),
        "training.pack_length": "row_tokens",
        "training.packs_per_microbatch": (
            "rows_per_microbatch micro_batch_size ppo_micro_batch_size_per_gpu"
            " gradient_accumulation_steps"
        ),
        "sampling.group_size": "num_samples num_generations rollout_n num_return_sequences n",
        "sampling.max_concurrent": "slots max_num_seqs",
        "data.drop_zero_variance": "drop_no_signal",
        "sampling.max_new_tokens": "max_completion_length max_response_length max_tokens",
        "sampling.max_prompt_tokens": "max_prompt_length",
        "objective.name": "loss_type loss_mode adv_estimator algorithm",
        "objective.options.kl_coef": "beta kl_coef kl_loss_coef",
        "objective.options.epsilon_low": "epsilon clip_ratio clip_ratio_low clip_range epsilon_low",
        "objective.options.epsilon_high": "clip_ratio_high epsilon_high",
        "regime.reuse": "num_iterations ppo_epochs",
        "regime.sync_interval": "sync_frequency",
        "checkpoint.every": "save_steps save_freq save_interval",
        "checkpoint.keep": "save_total_limit max_to_keep",
        "evaluation.every": "eval_steps test_freq eval_interval",
        "model.path": "model_name_or_path model_path pretrained",
        "model.remat": "gradient_checkpointing enable_gradient_checkpointing",
        "model.compute_dtype": "bf16 fp16",
        "model.lora_rank": "lora_r",
        "model.lora_targets": "target_modules lora_target_modules",
        "run_dir": "output_dir out_dir default_local_dir",
        "logging.wandb_project": "wandb project_name",
    }.items()
    for word in words.split()
}


def override(config: Config, arguments: Sequence[str]) -> Config:
    """Applies `--dotted.name value` (or `--dotted.name=value`) arguments to a configuration.

    All of them are applied together, so that their order does not matter if two fields must fit
    each other; of two values for one field the last counts. Entries of an `options` dictionary may
    be new: `--objective.options.epsilon_low 0.6`; a JSON object gives several. Another `name` (of
    the objective, of the task) drops the options of the configuration's own: they may be unknown
    to it or mean something else.

    Args:
        config: the configuration.
        arguments: words of the command line.

    Returns:
        The changed configuration.

    Raises:
        UsageError: an unknown field (with the nearest name), a missing value, or a value of the
            wrong type or outside its domain.
    """
    pending, changes = list(arguments), {}
    while pending:
        word = pending.pop(0)
        if not word.startswith("--"):
            raise UsageError(f"unexpected argument {word!r}: give fields as --name value")
        name, equals, value = word[2:].partition("=")
        name = name.replace("-", "_")
        if not equals:
            if not pending:
                raise UsageError(f"field {name} has no value: write --{name} VALUE")
            value = pending.pop(0)
        _note(config, changes, name, value)
    return _apply(config, config, changes, "")


def with_fields(config: Config, changes: Mapping[str, Any]) -> Config:
    """Returns a configuration with other values of fields.

    Args:
        config: the configuration.
        changes: values by name; of a section a dictionary of them. Another `name` drops the options
            that the configuration has, as in `override`.

    Raises:
        UsageError: an unknown field (with the nearest name), or a value outside its domain.
    """
    return _apply(config, config, changes, "")


def _unknown(config: Config, name: str) -> UsageError:
    near = " or ".join(f"--{field}" for field in similar_fields(config, name))
    return UsageError(f"unknown field {name!r}" + (f"; did you mean {near}?" if near else ""))


def field_names(config: Config) -> list[str]:
    """Returns the dotted names of all fields of a configuration."""
    return [field.name for field in fields(config)]


def similar_fields(config: Config, name: str) -> list[str]:
    """Returns the fields that an unknown dotted name probably means, at most three, the most likely
    first.

    Searched in this order: names of other libraries, a field with a similar spelling, fields whose
    last part has a similar spelling.
    """
    known, leaf = field_names(config), name.rpartition(".")[2]
    if leaf in FOREIGN_NAMES:
        meant = FOREIGN_NAMES[leaf]
        own = name.removesuffix(leaf) + meant.rpartition(".")[2]
        return [own if own in known else meant]
    if spelled := difflib.get_close_matches(name, known, n=1, cutoff=0.8):
        return spelled
    leaves = {field: field.rpartition(".")[2] for field in known}
    near = difflib.get_close_matches(leaf, leaves.values(), n=1, cutoff=0.8)
    same = [field for field in known if leaves[field] in near]
    return difflib.get_close_matches(name, same, n=3, cutoff=0)


def _note(config: Config, changes: dict[str, Any], name: str, text: str) -> None:
    """Adds one converted value to the nested dictionary of changes."""
    section, path = config, name.split(".")
    for depth, key in enumerate(path):
        types = {field.name: field.type for field in dataclasses.fields(section)}
        if key not in types:
            raise _unknown(config, name)
        value, rest = getattr(section, key), path[depth + 1 :]
        if dataclasses.is_dataclass(value):
            if not rest:
                inside = ", ".join(field.name for field in dataclasses.fields(value))
                raise UsageError(f"field {name} is a section; its fields are {inside}")
            section, changes = value, changes.setdefault(key, {})
            continue
        if isinstance(value, dict):
            if not rest and text.lstrip().startswith("{"):
                changes.setdefault(key, {}).update(json_object(text, name))
                return
            if len(rest) != 1:
                field = ".".join(path[: depth + 1])
                raise UsageError(f"field {name} takes entries: write --{field}.NAME VALUE")
            changes.setdefault(key, {})[rest[0]] = _literal(text)
        elif rest:
            raise UsageError(f"unknown field {name!r}: {key} has no fields of its own")
        else:
            changes[key] = _convert(text, types[key], name)
        return


def _apply(config: Config, section: Any, changes: Mapping[str, Any], prefix: str) -> Any:
    new, known = {}, {field.name for field in dataclasses.fields(section)}
    if "options" in known and changes.get("name", section.name) != section.name:
        section, changes = dataclasses.replace(section, options={}), {"options": {}} | changes
    for key, change in changes.items():
        if key not in known:
            raise _unknown(config, prefix + key)
        value = getattr(section, key)
        if not dataclasses.is_dataclass(value):
            new[key] = value | change if isinstance(value, dict) else change
        elif isinstance(change, Mapping):
            new[key] = _apply(config, value, change, f"{prefix}{key}.")
        else:
            raise UsageError(
                f"{prefix}{key}: expected a dictionary of the section's fields, got {change!r}"
            )
    try:
        return dataclasses.replace(section, **new)
    except (TypeError, ValueError) as error:
        field, colon, _ = str(error).partition(":")
        if colon and hasattr(section, field):  # from `domains`
            raise UsageError(f"{prefix}{error}") from error
        raise UsageError(f"field {', '.join(prefix + key for key in new)}: {error}") from error


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return {"true": True, "false": False, "none": None}.get(text.lower(), text)


def _convert(text: str, kind: str, name: str) -> Any:
    """Returns a word of the command line as the type of the field's annotation."""
    if "None" in kind and text.lower() == "none":
        return None
    kind = kind.split("|")[0].strip()
    if kind == "bool":
        truth = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
        if text.lower() not in truth:
            raise UsageError(f"{name}: expected true or false, got {text!r}")
        return truth[text.lower()]
    if kind == "str":
        return text
    if kind.startswith("tuple[str"):
        if text[:1] in ("(", "[") and isinstance(found := _literal(text), list | tuple):
            return tuple(found)  # strings with commas or spaces: a list as Python writes it
        words = (word.strip(" ()[]'\"") for word in text.split(","))  # a,b or as Python writes it
        return tuple(word for word in words if word)
    try:
        return {"int": int, "float": float}[kind](text)
    except ValueError as error:
        expected = "a whole number" if kind == "int" else "a number"
        raise UsageError(f"{name}: expected {expected}, got {text!r}") from error
