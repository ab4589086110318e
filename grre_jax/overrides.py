"""Fields of a configuration, overridden by dotted names on the command line."""

from __future__ import annotations

import ast
import dataclasses
import difflib
from collections.abc import Sequence
from typing import Any

from grre_jax.config import Config
from grre_jax.errors import UsageError


def override(config: Config, arguments: Sequence[str]) -> Config:
    """Applies `--dotted.name value` (or `--dotted.name=value`) arguments to a configuration.

    All are read first and then applied together, so that their order does not matter where two fields must fit each other; of two values for one field the
    last counts. Entries of an `options` dictionary may be new: `--objective.options.epsilon_low 0.6`. Another `name` (of the objective, of the task) takes
    none of the options that the configuration gave its own: they may mean nothing to it, or something else.

    Raises:
        UsageError: an unknown field (with the nearest name), a missing value, or a value of the wrong type or outside its domain.
    """
    pending, changes = list(arguments), {}
    while pending:
        word = pending.pop(0)
        if not word.startswith("--"):
            raise UsageError(f"unexpected argument {word!r}: fields are given as --name value")
        name, equals, value = word[2:].partition("=")
        name = name.replace("-", "_")
        if not equals:
            if not pending:
                raise UsageError(f"field {name} is given no value: write --{name} VALUE")
            value = pending.pop(0)
        _note(config, changes, name, value)
    return _apply(config, changes, "")


def field_names(config: Any, prefix: str = "") -> list[str]:
    """Dotted names of every field of a configuration."""
    names = []
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        names += field_names(value, f"{prefix}{field.name}.") if dataclasses.is_dataclass(value) else [prefix + field.name]
    return names


def _note(config: Config, changes: dict[str, Any], name: str, text: str) -> None:
    """Adds one converted value to the nested dictionary of changes."""
    section, path = config, name.split(".")
    for depth, key in enumerate(path):
        types = {field.name: field.type for field in dataclasses.fields(section)}
        if key not in types:
            near = difflib.get_close_matches(name, field_names(config), n=1, cutoff=0.3)
            raise UsageError(f"unknown field {name!r}" + (f"; did you mean --{near[0]}?" if near else ""))
        value, rest = getattr(section, key), path[depth + 1 :]
        if dataclasses.is_dataclass(value):
            if not rest:
                raise UsageError(f"field {name} is a section; its fields are {', '.join(f.name for f in dataclasses.fields(value))}")
            section, changes = value, changes.setdefault(key, {})
            continue
        if isinstance(value, dict):
            if len(rest) != 1:
                raise UsageError(f"field {name} takes entries: write --{'.'.join(path[: depth + 1])}.NAME VALUE")
            changes.setdefault(key, {})[rest[0]] = _literal(text)
        elif rest:
            raise UsageError(f"unknown field {name!r}: {key} has no fields of its own")
        else:
            changes[key] = _convert(text, types[key], name)
        return


def _apply(section: Any, changes: dict[str, Any], prefix: str) -> Any:
    new = {}
    if "options" in vars(section) and changes.get("name", section.name) != section.name:
        section, changes = dataclasses.replace(section, options={}), {"options": {}} | changes
    for key, change in changes.items():
        value = getattr(section, key)
        if dataclasses.is_dataclass(value):
            new[key] = _apply(value, change, f"{prefix}{key}.")
        else:
            new[key] = value | change if isinstance(value, dict) else change
    try:
        return dataclasses.replace(section, **new)
    except ValueError as error:
        raise UsageError(f"field {', '.join(prefix + key for key in new)}: {error}") from error


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return {"true": True, "false": False, "none": None}.get(text.lower(), text)


def _convert(text: str, kind: str, name: str) -> Any:
    """A command-line word as the type that the field's annotation names."""
    if "None" in kind and text.lower() == "none":
        return None
    kind = kind.split("|")[0].strip()
    if kind == "bool":
        if text.lower() not in ("true", "false", "1", "0", "yes", "no"):
            raise UsageError(f"field {name} takes true or false, got {text!r}")
        return text.lower() in ("true", "1", "yes")
    if kind == "str":
        return text
    if kind.startswith("tuple[str"):
        words = (word.strip(" ()[]'\"") for word in text.split(","))  # a,b or as Python writes it
        return tuple(word for word in words if word)
    try:
        return {"int": int, "float": float}[kind](text)
    except ValueError as error:
        raise UsageError(f"field {name} takes {'a whole number' if kind == 'int' else 'a number'}, got {text!r}") from error
