"""Rows that hold one completion each, as TRL logs them and as most tables of responses have
them, gathered into groups.
"""

import collections
import hashlib
import itertools
import json
import math
import pickle
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from grre_jax.errors import DataError
from grre_jax.rollouts.tools.exchange import rows, sources
from grre_jax.rollouts.tools.exchange.sources import Line

Names = Mapping[str, str | None]  # as `Line` has them
TRL_COLUMNS = ("step", "prompt", "completion", "advantage")


def is_one(row: Any, names: Names) -> bool:
    """True if a row is one completion: it has a text and no list of completions."""
    return (
        isinstance(row, dict)
        and names["completions"] not in row
        and (_text_column(names, row) in row or names["tokens"] in row)
    )


def unified(path: Path, found: sources.Rows, names: Names) -> sources.Rows:
    """Yields rows with prompt and completion in place of `messages`, and with a list of completions
    in place of parallel lists (`prompt`, `responses`, `rewards`).

    Raises:
        DataError: the messages are no list with a message of the assistant's, or the lists of a row
            have other lengths.
    """
    own = {names["prompt"], names["text"], names["completions"], "completion"}
    for location, row in found:
        if isinstance(row, dict) and "messages" in row and own.isdisjoint(row):
            row = _with_completion(Line(path, location, row), names)
        elif isinstance(row, dict):
            row = _with_completions(Line(path, location, row), names)
        yield location, row


def _with_completion(line: Line, names: Names) -> dict[str, Any]:
    """Returns a row whose completion begins with the assistant's first message."""
    said = line.take("messages", list)
    roles = [message.get("role") for message in said if isinstance(message, dict)]
    if "assistant" not in roles or len(roles) < len(said):
        line.fail(
            "messages",
            "is not a list of messages, objects with role and content, one of the assistant's",
        )
    first = roles.index("assistant")
    return line.rest | {names["prompt"]: said[:first], names["text"]: said[first:]}


def _with_completions(line: Line, names: Names) -> dict[str, Any]:
    """Returns a row with its parallel lists as a list of completions; others as they are."""
    lists = {name: value for name, value in line.rest.items() if isinstance(value, list)}
    reward = names["reward"] if names["reward"] in lists else "rewards"
    texts = (names["text"], "responses", names["completions"])
    text = next((name for name in texts if name in lists), None)
    if reward not in lists or not text or any(isinstance(item, dict) for item in lists[text]):
        return line.rest
    columns = {names[name]: names[name] for name in rows.COMPLETION_COLUMNS}
    columns |= {names["text"]: text, names["reward"]: reward}
    values = {name: line.rest.pop(column) for name, column in columns.items() if column in lists}
    for name, items in values.items():
        if len(items) != len(lists[text]):
            line.fail(columns[name], f"has {len(items)} values for {len(lists[text])} of {text}")
    completions = [
        dict(zip(values, items, strict=True)) for items in zip(*values.values(), strict=True)
    ]
    return line.rest | {names["completions"]: completions}


def gathered(
    path: Path, found: sources.Rows, names: Names, weights: Mapping[str, float] | None = None
) -> Iterator[tuple[Line, list[Line]]]:
    """Gathers rows into groups, wherever in the file the rows of a group are.

    A group's rows agree in step (which TRL and verl log) and in prompt and group_id, or in the
    column that `names` calls "group"; see `_offsets`. The rows wait in a temporary file, so memory
    has their keys alone.

    Args:
        path: the file, for messages.
        found: the rows with their locations.
        names: the file's own name of each field.
        weights: of TRL's reward columns, as `_take_components` has them; None for rows that TRL did
            not log.

    Yields:
        The fields that the group's rows agree in, and the other fields of each; groups in the order
            of their first rows.

    Raises:
        DataError: a row is not an object, or lacks the reward or the column that groups rows; or a
            prompt has more rows than others have, apart from each other; or TRL's advantages order
            a group otherwise than its rewards do.
    """
    by = "group" if names.get("group") else "prompt"
    columns = ["step", names[by]] + ([names["group_id"]] if by == "prompt" else [])
    has_ids = by == "group"
    runs: dict[bytes, list[list[int]]] = {}  # by key: where in `store` its rows are that adjoin
    before = None
    with tempfile.TemporaryFile() as store:
        for location, row in found:
            if not isinstance(row, dict) or names[by] not in row:
                Line(path, location, row, names=names).take(by, object)
            has_ids = has_ids or row.get(names["group_id"]) is not None
            key = _key([row.get(name) for name in columns])
            if key != before:
                runs.setdefault(key, []).append([])
            runs[key][-1].append(store.tell())
            before = key
            pickle.dump((location, row), store, pickle.HIGHEST_PROTOCOL)

        def stored(offset: int) -> tuple[str, Any]:
            store.seek(offset)
            return pickle.load(store)

        for group in _offsets(list(runs.values()), has_ids, path, stored):
            yield _group(path, [stored(offset) for offset in group], names, weights)


def _key(values: list[Any]) -> bytes:
    text = json.dumps(values, sort_keys=True, default=str)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


def _offsets(
    keys: list[list[list[int]]],
    has_ids: bool,
    path: Path,
    stored: Callable[[int], tuple[str, Any]],
) -> list[list[int]]:
    """Returns the offsets of the rows of each group, in the order of their first rows.

    A key that identifies groups is one group. A prompt may be sampled several times: if no row of
    the file is alone, adjoining rows of a prompt are a group; otherwise all its rows. Where most
    others have K rows, K > 1, a prompt of 2K or 3K rows is two or three groups; of other numbers it
    is one group if its rows adjoin.

    Args:
        keys: offsets of the adjoining rows of each key.
        has_ids: the keys identify groups.
        path, stored: the file and its rows, for messages.

    Raises:
        DataError: the number of groups of a prompt cannot be found.
    """
    if has_ids:
        return [list(itertools.chain(*runs)) for runs in keys]
    if all(len(run) > 1 for runs in keys for run in runs):
        keys = [[run] for runs in keys for run in runs]
    counts = collections.Counter(sum(map(len, runs)) for runs in keys)
    groups = []
    for runs in keys:
        offsets = list(itertools.chain(*runs))
        size = len(offsets)
        others = counts - collections.Counter([size])
        usual, prompts = max(others.items(), key=lambda item: item[1], default=(0, 0))
        if 1 < usual < size and 2 * prompts > others.total():
            if size % usual == 0:
                size = usual
            elif len(runs) > 1:
                raise DataError(
                    f"{path}, {stored(offsets[0])[0]}: the rows with the prompt of this row do not"
                    f" adjoin; expected {usual}, as most prompts have, or a multiple, got {size}."
                    ' Name the column that identifies a group with --mapping {"group": COLUMN}, or'
                    " put the rows of each group together."
                )
        groups += [offsets[start : start + size] for start in range(0, len(offsets), size)]
    return sorted(groups)


def _group(
    path: Path, group: list[tuple[str, Any]], names: Names, weights: Mapping[str, float] | None
) -> tuple[Line, list[Line]]:
    """Returns the fields that the rows of a group agree in, and the other fields of each."""
    here = {**names, "text": _text_column(names, group[0][1])}
    parts = [Line(path, location, row, names=here) for location, row in group]
    if weights is not None:
        for part in parts:
            _take_components(part, weights)
        _refuse_other_order(parts)
    own = {here[name] for name in rows.COMPLETION_COLUMNS} | {"behavior_logprobs"}
    shared = {
        name: value
        for name, value in parts[0].rest.items()
        if name not in own and all(name in part.rest and part.rest[name] == value for part in parts)
    }
    for part in parts:
        part.rest = {name: value for name, value in part.rest.items() if name not in shared}
    return Line(path, group[0][0], shared, names=here), parts


def _text_column(names: Names, row: Any) -> str | None:
    unmapped = names["text"] == "text" and isinstance(row, dict)
    return "completion" if unmapped and "text" not in row and "completion" in row else names["text"]


def _take_components(part: Line, weights: Mapping[str, float]) -> None:
    """Makes the row's reward columns its components, and their sum its reward if it has none.

    A reward function that does not apply gives null or NaN: its component is NaN, it is left out of
    the sum, and a row without any other reward has none.

    Args:
        part: the row.
        weights: of the reward columns, by name; where it is empty, those that end in "_reward"
            have weight 1.

    Raises:
        DataError: a reward column is missing, or the file has none.
    """
    reward = part.names["reward"]
    if part.rest.get("components") is not None:
        part.fail(
            "components",
            "is not a column of TRL, whose components are the columns of its reward functions;"
            " rename it",
        )
    weights = weights or {name: 1.0 for name in part.rest if name.endswith("_reward")}
    has_total = reward not in weights and (
        part.rest.get(reward) is not None or (reward != "reward" and reward in part.rest)
    )
    said = Line(part.path, part.location, part.rest)
    components = {name: said.number_or_nan(name) for name in weights}
    if has_total:
        components[reward] = said.number_or_nan(reward)
    if not components:
        own = {part.names.get(name, name) for name in (*rows.COLUMNS, "group")} | {*TRL_COLUMNS}
        numbers = [
            name
            for name, value in part.rest.items()
            if isinstance(value, int | float) and not isinstance(value, bool) and name not in own
        ]
        raise DataError(
            f"{part.path}, {part.location}: no column ends in _reward; expected the names of the"
            f" reward columns, of the columns of numbers {', '.join(numbers) or '(none)'}. Name"
            ' them with their weights: --mapping {"components": {"accuracy": 1, "format": 0.5}}.'
        )
    applied = {name: value for name, value in components.items() if not math.isnan(value)}
    if has_total:
        total = components[reward]
    else:
        total = sum(weights[name] * applied[name] for name in applied) if applied else math.nan
    part.rest = said.rest | {"components": components, reward: total}


def _refuse_other_order(parts: list[Line]) -> None:
    """DataError if the advantages that TRL logged order the completions of a group otherwise than
    their rewards do; ties do not count.
    """
    rewards = np.asarray([part.rest[part.names["reward"]] for part in parts])
    logged = [part.rest.get("advantage") for part in parts]
    if not all(isinstance(value, int | float) for value in logged):
        return
    advantages = np.asarray(logged, float)
    above, higher = (
        np.subtract.outer(values, values) > 1e-5 * max(1.0, np.abs(np.nan_to_num(values)).max())
        for values in (rewards, advantages)
    )
    if (above & higher.T).any():
        columns = ", ".join(parts[0].rest["components"])
        by_reward, by_advantage = (
            np.argsort(values, kind="stable").tolist() for values in (rewards, advantages)
        )
        parts[0].fail(
            "advantage",
            f"contradicts the rewards of {columns}: from the lowest, the completions of the group"
            f" are {by_reward} by reward {rewards.tolist()}, and {by_advantage} by advantage"
            f" {advantages.tolist()}. Name the reward columns and their weights:"
            ' --mapping {"components": {"accuracy": 1, "format": 0.5}}',
        )
