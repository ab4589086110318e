"""Copies of groups from rollout folders into a new one: all of them (`merge`), a selection
(`filter`, by Python expressions: `predicate`), or changed ones (`derive`).

The provenance of data sets is copied too: the writer, the policy version and the metadata of a
copy are its source's, and `history` gets an entry for the copy. Groups are read and written one at
a time.
"""

import hashlib
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from grre_jax.console import progress_bar
from grre_jax.errors import DataError, UsageError
from grre_jax.rollouts import manifest, reader, writer
from grre_jax.rollouts.encoding import encode
from grre_jax.rollouts.reader import open_storage
from grre_jax.rollouts.schema import Group

# The most that an interrupted `derive` does again.
GROUPS_PER_DATASET = 4096

Placed = tuple[dict[str, Any], Group]  # fields of the group's data set, and the group


def merge(
    folders: Sequence[str | os.PathLike[str]],
    into: str | os.PathLike[str],
) -> reader.RolloutReader:
    """Copies all groups of several folders, folder by folder, into a new one; of equal groups one.

    Args:
        folders: rollout folders; one is enough, to make few large data sets of many small ones.
        into: the new folder.

    Returns:
        A reader of the new folder.

    Raises:
        UsageError: the new folder exists and holds something.
        DataError: a folder cannot be read, or holds no groups; a group is damaged. Nothing is
            written then.

    Examples:
        >>> from grre_jax import rollouts
        >>> one = rollouts.Group(group_id="a", prompt="1+1=", texts=["2", "3"], rewards=[1, 0])
        >>> other = rollouts.Group(group_id="b", prompt="2+1=", texts=["2", "3"], rewards=[0, 1])
        >>> _ = rollouts.write("mine", [one], writer="me")
        >>> _ = rollouts.write("yours", [one, other], writer="you")
        >>> [group.group_id for group in rollouts.merge(["mine", "yours"], "both")]
        ['a', 'b']
    """
    step = {"operation": "merge", "folders": [Path(folder).name for folder in folders]}
    digests: set[bytes] = set()

    def is_new(group: Group) -> bool:
        digest = hashlib.sha256(encode(group)).digest()
        fits = digest not in digests
        digests.add(digest)
        return fits

    return _copied(folders, into, step, is_new)


def filter(
    folder: str | os.PathLike[str],
    into: str | os.PathLike[str],
    keep: Callable[[Group], bool],
    described: str,
) -> reader.RolloutReader:
    """Copies the groups for which `keep` is True into a new folder.

    Args:
        folder: the rollout folder.
        into: the new folder.
        keep: the predicate.
        described: the predicate as text, for the copies' history.

    Returns:
        A reader of the new folder.

    Raises:
        UsageError, DataError: as for `merge`; also when no group is kept.

    Examples:
        Groups that a mean baseline can learn from:

        >>> from grre_jax import rollouts
        >>> mixed = rollouts.Group(group_id="a", prompt="1+1=", texts=["2", "3"], rewards=[1, 0])
        >>> alike = rollouts.Group(group_id="b", prompt="1+2=", texts=["3", "3"], rewards=[1, 1])
        >>> _ = rollouts.write("my_rollouts", [mixed, alike], writer="me")
        >>> rule = "has_reward_variance"
        >>> copy = rollouts.filter("my_rollouts", "mixed", rollouts.predicate(rule), rule)
        >>> [group.prompt for group in copy]
        ['1+1=']
    """
    step = {"operation": "filter", "kept": described}
    return _copied([folder], into, step, keep)


def values(group: Group) -> dict[str, Any]:
    """Returns the names of an expression with their values for a group: its fields, and these."""
    rewards = group.judged_rewards if group.judged.any() else np.array([np.nan])
    correct = group.correct if group.judged.any() else None
    return vars(group) | {
        "has_reward_variance": group.has_reward_variance,
        "reward_mean": float(rewards.mean(dtype=np.float64)),
        "accuracy": np.nan if correct is None else float(correct[group.judged].mean()),
        "length_max": int(group.lengths.max()),
    }


def predicate(text: str) -> Callable[[Group], bool]:
    """Returns the function that evaluates an expression for a group.

    Args:
        text: a Python expression of the names of `values`; it is run as it stands.

    Raises:
        UsageError: it is not an expression. The function raises it for an expression that fails,
            as with a name that `values` does not have; the message names expression and group.

    Examples:
        >>> from grre_jax import rollouts
        >>> group = rollouts.Group(group_id="a", prompt="1+1=", texts=["2", "3"], rewards=[1, 0])
        >>> keep = rollouts.predicate("reward_mean > 0.2 and len(texts) == 2")
        >>> keep(group)
        True
    """
    try:
        code = compile(text.strip(), "<expression>", "eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise UsageError(
            f"--where: expected a Python expression, got {text!r}: {error}."
        ) from error

    def holds(group: Group) -> bool:
        names = values(group)
        try:
            return bool(eval(code, dict(names)))  # a copy, to which eval adds builtins
        except Exception as error:
            raise UsageError(
                f"--where: {text!r} fails for group {group.group_id!r}: {error}. Its names are"
                f" {', '.join(names)}."
            ) from error

    return holds


def _copied(
    folders: Sequence[str | os.PathLike[str]],
    into: str | os.PathLike[str],
    step: dict[str, Any],
    keep: Callable[[Group], bool],
) -> reader.RolloutReader:
    """Copies the groups for which `keep` is True into a new folder."""
    storage = open_storage(into)
    if not storage.is_new():
        raise UsageError(f"{storage.root} exists already; name a new folder with --output.")
    groups = (
        (_provenance(source.locate(number)[0], step, {}), group)
        for source in map(reader.read, folders)
        for number, group in enumerate(source)
        if keep(group)
    )
    writer.write_all(into, datasets(groups))
    return reader.read(into)


def datasets(groups: Iterable[Placed]) -> Iterator[writer.DataSet]:
    """Yields the data sets of groups: consecutive ones whose data sets' fields agree."""
    # The parts share one iterator: `write_all` writes each before it takes the next.
    for about, items in itertools.groupby(groups, lambda item: item[0]):
        yield writer.DataSet(groups=(group for _, group in items), **about)


def _provenance(
    entry: manifest.Entry, step: dict[str, Any], metadata: dict[str, Any]
) -> dict[str, Any]:
    """Returns the fields of `writer.DataSet` that a copy has: its source's, with further metadata
    and a step in the history.
    """
    return {
        "writer": entry.writer,
        "policy_version": entry.policy_version,
        "metadata": with_step(entry.metadata | metadata, step),
    }


def with_step(metadata: dict[str, Any], step: dict[str, Any]) -> dict[str, Any]:
    """Returns metadata with a further step in its history."""
    return metadata | {"history": [*metadata.get("history", []), step]}


def derive(
    source: reader.RolloutReader,
    output: str | Path,
    changed: Callable[[range], Iterable[Group]],
    step: dict[str, Any],
    metadata: dict[str, Any],
    *,
    each: Callable[..., Iterable[Iterable[Group]]] = map,
) -> None:
    """Writes the changed groups of a folder into a new one, in order, or goes on with it.

    Each data set is sealed when it is complete: those that an interrupted call sealed are not
    changed again.

    Args:
        source: the folder.
        output: the new folder, or that of an interrupted call with the same arguments.
        changed: numbers of groups of the source to those groups, changed, in order and one at a
            time.
        step: a JSON value added to the data sets' `history`.
        metadata: takes the place of the data sets' own fields of these names.
        each: calls `changed` for the groups of each new data set, as `map` does.

    Raises:
        UsageError: the output exists and holds something else.
        DataError: the source is empty, or a group cannot be read or written.
    """
    pieces: list[tuple[dict[str, Any], range]] = []
    end = 0
    for entry in source.datasets:
        copy = _provenance(entry, step, metadata)
        starts = range(end, end + entry.groups, GROUPS_PER_DATASET)
        end += entry.groups
        pieces += [(copy, range(start, min(start + starts.step, end))) for start in starts]
    if not pieces:
        raise DataError(f"{source.folder} has no groups.")
    storage = open_storage(output)
    sealed = () if storage.is_new() else reader.read(output).datasets
    for entry, piece in itertools.zip_longest(sealed, pieces[: len(sealed)]):
        if piece is None or piece[0] != {name: getattr(entry, name) for name in piece[0]}:
            raise UsageError(
                f"{storage.root} holds something else already; name a new folder with --output."
            )
    rest = pieces[len(sealed) :]
    changes = each(changed, [numbers for _, numbers in rest])
    with progress_bar(sum(len(numbers) for _, numbers in rest), "groups") as done:

        def counted(groups: Iterable[Group]) -> Iterator[Group]:
            for group in groups:
                yield group
                done()

        for (copy, _), groups in zip(rest, changes, strict=True):
            writer.write_all(output, [writer.DataSet(groups=counted(groups), **copy)])
