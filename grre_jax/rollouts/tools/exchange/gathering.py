"""Rows that hold one completion each, as TRL and verl log them and as most tables of responses have
them, gathered into groups.
"""

import itertools
import json
import math
import pickle
import tempfile
from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from grre_jax.domains import ConfigError, checked
from grre_jax.errors import DataError
from grre_jax.rollouts.tools.exchange.rows import FIELDS, Row


def gathered(found: Iterable[tuple[str, Row]], by: str = "") -> Iterator[tuple[str, list[Row]]]:
    """Gathers rows into groups.

    Rows that agree in `step` (which TRL and verl log) and in `group_id`, or in another column, are
    a group, wherever in the file they are. Without such a column the rows of a prompt are, which
    must adjoin: the prompt may have been sampled several times. The rows wait in a temporary file,
    so memory has their keys alone.

    Args:
        found: the rows with their locations.
        by: the column whose values are of one group each; group_id, else prompt, if empty.

    Yields:
        The location of a group's first row, and its rows; groups in the order of their first rows.

    Raises:
        DataError: a row lacks the column, or the rows of a prompt do not adjoin.
    """
    groups: dict[str, list[int]] = {}  # places of the rows in the temporary file
    last = ""
    with tempfile.TemporaryFile() as store:
        for location, row in found:
            column = by or ("group_id" if row.get("group_id") is not None else "prompt")
            if column not in row:
                raise DataError(f"{location}: field {column} is missing, which groups rows.")
            prompt = None if by else row.get("prompt")
            key = json.dumps([row.get("step"), prompt, row[column]], default=str)
            if column == "prompt" and not by and key in groups and key != last:
                raise DataError(
                    f"{location}: field prompt: expected adjoining rows of a prompt. Name the"
                    ' column that identifies a group: --mapping {"group": COLUMN}, {"group":'
                    ' "prompt"} if each prompt is one group.'
                )
            last = key
            groups.setdefault(key, []).append(store.tell())
            pickle.dump((location, row), store, pickle.HIGHEST_PROTOCOL)
        for places in groups.values():
            parts = []
            for place in places:
                store.seek(place)
                parts.append(pickle.load(store))
            yield parts[0][0], [row for _, row in parts]


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
        ConfigError: a reward column is missing, or the file has none.
    """
    weights = weights or {name: 1.0 for name in row if name.endswith("_reward")}
    total = has_total or (row.get("reward") is not None and "reward" not in weights)
    names = [*weights, *(["reward"] if total else [])]
    if "components" in row or not names:
        numbers = [n for n, v in row.items() if isinstance(v, int | float) and n not in FIELDS]
        domain = 'reward columns with their weights, --mapping {"components": {COLUMN: 1}}'
        raise ConfigError("components", domain, numbers)
    values = {}
    for name in names:
        value = row.get(name, "no such field")
        is_absent = value is None or value != value
        values[name] = math.nan if is_absent else float(checked(name, float | bool, value))
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
        ConfigError: they contradict each other, as with other weights of the reward columns.
    """
    pairs = [(part["reward"], part.get("advantage")) for part in parts]
    if not all(isinstance(value, int | float) for _, value in pairs):
        return
    judged = [(reward, advantage) for reward, advantage in pairs if not math.isnan(reward)]
    for (a, x), (b, y) in itertools.combinations(judged, 2):
        tied = np.isclose(a, b, 1e-5, 1e-5) or np.isclose(x, y, 1e-5, 1e-5)
        if not tied and (a - b) * (x - y) < 0:
            domain = f"the order of the rewards {[reward for reward, _ in judged]} (their weights:"
            domain += ' --mapping {"components": {COLUMN: 1}})'
            raise ConfigError("advantage", domain, [advantage for _, advantage in judged])
