"""JSON files of other programs: reading, and checks of the types and domains of their fields."""

import contextlib
import functools
import json
import logging
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from grre_jax.domains import ConfigError, Count, checked, describe, nearest, shown
from grre_jax.errors import DataError

Tokens = Count | tuple[Count, ...] | None  # ids

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
        if not isinstance(values, dict):
            raise ValueError(f"expected a JSON object, got {type(values).__name__}")
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(
            f"{path}: cannot be read as JSON ({error}): restore the checkpoint's own file"
        ) from error
    return values


def json_lines(lines: Iterable[bytes], name: str | Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields the objects of JSON lines, each after "name, line N"; empty lines are left out.

    Args:
        lines: for example an open file.
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
            if not isinstance(value, dict):
                raise ValueError(f"it is a {type(value).__name__}")
        except (ValueError, RecursionError) as error:  # ValueError: bad UTF-8 too
            raise DataError(
                f"{where}: this is no JSON object ({error}); write one a line"
            ) from error
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
            kind = repr(fields["type"]) if "type" in fields else shown(part)
            raise DataError(
                f"{where}, part {number} of its content: expected a part of type 'text' with a"
                f" string, got {kind}. Give parts of text alone."
            )
        texts.append(fields["text"])
    return "".join(texts)


def check(
    values: dict[str, Any],
    fields: dict[str, Any],
    prefix: str = "",
    *,
    required: Iterable[str] = (),
    unsupported: Iterable[str] = (),
) -> dict[str, Any]:
    """Checks an object whose fields are all known; returns values as `domains.checked` has them.

    One warning names the unknown fields whose value is null, false, 0 or empty: they are ignored,
    as options that are off.

    Args:
        values: the object.
        fields: annotations of the known fields, see `domains.checked`.
        prefix: of the fields' names in messages, such as "rope_scaling.".
        required: names of fields that may not be absent.
        unsupported: names of options that may only be off.

    Raises:
        ConfigError: a field is unknown, absent or outside its domain.
    """
    for name in sorted(set(required) - values.keys()):
        raise ConfigError(prefix + name, describe(fields[name]), None)
    ignored = []
    result = {}
    for name, value in values.items():
        if name in fields:
            result[name] = checked(prefix + name, fields[name], value)
        elif value:
            off = "null, false or empty: the option is not supported"
            domain = off if name in unsupported else f"a known field{nearest(name, fields)}"
            raise ConfigError(prefix + name, domain, value)
        elif name not in unsupported:
            ignored.append(prefix + name)
    if ignored:
        _warn_of_ignored(", ".join(ignored))
    return result


@functools.cache  # a run reads a file several times
def _warn_of_ignored(names: str) -> None:
    _log.warning("ignored unknown fields that are off: %s", names)


@contextlib.contextmanager
def fields_of(file: str | Path) -> Iterator[None]:
    """A context in which a ConfigError becomes a DataError that names the file too."""
    try:
        yield
    except ConfigError as error:
        raise DataError(f"{file}: {error}. Correct it, or use another file") from error


def require(value: Any, annotation: Any, where: str | Path, name: str) -> Any:
    """Returns the value of a field as `domains.checked` has it.

    Args:
        value: of the field.
        annotation: of the field.
        where: the file, for messages.
        name: of the field.

    Raises:
        DataError: the value is outside the domain; names file, field, domain and value.
    """
    with fields_of(where):
        return checked(name, annotation, value)
