"""Rows that hold one completion each, as TRL and verl log them and as most tables of responses have
them, gathered into groups.
"""

import collections
import hashlib
import itertools
import json
import math
import pickle
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from grre_jax.domains import shown
from grre_jax.errors import DataError
from grre_jax.rollouts.tools.exchange.rows import FIELDS, Row, fail

Runs = list[tuple[str, list[int]]]  # adjoining rows of a key: their places in the temporary file


def gathered(found: Iterable[tuple[str, Row]], by: str = "") -> Iterator[tuple[str, list[Row]]]:
    """Gathers rows into groups.

    Rows that agree in `step` (which TRL and verl log) and in `group_id`, or in another column, are
    a group, wherever in the file they are. Without such a column the adjoining rows of a prompt
    are; of a multiple of the rows that most prompts have, several groups. The rows wait in a
    temporary file, so memory has their keys alone.

    Args:
        found: the rows with their locations.
        by: the column whose values are of one group each; group_id, else prompt, if empty.

    Yields:
        The location of a group's first row, and its rows; groups in the order of their first rows.

    Raises:
        DataError: a row lacks the column, or the rows of a prompt do not adjoin.
    """
    has_ids = bool(by)
    runs: Runs = []
    with tempfile.TemporaryFile() as store:
        for location, row in found:
            column = by or ("group_id" if row.get("group_id") is not None else "prompt")
            if column not in row:
                raise DataError(f"{location}: field {column} is missing, which groups rows")
            has_ids = has_ids or column == "group_id"
            prompt = None if by else row.get("prompt")
            key = _key([row.get("step"), prompt, row[column]])
            if not runs or runs[-1][0] != key:
                runs.append((key, []))
            runs[-1][1].append(store.tell())
            pickle.dump((location, row), store, pickle.HIGHEST_PROTOCOL)

        def stored(place: int) -> tuple[str, Row]:
            store.seek(place)
            return pickle.load(store)

        if not has_ids:
            _refuse_scattered(runs, stored)
        for places in _joined(runs) if has_ids else _split(runs):
            parts = [stored(place) for place in places]
            yield parts[0][0], [row for _, row in parts]


def _key(values: list[Any]) -> str:
    text = json.dumps(values, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def _joined(runs: Runs) -> list[list[int]]:
    groups: dict[str, list[int]] = {}
    for key, places in runs:
        groups.setdefault(key, []).extend(places)
    return list(groups.values())


def _split(runs: Runs) -> Iterator[list[int]]:
    """Yields the runs; those with a multiple of the rows that most have, in parts of that size."""
    sizes = collections.Counter(len(places) for _, places in runs)
    usual = max(sizes, key=lambda size: sizes[size], default=1)
    for _, places in runs:
        size = usual if usual > 1 and len(places) % usual == 0 else len(places)
        yield from (places[start : start + size] for start in range(0, len(places), size))


def _refuse_scattered(runs: Runs, stored: Callable[[int], tuple[str, Row]]) -> None:
    """Refuses a prompt with a row that does not adjoin the prompt's others: if it was sampled
    several times, each group has more than one row.
    """
    first: dict[str, int] = {}
    alone = {key for key, places in runs if len(places) == 1}
    for key, places in runs:
        if first.setdefault(key, places[0]) != places[0] and key in alone:
            raise DataError(
                f"{stored(places[0])[0]}: the prompt of this row is that of"
                f" {stored(first[key])[0]}, and the rows of the prompt do not adjoin. Name the"
                ' column that identifies a group: --mapping {"group": COLUMN}, {"group": "prompt"}'
                " if each prompt is one group"
            )


def with_components(row: Row, weights: Mapping[str, float], has_total: bool) -> Row:
    """Returns a row that TRL logged with its reward columns as components, and their weighted sum
    as its reward if it has none.

    A reward function that does not apply gives null or NaN: its component is NaN, it is left out of
    the sum, and a row without any other reward has none.

    Args:
        row: the row.
        weights: of the reward columns, by name; where it is empty, those that end in "_reward"
            have weight 1.
        has_total: the field reward is the whole reward, null for none.

    Raises:
        DataError: a reward column is missing, or the file has none.
    """
    weights = weights or {name: 1.0 for name in row if name.endswith("_reward")}
    total = has_total or (row.get("reward") is not None and "reward" not in weights)
    names = [*weights, *(["reward"] if total else [])]
    if "components" in row or not names:
        numbers = [n for n, v in row.items() if isinstance(v, int | float) and n not in FIELDS]
        raise DataError(
            f"field components: expected reward columns, of {', '.join(numbers) or '(no numbers)'},"
            ' with their weights: --mapping {"components": {"accuracy": 1, "format": 0.5}}'
        )
    values = {}
    for name in names:
        value = row.get(name, "no field of this name")
        value = math.nan if value is None else value
        if not isinstance(value, int | float) or abs(value) > sys.float_info.max:
            fail(name, "a number or null", value)
        values[name] = float(value)
    terms = [weights[name] * values[name] for name in weights if not math.isnan(values[name])]
    reward = values["reward"] if total else sum(terms) if terms else math.nan
    others = {name: value for name, value in row.items() if name not in names}
    return others | {"components": values, "reward": reward}


def refuse_other_order(parts: list[Row]) -> None:
    """Refuses a group whose logged advantages order its completions otherwise than its rewards do;
    ties do not count.

    Args:
        parts: its rows, with their rewards; those without advantages fit.

    Raises:
        DataError: they contradict each other, as with other weights of the reward columns.
    """
    pairs = [(part["reward"], part.get("advantage")) for part in parts]
    if not all(isinstance(value, int | float) for _, value in pairs):
        return
    judged = [(reward, advantage) for reward, advantage in pairs if not math.isnan(reward)]
    for (a, x), (b, y) in itertools.combinations(judged, 2):
        tied = np.isclose(a, b, 1e-5, 1e-5) or np.isclose(x, y, 1e-5, 1e-5)
        if not tied and (a - b) * (x - y) < 0:
            raise DataError(
                f"field advantage: expected the order of the rewards {[r for r, _ in judged]}, got"
                f" {shown([advantage for _, advantage in judged])}. Name the reward columns and"
                ' their weights: --mapping {"components": {"accuracy": 1, "format": 0.5}}'
            )
