"""JSON files of other programs: reading, and checks of the types and domains of their fields."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import json
import logging
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from grre_jax.errors import DataError, UsageError

MAX_INTEGER = 2**31 - 1  # of sizes and ids, which are int32 on the devices
_SHOWN = 80  # characters of a value in a message

_log = logging.getLogger(__name__)


def read_object(path: Path) -> dict[str, Any]:
    """Reads a JSON object from a file.

    Args:
        path: of the file.

    Raises:
        DataError: the file cannot be read or contains another value.
    """
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(
            f"{path}: cannot be read as JSON ({error}): restore the checkpoint's own file"
        ) from error
    if not isinstance(values, dict):
        found = type(values).__name__
        raise DataError(
            f"{path}: expected a JSON object, got {found}. Restore the checkpoint's own file"
        )
    return values


def json_object(text: str, name: str) -> dict[str, Any]:
    """Reads a JSON object from a word of the command line.

    Args:
        text: the word.
        name: of the field or flag.

    Raises:
        UsageError: it is not a JSON object.
    """
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, dict):
        raise UsageError(f"{name}: expected a JSON object, got {text!r}. Quote it for the shell.")
    return values


def json_lines(lines: Iterable[bytes], name: str | Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields the objects of JSON lines, each after "name, line N"; empty lines are left out.

    Args:
        lines: an open file, say.
        name: of the file, for messages.

    Raises:
        DataError: a line contains no JSON object; names it.
    """
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        where = f"{name}, line {number}"
        try:
            value = json.loads(line.decode("utf-8-sig" if number == 1 else "utf-8"))
        except (ValueError, RecursionError) as error:  # ValueError: bad UTF-8 too
            raise DataError(
                f"{where}: this is no JSON ({error}); write one JSON object a line"
            ) from error
        if not isinstance(value, dict):
            raise DataError(
                f"{where}: a JSON object is needed, not a {type(value).__name__}; correct the line"
            )
        yield where, value


def message_text(content: Any, where: str) -> Any:
    """Returns the text of a chat message whose content is a list of parts of text; any other
    content as it is.

    Args:
        content: of the message: `[{"type": "text", "text": "..."}]` is such a list.
        where: the message, for errors.

    Raises:
        DataError: a part is not text; names its type.
    """
    if not isinstance(content, list):
        return content
    texts = []
    for number, part in enumerate(content):
        fields = part if isinstance(part, dict) else {}
        if fields.get("type") != "text" or not isinstance(fields.get("text"), str):
            found = repr(fields["type"]) if "type" in fields else shown(part)
            raise DataError(
                f"{where}, part {number} of its content: expected a part of type 'text' with a"
                f" string, got {found}. Give parts of text alone."
            )
        texts.append(fields["text"])
    return "".join(texts)


@dataclasses.dataclass(frozen=True)
class Domain:
    """The domain of a field.

    Args:
        text: the domain in words, for messages.
        holds: returns True for a value of the domain.
        remedy: for messages about other values.
    """

    text: str
    holds: Callable[[Any], bool]
    remedy: str = "restore the file's own value"

    def __or__(self, other: Domain) -> Domain:
        return Domain(
            f"{self.text} or {other.text}",
            lambda value: self.holds(value) or other.holds(value),
            self.remedy,
        )


def integer(least: int, most: int = MAX_INTEGER) -> Domain:
    """Returns the domain of integers from `least` to `most`, without true and 1.0."""
    return Domain(
        f"an integer from {least} to {most}",
        lambda value: type(value) is int and least <= value <= most,
    )


def number(*, above: float = -sys.float_info.max) -> Domain:
    """Returns the domain of finite numbers above a bound."""
    text = "a number" if above == -sys.float_info.max else f"a number above {above:g}"
    return Domain(
        text, lambda value: type(value) in (int, float) and above < value <= sys.float_info.max
    )


def one_of(*allowed: Any) -> Domain:
    """Returns the domain of the given values; true is not 1, and 1 is not 1.0."""
    text = " or ".join(json.dumps(value) for value in allowed)
    return Domain(
        text, lambda value: any(type(value) is type(one) and value == one for one in allowed)
    )


def off(
    *allowed: Any, remedy: str = "use a checkpoint without this option, which is not supported"
) -> Domain:
    """Returns the domain of the values that turn off an option that is not supported."""
    return dataclasses.replace(one_of(*allowed), remedy=remedy)


def list_of(items: Domain, text: str) -> Domain:
    """Returns the domain of lists of items of a domain."""
    return Domain(
        text, lambda value: isinstance(value, list) and all(items.holds(item) for item in value)
    )


ANY = Domain("any value", lambda value: True)
NULL = one_of(None)
FLAG = Domain("true or false", lambda value: isinstance(value, bool))
TEXT = Domain("a string", lambda value: isinstance(value, str))
OBJECT = Domain("an object", lambda value: isinstance(value, dict))
TOKEN = integer(0)
TOKENS = TOKEN | list_of(TOKEN, "a list of such token ids") | NULL


def check(
    values: dict[str, Any],
    domains: dict[str, Domain],
    where: str | Path,
    prefix: str = "",
    *,
    closed: bool = True,
) -> None:
    """Checks every field of an object against the known fields.

    One warning names the unknown fields whose value is null, false, 0 or empty: they are ignored,
    as options that are off.

    Args:
        values: the object.
        domains: known fields.
        where: the file, for messages.
        prefix: of the fields' names in messages, such as "rope_scaling.".
        closed: refuse unknown fields of other values.

    Raises:
        DataError: a field that is unknown or outside its domain; names the file and the field.
    """
    ignored = []
    for name, value in values.items():
        if name in domains:
            require(value, domains[name], where, prefix + name)
        elif closed and not value:
            ignored.append(prefix + name)
        elif closed:
            near = difflib.get_close_matches(name, domains, n=1, cutoff=0.8)
            hint = (
                f"did you mean {near[0]}?"
                if near
                else "remove it if the model computes the same without it"
            )
            raise DataError(
                f"{where}: the field {prefix}{name} = {shown(value)} is not supported: {hint}"
            )
    if ignored:
        _warn_of_ignored(str(where), ", ".join(ignored))


@functools.cache  # a run reads a file several times
def _warn_of_ignored(where: str, names: str) -> None:
    _log.warning("%s: ignored unknown fields that are off: %s", where, names)


def require(value: Any, domain: Domain, where: str | Path, name: str) -> Any:
    """Returns a value of a domain.

    Args:
        value: of the field.
        domain: of the field.
        where: the file, for messages.
        name: of the field.

    Raises:
        DataError: the value is outside the domain; names file, field, domain and value.
    """
    if not domain.holds(value):
        raise DataError(
            f"{where}: the field {name} must be {domain.text}, got {shown(value)}: {domain.remedy}"
        )
    return value


def shown(value: Any) -> str:
    """Returns a value as messages quote it."""
    text = repr(value)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."
