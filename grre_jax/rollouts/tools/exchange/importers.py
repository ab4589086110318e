"""Import of foreign completions into a rollout folder.

An importer reads its file row by row and seals all of it together, or nothing if a row is wrong.
Imported groups have no behaviour log-probs unless the file has them; objectives that need them
refuse the groups with that reason.
"""

import itertools
import json
import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grre_jax import json_files
from grre_jax.domains import ConfigError, checked
from grre_jax.errors import DataError, UsageError
from grre_jax.rollouts import encoding, writer
from grre_jax.rollouts.schema import Group
from grre_jax.rollouts.storage import object_store
from grre_jax.rollouts.tools import copying
from grre_jax.rollouts.tools.exchange import gathering, rows, sources

if TYPE_CHECKING:
    from grre_jax.tasks import Tokenizer

_log = logging.getLogger(__name__)

# Formats, with the file's own names of fields where these differ.
FORMATS: dict[str, dict[str, str]] = {
    "jsonl": {},
    "parquet": {},
    "datasets": {},
    "trl": {},
    "verl": {
        "prompt": "input",
        "text": "output",
        "answer": "gts",
        "reward": "score",
        "group": "input",
    },
}
# Fields of an exported row's data_set, and of its metadata.
_ABOUT = {"name": str, "created": str, "writer": str, "policy_version": int, "metadata": dict}
_METADATA = {"contains": tuple[str, ...], "history": tuple[dict, ...]}
GSM8K_MODELS = ("6b_finetuning", "6b_verification", "175b_finetuning", "175b_verification")


def import_jsonl(
    path: str | os.PathLike[str], folder: str | os.PathLike[str], **options: Any
) -> str:
    """Imports a JSONL file, one JSON object a line; returns the name of the sealed data set.

    See `import_rows` for the lines, the options and the errors.

    Examples:
        >>> import json
        >>> from pathlib import Path
        >>> from grre_jax import rollouts
        >>> completions = [{"text": "2", "reward": 1}, {"text": "3", "reward": 0}]
        >>> line = {"prompt": "1+1=", "answer": "2", "completions": completions}
        >>> _ = Path("completions.jsonl").write_text(json.dumps(line))
        >>> name = rollouts.import_jsonl("completions.jsonl", "my_rollouts", task="sums")
        >>> for group in rollouts.read("my_rollouts"):
        ...     print(group.task, group.texts, group.rewards)
        sums ['2', '3'] [1. 0.]
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
    """Imports rows of any format in FORMATS.

    A row is a group, as `rows` shows it, a single completion, which `gathering` puts into groups,
    or a whole conversation, `messages`. docs/rollouts.md has the fields; those that no record has
    are kept in the group's `extra`. Rows that this package exported become the data sets that they
    were, provenance included.

    Args:
        kind: jsonl; parquet (a file, or a folder of them); datasets (a folder of
            `datasets.save_to_disk`, or NAME:SPLIT of a data set on the Hub); trl (completions
            that its trainers logged: the reward columns, which end in "_reward", become components,
            and their sum the reward); verl (lines of its rollout_data_dir).
        path: the file, folder or name.
        folder: the rollout folder, made when it does not exist.
        mapping: the file's own names of fields, {"prompt": "question", "text": "response"}. A field
            that maps to None is not read: the column is something else, and is kept in `extra`.
            "group" names the column whose equal values are one group; of trl, {"components":
            {"accuracy": 1}} names reward columns with their weights.
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
            and domain, and nothing is sealed.

    Examples:
        Single completions under names of their own; those of one prompt are a group:

        >>> import json
        >>> from pathlib import Path
        >>> from grre_jax import rollouts
        >>> rows = [{"question": "1+1=", "response": text, "score": text == "2"} for text in "23"]
        >>> _ = Path("scored.jsonl").write_text("\\n".join(map(json.dumps, rows)))
        >>> names = {"prompt": "question", "text": "response", "reward": "score"}
        >>> rollouts.import_rows("jsonl", "scored.jsonl", "my_rollouts", mapping=names, task="sums")
        ['jsonl']
        >>> for group in rollouts.read("my_rollouts"):
        ...     print(group.texts, group.rewards)
        ['2', '3'] [1. 0.]
    """
    names = _checked_mapping(FORMATS[kind] | dict(mapping or {}), kind)
    weights = names.pop("components", {}) if kind == "trl" else None
    column = names.pop("group", "")
    by = {name: field for field, name in names.items()}.get(column, column)
    path = Path(path).expanduser()
    found = sources.rows(path, kind)
    source = _source(path, kind, folder)
    first = next(found, None)
    if first is None:
        raise DataError(f"{path} has no groups; write one JSON object a line.")
    found = itertools.chain([first], found)
    provenance = dict(metadata or {})
    if "data_set" in first[1]:
        if mapping or tokenizer is not None:
            raise UsageError(f"{path} is an export: leave out the mapping and the tokenizer.")
        return writer.write_all(folder, _own_datasets(path, found, source, provenance, contains))

    def row_of(row: rows.Row) -> rows.Row:
        row = rows.renamed(row, names)
        if weights is not None:
            row = gathering.with_components(row, weights, "reward" in names)
        return rows.normalised(row)

    def group_of(name: str, row: rows.Row) -> Group:
        return rows.to_group(row, name, task, tokenizer)

    def gathered_group(name: str, parts: list[rows.Row]) -> Group:
        if weights is not None:
            gathering.refuse_other_order(parts)
        return rows.of_completions({}, parts, name, task, tokenizer)

    found = ((location, _placed(location, row_of, row)) for location, row in found)
    first = next(found)
    found = itertools.chain([first], found)
    make: Callable[..., Group] = group_of
    if rows.is_completion(first[1]):
        found = gathering.gathered(found, by)
        make = gathered_group
    groups = ((place, _placed(place, make, _name(path, place), row)) for place, row in found)
    provenance = {"task": task, "contains": list(contains)} | provenance | source
    if tokenizer is not None:
        provenance["tokenizer"] = tokenizer.fingerprint
    dataset = writer.DataSet(groups=_checked(path, groups), writer=kind, metadata=provenance)
    return writer.write_all(folder, [dataset])


def _name(path: Path, location: str) -> str:
    """Returns the identifier of a group that has none."""
    return f"{path.stem}:{location.split()[-1]}"


def _checked_mapping(mapping: dict[str, Any], kind: str) -> dict[str, Any]:
    """Returns a mapping whose fields and columns are those of a row."""
    fields = (*rows.FIELDS, *rows.COMPLETION_FIELDS, *rows.ALIASES, "completions", "group")
    domains = dict.fromkeys(fields, str | None)
    if kind == "trl":
        domains["components"] = dict[str, float]
    mapping = json_files.check(mapping, domains, "mapping.")
    used = [name for field, name in mapping.items() if isinstance(name, str) and field != "group"]
    if len(set(used)) < len(used):
        raise ConfigError("mapping", "a column of its own for each field", mapping)
    return mapping


def _source(path: Path, kind: str, folder: str | os.PathLike[str]) -> dict[str, Any]:
    """Returns the provenance of a file, after a check that the folder does not have it yet."""
    paths = sources.files(path, kind)
    source = {"engine": "imported", "format": kind, "source_file": path.name}
    if not paths:
        return source
    digest = sources.digest(paths)
    storage = object_store.open_storage(folder)
    for entry in storage.tail().new():
        steps = (entry.metadata, *entry.metadata.get("history", []))
        if any(step.get("source_sha256") == digest for step in steps):
            raise UsageError(
                f"{path} is already in {storage.root} as data set {entry.name}; use it,"
                " or import into another folder."
            )
    return source | {"source_sha256": digest}


def _checked(path: Path, groups: Iterator[tuple[str, Group]]) -> Iterator[Group]:
    """Yields groups, each with an identifier of its own; warns after the last if none has
    completions to compare.
    """
    compares = False
    locations: dict[str, str] = {}  # of groups by their identifier
    for location, group in groups:
        first = locations.setdefault(group.group_id, location)
        if first != location:
            domain = f"an identifier of its own, not that of {first}"
            raise DataError(f"{location}: {ConfigError('field group_id', domain, group.group_id)}.")
        compares = compares or group.num_completions > 1 or bool(group.is_expert.all())
        yield group
    if not compares:
        _log.warning(
            "%s: every group has one completion, so advantages relative to a group are all 0. If"
            ' several rows are one group, name the column that they share: {"group": COLUMN}.',
            path,
        )


def _own_datasets(
    path: Path,
    found: sources.Rows,
    source: dict[str, Any],
    metadata: dict[str, Any],
    contains: tuple[str, ...],
) -> Iterator[writer.DataSet]:
    """Yields the data sets of exported rows: consecutive rows of the same provenance."""

    def group_of(name: str, row: rows.Row, version: int) -> Group:
        fields = {name: value for name, value in row.items() if name != "data_set"}
        group = rows.to_group(rows.normalised(fields), name, "")
        writer.check_version(group, version)
        return group

    def key(item: tuple[str, rows.Row]) -> str:
        return json.dumps(item[1].get("data_set"), sort_keys=True, default=str)

    for _, items in itertools.groupby(found, key):
        location, row = next(items)
        about = _placed(location, _about, row.get("data_set"))
        step = {"operation": "import", "data_set": about["name"], "sealed": about["created"]}
        provenance = copying.with_step(about["metadata"] | metadata, step | source)
        if contains:
            provenance["contains"] = sorted({*provenance.get("contains", ()), *contains})
        version = about["policy_version"]
        groups = (
            _placed(place, group_of, _name(path, place), fields, version)
            for place, fields in itertools.chain([(location, row)], items)
        )
        dataset = writer.DataSet(
            groups=groups, writer=about["writer"], policy_version=version, metadata=provenance
        )
        _placed(location, writer.provenance_of, dataset)
        yield dataset


def _about(value: Any) -> dict[str, Any]:
    """Returns the provenance of an exported row, checked."""
    about = checked("data_set", dict[str, Any], value)
    for name, kind in _ABOUT.items():
        checked(f"data_set.{name}", kind, about.get(name))
    for name, kind in _METADATA.items():
        checked(f"data_set.metadata.{name}", kind, about["metadata"].get(name, ()))
    return about


def _placed(location: str, make: Callable[..., Any], *arguments: Any) -> Any:
    """Returns `make(*arguments)`; errors name file and location."""
    try:
        value = make(*arguments)
        if isinstance(value, Group):
            encoding.to_record(value)  # which JSON must be able to hold
        return value
    except ConfigError as error:
        raise DataError(f"{location}: field {error}.") from error
    except (DataError, UsageError) as error:
        raise DataError(f"{location}: {str(error).rstrip('.')}.") from error
    except RecursionError as error:
        raise DataError(f"{location}: a field is nested too deeply.") from error


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
            and domain, and nothing is sealed.
    """
    path = Path(path).expanduser()
    found = sources.rows(path, "gsm8k-solutions")
    provenance = {
        "task": "gsm8k",
        "contains": ["gsm8k/test"],
        "license": "MIT",
        "origin": "https://github.com/openai/grade-school-math",
    }
    provenance |= _source(path, "gsm8k-solutions", folder)
    groups = (_placed(place, _solutions, int(place.split()[-1]), row) for place, row in found)
    return writer.write(folder, groups, writer="gsm8k-solutions", metadata=provenance)


def _solutions(number: int, row: rows.Row) -> Group:
    """Returns the group of line `number`."""
    solutions = [checked(model, dict[str, Any], row.get(model)) for model in GSM8K_MODELS]
    correct = [
        checked(f"{model}.is_correct", bool, solution.get("is_correct"))
        for model, solution in zip(GSM8K_MODELS, solutions, strict=True)
    ]
    truth = checked("ground_truth", str, row.get("ground_truth"))
    answer = re.search(r"A:\s*(-?[\d,]*\.?\d+)\s*$", truth)
    if answer is None:
        raise ConfigError("ground_truth", "a text with 'A:' and a number at its end", truth)
    others = {n: value for n, value in row.items() if n not in (*GSM8K_MODELS, "question")}
    return Group(
        group_id=f"gsm8k-solutions:{number}",
        prompt=row.get("question"),
        texts=[solution.get("solution") for solution in solutions],
        rewards=correct,
        task="gsm8k",
        question_id=f"gsm8k/test/{number - 1}",
        answer=answer[1].replace(",", ""),
        sources=list(GSM8K_MODELS),
        extra=others,
    )
