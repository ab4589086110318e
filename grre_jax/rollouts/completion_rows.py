"""Rows that hold one completion each, as TRL logs them and as most tables of responses have them, gathered into groups."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from grre_jax.errors import DataError
from grre_jax.rollouts import rows, sources
from grre_jax.rollouts.rows import Line

TRL_COLUMNS = ("step", "prompt", "completion", "advantage")  # the others that hold numbers are rewards, a reward function each


def is_one(row: Any, names: dict[str, str]) -> bool:
    """Whether a row is one completion: it has a text and no list of completions."""
    return isinstance(row, dict) and names["completions"] not in row and _text_column(names, row) in row


def gathered(
    path: Path, found: sources.Rows, names: dict[str, str], *, trl: bool = False
) -> Iterator[tuple[Line, list[Line], dict[str, str]]]:
    """Consecutive rows with the same prompt and step, or the same value of the column that `names` calls "group".

    Args:
      path: the file, for messages.
      found: the rows with their places.
      names: the row's name of each column that is looked for.
      trl: columns of numbers that TRL does not have by itself are reward components, and the reward their sum.

    Yields:
      What the group's rows agree in, what each says beyond that, and the names to look for.

    Raises:
      DataError: a row is no object, has no reward, or has not the column that says what belongs together.
    """
    key = (names["group"],) if "group" in names else (names["prompt"], "step")
    for place, group in rows.in_groups(_having(path, found, key[0]), key):
        parts = [Line(path, place, row) for row in group]
        here = names | {"text": _text_column(names, group[0])}
        if trl:
            here |= {"components": "components"}
            for part in parts:
                _take_components(part, here["reward"])
        own = {here[name] for name in (*rows.COMPLETION_COLUMNS, *rows.OWN_COMPLETION_COLUMNS) if name in here}
        shared = {
            name: value
            for name, value in parts[0].rest.items()
            if name not in own and all(name in part.rest and part.rest[name] == value for part in parts)
        }
        for part in parts:
            part.rest = {name: value for name, value in part.rest.items() if name not in shared}
        yield Line(path, place, shared), parts, here


def _having(path: Path, found: sources.Rows, column: str) -> sources.Rows:
    """The rows, each of which has the column that says what belongs together: without it all of a file would be one group."""
    for place, row in found:
        if isinstance(row, dict) and column not in row:
            Line(path, place, row).take(column, object)
        yield place, row


def _text_column(names: dict[str, str], row: Any) -> str:
    unmapped = names["text"] == "text" and isinstance(row, dict)
    return "completion" if unmapped and "text" not in row and "completion" in row else names["text"]


def _take_components(part: Line, reward: str) -> None:
    """Makes the row's reward columns its components, and their sum its reward where it has none of that name."""
    components = {
        name: float(value)
        for name, value in part.rest.items()
        if name not in TRL_COLUMNS and isinstance(value, int | float) and not isinstance(value, bool)
    }
    if not components:
        raise DataError(f"{part.path}, {part.place}: no column holds a reward function's numbers; it has {', '.join(part.rest)}.")
    total = components[reward] if reward in components else sum(components.values())
    part.rest = {name: value for name, value in part.rest.items() if name not in components} | {"components": components, reward: total}
