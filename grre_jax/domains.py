"""Types and domains of the fields of a configuration.

The annotation of a field is its domain: `steps: Count`, `decay: Literal["none", "linear"]`,
`b1: Annotated[float, "[0, 1)"]`. `Record` checks every field by its annotation when it is made,
whether its values are from a file, the command line or a stored config.json.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import difflib
import functools
import inspect
import json
import re
import sys
import types
import typing
from collections.abc import Callable, Iterable
from typing import Annotated, Any, Literal

from grre_jax.errors import UsageError

MAX_INTEGER = 2**31 - 1  # of sizes and ids, which are int32 on the devices
_SHOWN = 80  # characters of a value in a message

# Intervals: a bracket includes its bound, a parenthesis does not.
Count = Annotated[int, f"[0, {MAX_INTEGER}]"]
Positive = Annotated[int, f"[1, {MAX_INTEGER}]"]
AtLeastMinusOne = Annotated[int, f"[-1, {MAX_INTEGER}]"]
NonNegative = Annotated[float, "[0, inf)"]
AboveZero = Annotated[float, "(0, inf)"]
Share = Annotated[float, "[0, 1]"]
Seed = Annotated[int, f"[0, {2**63 - 1}]"]

_ENTRY = re.compile(r"(?P<name>\w+)(?: \((?P<domain>.*?)\))?: (?P<meaning>.*)", re.DOTALL)
_FLAGS = {"true": True, "false": False}


class ConfigError(UsageError, ValueError):
    """A field of a record that is outside its domain.

    Attributes:
        field: its name; dotted where the section is known.
        domain: in words.
        value: of the field.
    """

    def __init__(self, field: str, domain: str, value: Any):
        super().__init__(field, domain, value)
        self.field = field
        self.domain = domain
        self.value = value

    def __str__(self) -> str:
        return f"{self.field}: expected {self.domain}, got {shown(self.value)}"

    def within(self, prefix: str) -> ConfigError:
        """Returns the error with a prefix before the field's name."""
        return ConfigError(prefix + self.field, self.domain, self.value)


class Record:
    """Base of frozen dataclasses whose fields are checked by their annotations.

    A list becomes a tuple where one is annotated, and an integer a float.

    Raises:
        ConfigError: a field outside its domain.
    """

    def __post_init__(self):
        for name, annotation in annotations(type(self)).items():
            object.__setattr__(self, name, checked(name, annotation, getattr(self, name)))
        self._validate()

    def _validate(self) -> None:
        """Checks fields that must fit each other; raises ConfigError."""


@functools.cache
def annotations(record: type) -> dict[str, Any]:
    """Returns the annotation of each field of a dataclass, by name."""
    hints = typing.get_type_hints(record, include_extras=True)
    return {field.name: hints[field.name] for field in dataclasses.fields(record)}


def documented(item: Callable) -> dict[str, tuple[str, str]]:
    """Returns domain and meaning of each entry under "Args:" in the docstring of a function or of
    a record and those that it inherits from, by name.
    """
    entries = {}
    for owner in reversed(item.__mro__) if isinstance(item, type) else [item]:
        _, _, listed = (inspect.getdoc(owner) or "").partition("Args:\n")
        for entry in re.split(r"\n {4}(?=\w)", "\n" + listed.partition("\n\n")[0])[1:]:
            if match := _ENTRY.fullmatch(" ".join(entry.split())):
                entries[match["name"]] = (match["domain"] or "", match["meaning"])
    return entries


def plain(annotation: Any) -> Any:
    """Returns the annotation without None and interval: `int` of `Count | None`."""
    if _is_union(annotation):
        annotation = typing.get_args(annotation)[0]
    return annotation.__origin__ if typing.get_origin(annotation) is Annotated else annotation


def parse(name: str, annotation: Any, text: str) -> Any:
    """Returns a word of the command line as the value of a field.

    Args:
        name: of the field.
        annotation: of the field, see `checked`.
        text: the word.

    Raises:
        ConfigError: the value is outside the domain.
    """
    kind = plain(annotation)
    value: Any = text
    if types.NoneType in typing.get_args(annotation) and text.lower() == "none":
        value = None
    elif kind is bool:
        value = _FLAGS.get(text.lower(), text)
    elif kind in (int, float):
        with contextlib.suppress(ValueError):
            value = kind(text)
    elif typing.get_origin(kind) is dict:
        with contextlib.suppress(ValueError, RecursionError):
            value = json.loads(text)
    elif typing.get_origin(kind) is tuple:
        words = text.split(",")
        if len(words) > 1:
            words = [word.strip() or word for word in words]  # a stop string may be a newline
        value = literal(text) if text[:1] in ("(", "[") else tuple(filter(None, words))
    return checked(name, annotation, value)


def literal(text: str) -> Any:
    """Returns a word as Python reads it; true, false and none in any case; else the word."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return {"true": True, "false": False, "none": None}.get(text.lower(), text)


def checked(name: str, annotation: Any, value: Any) -> Any:
    """Returns a value as the type of its field: a list as a tuple, an integer as a float.

    Args:
        name: of the field.
        annotation: of the field: a class, Any, Literal, a union, tuple[X, ...], dict[str, X], or
            int or float with an interval.
        value: of the field.

    Raises:
        ConfigError: the value is outside the domain.
    """
    origin = typing.get_origin(annotation)
    arguments = typing.get_args(annotation)
    domain = describe(annotation)
    if _is_union(annotation):
        for member in arguments:
            with contextlib.suppress(ConfigError):
                return checked(name, member, value)
    elif origin is tuple:
        if isinstance(value, list | tuple):
            items = enumerate(value)
            return tuple(checked(f"{name}[{index}]", arguments[0], item) for index, item in items)
    elif origin is dict:
        if isinstance(value, dict) and all(isinstance(key, str) for key in value):
            items = value.items()
            return {key: checked(f"{name}.{key}", arguments[1], item) for key, item in items}
    elif origin is Literal:
        if any(type(value) is type(one) and value == one for one in arguments):  # True is not 1
            return value
        domain += nearest(value, arguments)
    elif origin is Annotated or annotation in (int, float):
        kind, interval = arguments or (annotation, "(-inf, inf)")
        number = _number(kind, value)
        if number is not None and inside(number, interval):
            return number
    elif annotation is Any or isinstance(value, annotation):
        return value
    raise ConfigError(name, domain, value)


def describe(annotation: Any) -> str:
    """Returns the domain of a field in words."""
    arguments = typing.get_args(annotation)
    if _is_union(annotation):
        return " or ".join(map(describe, arguments))
    if typing.get_origin(annotation) is Literal:
        return f"one of {', '.join(str(one) or 'empty' for one in arguments)}"
    if typing.get_origin(annotation) is Annotated:
        return f"{arguments[0].__name__} in {arguments[1]}"
    return "none" if annotation is types.NoneType else inspect.formatannotation(annotation)


def shown(value: Any) -> str:
    """Returns a value as messages quote it."""
    text = repr(value)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."


def nearest(word: Any, words: Iterable[Any]) -> str:
    """Returns " (did you mean 'x'?)" for the word that is spelled nearest; "" if none is near."""
    close = difflib.get_close_matches(str(word), list(map(str, words)), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def _is_union(annotation: Any) -> bool:
    return typing.get_origin(annotation) in (typing.Union, types.UnionType)


def _number(kind: type, value: Any) -> int | float | None:
    """Returns a value as an int or a finite float; None if it is not one."""
    if isinstance(value, bool) or not isinstance(value, int if kind is int else int | float):
        return None
    return kind(value) if abs(value) <= sys.float_info.max else None


def inside(value: float, interval: str) -> bool:
    """True for a number in an interval, such as "[0, 1)"; False for NaN."""
    low, high = _bounds(interval)
    above = low <= value if interval[0] == "[" else low < value
    below = value <= high if interval[-1] == "]" else value < high
    return above and below


@functools.cache
def _bounds(interval: str) -> tuple[float, float]:
    low, high = (
        float(bound) if "inf" in bound else json.loads(bound) for bound in interval[1:-1].split(",")
    )
    return low, high
