"""Import of foreign completions into a rollout folder.

An importer reads its file row by row and seals all of it together, or nothing if a row is wrong.
Imported groups have no behaviour log-probs unless the file has them; objectives that need them
refuse the groups with that reason.
"""

import itertools
import json
import logging
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grre_jax.errors import DataError, UsageError
from grre_jax.rollouts import encoding, writer
from grre_jax.rollouts.schema import SCHEMA_VERSION, Group
from grre_jax.rollouts.storage import local
from grre_jax.rollouts.tools import copying
from grre_jax.rollouts.tools.exchange import completion_rows, rows, sources
from grre_jax.rollouts.tools.exchange.sources import Line

if TYPE_CHECKING:
    from grre_jax.tasks import Tokenizer

_log = logging.getLogger(__name__)

GSM8K_MODELS = ("6b_finetuning", "6b_verification", "175b_finetuning", "175b_verification")


def import_jsonl(
    path: str | os.PathLike[str], folder: str | os.PathLike[str], **options: Any
) -> str:
    """Imports a JSONL file, one JSON object a line; returns the name of the sealed data set.

    See `import_rows` for the lines, the options and the errors.
    """
    return import_rows("jsonl", path, folder, **options)[0]


def import_rows(
    kind: str,
    path: str | os.PathLike[str],
    folder: str | os.PathLike[str],
    *,
    mapping: Mapping[str, Any] | None = None,
    task: str = "",
    contains: tuple[str, ...] = (),
    metadata: Mapping[str, Any] | None = None,
    tokenizer: "Tokenizer | None" = None,
) -> list[str]:
    """Imports rows of any format in `sources.READERS`.

    A row is a group with a list of completions, as `rows` shows it, or a single completion, which
    `completion_rows.gathered` puts into groups; or a whole conversation, `messages`.
    docs/rollouts.md has the fields of a row and their types; a field of another type, or in another
    object, is refused, and fields that no record has are kept in the group's `extra`. Rows that
    this package exported become the data sets that they were, provenance included.

    Args:
        kind: jsonl, parquet (a file, or a folder of them), huggingface (a folder of
            `datasets.save_to_disk`), toolace, or trl (completions that its trainers logged: the
            reward columns, which end in "_reward", become components, and their sum the reward).
        path: the file or folder.
        folder: the rollout folder, made when it does not exist.
        mapping: the file's own names of fields, {"prompt": "question", "text": "response"}. A name
            that maps to None is not read: the column is something else, and is kept in `extra`.
            Of trl, {"components": {"accuracy": 1}} names reward columns with their weights.
        task: task name for rows that give none.
        contains: benchmark splits that the questions come from, as ("gsm8k/test",), so that
            evaluations on them are recognised.
        metadata: further provenance.
        tokenizer: the policy's. It renders chat messages, and made the tokens that rows have.

    Returns:
        The names of the sealed data sets.

    Raises:
        UsageError: a name in `mapping` that is no field, or a file that is already in the folder.
        DataError: the file is missing or empty, or a row is wrong; the message names line, field
            and fix, and nothing is sealed.
    """
    path = Path(path).expanduser()
    names, weights = _names(mapping or {}, kind)
    source = _source(path, kind, folder)
    found = completion_rows.unified(path, sources.READERS[kind](path), names)
    first, found = _present(path, found)
    if rows.is_own(first):
        if mapping or tokenizer is not None:
            raise UsageError(f"{path} is an export: leave out the mapping and the tokenizer.")
        more = dict(metadata or {})
        return writer.write_all(folder, _own_datasets(path, found, source, more, contains))
    single = kind == "trl" or completion_rows.is_one(first, names)
    groups = _groups(path, found, names, single, weights, path.stem, task, tokenizer)
    provenance = {"task": task, "contains": list(contains)}
    provenance |= {} if tokenizer is None else {"tokenizer": tokenizer.fingerprint}
    provenance |= dict(metadata or {}) | source
    dataset = writer.DataSet(groups=_compared(path, groups), writer=kind, metadata=provenance)
    return writer.write_all(folder, [dataset])


def _groups(
    path: Path,
    found: sources.Rows,
    names: dict[str, str | None],
    single: bool,
    weights: Mapping[str, float] | None,
    *how: Any,
) -> Iterator[Group]:
    """Yields the groups of rows that are groups, or with `single` completions."""

    def group_of(location: str, row: Any) -> Group:
        return rows.to_group(Line(path, location, row, names=names), *how)

    def placed() -> Iterator[tuple[str, Group]]:
        if single:
            for line, parts in completion_rows.gathered(path, found, names, weights):
                yield line.location, _placed(path, line.location, rows.build, line, parts, *how)
            return
        for location, row in found:
            yield location, _placed(path, location, group_of, location, row)

    locations: dict[str, str] = {}  # of groups by their identifier
    for location, group in placed():
        first = locations.setdefault(group.group_id, location)
        if first != location:
            raise DataError(
                f"{path}, {location}: field group_id is {group.group_id!r}, as that of {first};"
                " give each group an identifier of its own."
            )
        yield group


def _compared(path: Path, groups: Iterator[Group]) -> Iterator[Group]:
    """Yields groups; warns after the last if none has completions to compare."""
    compares = False
    for group in groups:
        compares = compares or group.num_completions > 1 or bool(group.is_expert.all())
        yield group
    if not compares:
        _log.warning(
            "%s: every group has one completion, so advantages relative to a group are all 0. If"
            ' several rows are one group, name the column that they share: {"group": COLUMN}.',
            path,
        )


def import_gsm8k_solutions(path: str | os.PathLike[str], folder: str | os.PathLike[str]) -> str:
    """Imports GSM8K's example_model_solutions.jsonl: four models' solutions of each of its 1,319
    test questions, with correctness.

    The file is https://github.com/openai/grade-school-math,
    grade_school_math/data/example_model_solutions.jsonl (Cobbe et al., "Training Verifiers to Solve
    Math Word Problems", https://arxiv.org/abs/2110.14168). A group is a question; its completions
    come from GSM8K_MODELS, in that order, with reward 1 where the file says that the solution is
    correct and 0 elsewhere; its answer is the final number of the ground truth, without thousands
    commas. Since the questions are GSM8K's test split, the data set's provenance says
    contains=["gsm8k/test"].

    Returns:
        The name of the sealed data set.

    Raises:
        UsageError: the file is already in the folder.
        DataError: the file is missing or empty, or a line is wrong; the message names line, field
            and fix, and nothing is sealed.
    """

    def group(line: Line, number: int) -> Group:
        solutions = [
            Line(line.path, line.location, line.take(model, dict), f"{model}.")
            for model in GSM8K_MODELS
        ]
        truth = line.take("ground_truth", str)
        answer = re.search(r"A:\s*(-?[\d,]*\.?\d+)\s*$", truth)
        if answer is None:
            line.fail("ground_truth", f"does not end in 'A:' and a number ({truth[-40:]!r})")
        return Group(
            group_id=f"gsm8k-solutions:{number}",
            prompt=line.take("question", str),
            texts=[solution.take("solution", str) for solution in solutions],
            rewards=[float(solution.take("is_correct", bool)) for solution in solutions],
            task="gsm8k",
            question_id=f"gsm8k/test/{number - 1}",
            answer=answer[1].replace(",", ""),
            sources=list(GSM8K_MODELS),
            extra=line.rest | {"ground_truth": truth},
        )

    path = Path(path).expanduser()
    source = _source(path, "gsm8k-solutions", folder)
    provenance = {
        "task": "gsm8k",
        "contains": ["gsm8k/test"],
        "license": "MIT",
        "origin": "https://github.com/openai/grade-school-math",
    }
    groups = (
        _placed(path, location, group, Line(path, location, row), int(location.split()[-1]))
        for location, row in sources.json_lines(path)
    )
    return writer.write(folder, groups, writer="gsm8k-solutions", metadata=provenance | source)


def _weights(components: Any) -> dict[str, float]:
    """Returns the weights of TRL's reward columns that a mapping gives under "components"."""
    fits = isinstance(components, dict) and all(
        type(weight) in (int, float) and math.isfinite(weight) for weight in components.values()
    )
    if not fits:
        raise UsageError(
            "The mapping of 'components': expected an object of the reward columns and their"
            f' weights, {{"accuracy": 1, "format": 0.5}}, got {components!r}.'
        )
    return components


def _names(
    mapping: Mapping[str, Any], kind: str
) -> tuple[dict[str, str | None], dict[str, float] | None]:
    """Returns the file's own name of each field, None if the mapping gives its column to another
    field; and the weights of TRL's reward columns, None of another kind of file.
    """
    weights = _weights(mapping.get("components", {})) if kind == "trl" else None
    if kind == "trl":
        mapping = {name: mapping[name] for name in mapping if name != "components"}
    known = (*rows.COLUMNS, "group")
    for name, column in mapping.items():
        if name not in known:
            raise UsageError(
                f"The mapping renames {name!r}, which is not a field of a group; its fields are"
                f" {', '.join(known)}."
            )
        if not isinstance(column, str | None):
            raise UsageError(
                f"The mapping of {name!r}: expected a column's name or null, got {column!r}."
            )
    columns = [column for name, column in mapping.items() if name != "group" and column is not None]
    names = {name: None if name in columns else name for name in rows.COLUMNS} | dict(mapping)
    if len(set(columns)) < len(columns) or None in [names[name] for name in rows.REQUIRED]:
        raise UsageError(
            "The mapping: expected a column of its own for each field, and one for"
            f" {', '.join(rows.REQUIRED)}, got {dict(mapping)}."
        )
    return names, weights


def _source(path: Path, kind: str, folder: str | os.PathLike[str]) -> dict[str, Any]:
    """Returns the provenance of a file, after a check that the folder does not have it yet."""
    digest = sources.digest(sources.files(path, kind))
    storage = local.open_storage(folder)
    for entry in storage.tail().new():
        if any(
            step.get("source_sha256") == digest
            for step in (entry.metadata, *entry.metadata.get("history", []))
        ):
            raise UsageError(
                f"{path} is already in {storage.root} as data set {entry.name}; use it,"
                " or import into another folder."
            )
    return {"engine": "imported", "format": kind, "source_file": path.name, "source_sha256": digest}


def _own_datasets(
    path: Path,
    found: sources.Rows,
    source: dict[str, Any],
    metadata: dict[str, Any],
    contains: tuple[str, ...],
) -> Iterator[writer.DataSet]:
    """Yields the data sets of exported rows: consecutive rows of the same provenance."""

    def provenance(item: tuple[str, Any]) -> str:
        if not rows.is_own(item[1]):
            raise DataError(
                f"{path}, {item[0]}: field data_set is missing, which the rows before it have;"
                " import them separately."
            )
        try:
            return json.dumps(item[1]["data_set"], sort_keys=True, allow_nan=False)
        except (ValueError, TypeError, RecursionError) as error:
            raise DataError(f"{path}, {item[0]}: field data_set is not JSON ({error}).") from error

    for about, items in itertools.groupby(found, provenance):
        first = next(items)
        fields, step = _about(Line(path, first[0], json.loads(about), "data_set."))
        said = {"operation": "import", **step, **source}
        fields["metadata"] = copying.with_step(fields["metadata"] | metadata, said)
        if contains:
            fields["metadata"]["contains"] = sorted(
                {*fields["metadata"].get("contains", ()), *contains}
            )
        version = fields["policy_version"]
        groups = (
            _placed(path, location, _own_group, path, location, row, version)
            for location, row in itertools.chain([first], items)
        )
        yield writer.DataSet(groups=groups, **fields)


def _about(said: Line) -> tuple[dict[str, Any], dict[str, str]]:
    """Returns the arguments of `writer.DataSet` for an exported row, and the history of its data
    set.
    """
    fields: dict[str, Any] = {
        "writer": said.take("writer", str),
        "policy_version": said.take("policy_version", int),
        "metadata": said.take("metadata", dict),
    }
    version = said.take("schema_version", str, SCHEMA_VERSION)
    major = SCHEMA_VERSION.partition(".")[0]
    for name, fits in (
        ("writer", writer.WRITER_NAME.fullmatch(fields["writer"])),
        ("policy_version", -1 <= fields["policy_version"] < 2**31),
        ("schema_version", version.partition(".")[0] == major),
    ):
        if not fits:
            said.fail(name, "is out of its domain; export the rows again")
    about = Line(said.path, said.location, fields["metadata"], "data_set.metadata.")
    for name, kind in (("contains", str), ("history", dict)):
        if not all(isinstance(item, kind) for item in about.take(name, list, [])):
            about.fail(name, "has an item of another type; export the rows again")
    fields["metadata"] = {
        name: value
        for name, value in fields["metadata"].items()
        if value is not None or name in about.rest
    }
    return fields, {"data_set": said.take("name", str, ""), "sealed": said.take("created", str, "")}


def _own_group(path: Path, location: str, row: dict[str, Any], version: int) -> Group:
    """Returns the group of an exported row, which has the version of its data set."""
    line = Line(path, location, {name: value for name, value in row.items() if name != "data_set"})
    group = rows.to_group(line, path.stem, "")
    writer.check_version(group, version)
    return group


def _placed(path: Path, location: str, make: Callable[..., Group], *arguments: Any) -> Group:
    """Returns `make(*arguments)`, which a record can hold; errors name the location."""
    try:
        group = make(*arguments)
        encoding.to_record(group)
        return group
    except DataError as error:
        if str(error).startswith(f"{path}, "):
            raise
        raise DataError(f"{path}, {location}: {error}") from error
    except RecursionError as error:
        raise DataError(
            f"{path}, {location}: a field holds lists or objects within each other beyond measure;"
            " give it fewer."
        ) from error


def _present(path: Path, found: sources.Rows) -> tuple[Any, sources.Rows]:
    """Returns the first of the rows, of which there must be one, and all of them."""
    first = next(found, None)
    if first is None:
        raise DataError(f"{path} has no groups; write one JSON object a line.")
    return first[1], itertools.chain([first], found)
