"""Rows that hold one completion each, as TRL logs them and as most tables of responses have
them, gathered into groups.
"""

import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from grre_jax.errors import DataError, UsageError
from grre_jax.rollouts.tools.exchange import rows, sources
from grre_jax.rollouts.tools.exchange.sources import Line

Names = Mapping[str, str | None]  # as `Line` has them
# The other columns of numbers are rewards, one per reward function.
TRL_COLUMNS = ("step", "prompt", "completion", "advantage")


def is_one(row: Any, names: Names) -> bool:
    """True if a row is one completion: it has a text and no list of completions."""
    return (
        isinstance(row, dict)
        and names["completions"] not in row
        and (_text_column(names, row) in row or names["tokens"] in row)
    )


def of_messages(path: Path, found: sources.Rows, names: Names) -> sources.Rows:
    """Yields rows, those with `messages` in place of prompt and completion with these: the
    completion begins with the assistant's first message.

    Raises:
        DataError: the messages are no list with a message of the assistant's.
    """
    own = {names["prompt"], names["text"], names["completions"], "completion"}
    for location, row in found:
        if isinstance(row, dict) and "messages" in row and own.isdisjoint(row):
            line = Line(path, location, row)
            said = line.take("messages", list)
            roles = [message.get("role") for message in said if isinstance(message, dict)]
            if "assistant" not in roles or len(roles) < len(said):
                line.fail(
                    "messages",
                    "has no message of the assistant's, or an item that is no message; give a list"
                    " of objects with role and content",
                )
            first = roles.index("assistant")
            row = line.rest | {names["prompt"]: said[:first], names["text"]: said[first:]}
        yield location, row


def gathered(
    path: Path, found: sources.Rows, names: Names, *, trl: bool = False
) -> Iterator[tuple[Line, list[Line]]]:
    """Gathers consecutive rows into groups.

    A group's rows agree in prompt, step (which TRL logs) and group_id, or in the column that
    `names` calls "group".

    Args:
        path: the file, for messages.
        found: the rows with their locations.
        names: the file's own name of each field.
        trl: columns of numbers that are neither TRL's own nor a record's fields are reward
            components, and the reward their sum.

    Yields:
        The fields that the group's rows agree in, and the other fields of each.

    Raises:
        DataError: a row is not an object, or lacks the reward or the column that groups rows.
    """
    if trl and names["components"] != "components":
        raise UsageError(
            "The mapping names components, which TRL's rows have as a column for each reward"
            " function; leave it out."
        )
    by = "group" if names.get("group") else "prompt"
    columns = [names["group"]] if by == "group" else [names["prompt"], "step", names["group_id"]]

    def key(item: tuple[str, Any]) -> list[Any]:
        location, row = item
        if isinstance(row, dict) and names[by] not in row:  # else all rows would be one group
            Line(path, location, row, names=names).take(by, object)
        return [row.get(name) if isinstance(row, dict) else None for name in columns]

    for group in (list(items) for _, items in itertools.groupby(found, key)):
        here = {**names, "text": _text_column(names, group[0][1])}
        parts = [Line(path, location, row, names=here) for location, row in group]
        if trl:
            for part in parts:
                _take_components(part)
        own = {here[name] for name in rows.COMPLETION_COLUMNS} | {"behavior_logprobs"}
        shared = {
            name: value
            for name, value in parts[0].rest.items()
            if name not in own
            and all(name in part.rest and part.rest[name] == value for part in parts)
        }
        for part in parts:
            part.rest = {name: value for name, value in part.rest.items() if name not in shared}
        yield Line(path, group[0][0], shared, names=here), parts


def _text_column(names: Names, row: Any) -> str | None:
    unmapped = names["text"] == "text" and isinstance(row, dict)
    return "completion" if unmapped and "text" not in row and "completion" in row else names["text"]


def _take_components(part: Line) -> None:
    """Makes the row's reward columns its components, and their sum its reward if it has none."""
    reward = part.names["reward"]
    own = {part.names.get(name, name) for name in (*rows.COLUMNS, "group")}
    if part.rest.get("components") is not None:
        part.fail(
            "components",
            "is not a column of TRL, whose components are the columns of its reward functions;"
            " rename it",
        )
    said = Line(part.path, part.location, part.rest)
    components = {
        name: said.number(name)
        for name, value in part.rest.items()
        if name == reward or name not in TRL_COLUMNS and name not in own
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
    if not components:
        raise DataError(
            f"{part.path}, {part.location}: no column has the numbers of a reward function; it has"
            f" {', '.join(part.rest)}."
        )
    total = components[reward] if reward in components else sum(components.values())
    part.rest = said.rest | {"components": components, reward: total}
