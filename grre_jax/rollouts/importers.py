"""Bringing completions from elsewhere into a rollout folder.

An importer reads its file row by row and seals all of it together, or nothing when a row is wrong. What was imported has no behaviour
log-probs unless the file gives them; objectives that need them refuse it by name.
"""

import itertools
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from grre_jax.errors import DataError, UsageError
from grre_jax.rollouts import completion_rows, places, rows, sources, writer
from grre_jax.rollouts.rows import Line
from grre_jax.rollouts.schema import SCHEMA_VERSION, Group

GSM8K_MODELS = ("6b_finetuning", "6b_verification", "175b_finetuning", "175b_verification")


def import_jsonl(
    path: str | os.PathLike[str],
    folder: str | os.PathLike[str],
    *,
    mapping: Mapping[str, str] | None = None,
    task: str = "",
    contains: tuple[str, ...] = (),
    metadata: Mapping[str, Any] | None = None,
) -> str:
    """Imports a JSONL file of groups, one JSON object a line:

        {"prompt": "2+2=", "answer": "4", "completions": [{"text": "4", "reward": 1}, {"text": "5", "reward": 0}]}

    Needed are `prompt` and `completions` with `text` and `reward` (a number or true/false) each. A line may also have answer,
    question_id, task, prompt_tokens, temperature, top_k, top_p and min_p, and a completion source (who generated it), finish_reason,
    is_expert (true for a demonstration to imitate), tokens, and logprobs (one per token, at the sampling temperature over the full
    vocabulary: the behaviour policy's). Other fields are kept in the group's `extra`.

    Args:
      path: the file.
      folder: the rollout folder to add to.
      mapping: the file's own names by the names above, {"prompt": "question", "text": "response"}.
      task: task name for lines that give none.
      contains: benchmark splits that the questions come from, as ("gsm8k/test",), so that nobody evaluates on them unknowingly.
      metadata: further provenance.

    Returns:
      The name of the sealed data set.

    Raises:
      UsageError: a name in `mapping` that is not listed above, or a file that is already in the folder.
      DataError: the file is missing or empty, or a line is wrong; the message names line, field and fix, and nothing is sealed.
    """
    return import_rows("jsonl", path, folder, mapping=mapping, task=task, contains=contains, metadata=metadata)[0]


def import_rows(
    kind: str,
    path: str | os.PathLike[str],
    folder: str | os.PathLike[str],
    *,
    mapping: Mapping[str, str] | None = None,
    task: str = "",
    contains: tuple[str, ...] = (),
    metadata: Mapping[str, Any] | None = None,
) -> list[str]:
    """Imports rows of any format in `sources.READERS`.

    A row is a group with a list of completions, as for `import_jsonl`, or a single completion; then consecutive rows with the same prompt
    (and step, which TRL logs), or the same value of the column that the mapping calls `group`, are one group. Rows that this package
    exported become the data sets that they were, provenance included.

    Args:
      kind: jsonl, parquet (a file, or a folder of them), huggingface (a folder of `datasets.save_to_disk`) or trl (completions that its
        trainers logged: the reward is the sum of the reward columns, which become components).
      path: the file or folder.
      folder: the rollout folder, made when it does not exist.
      mapping, task, contains, metadata: as for `import_jsonl`.

    Returns:
      The names of the sealed data sets.

    Raises:
      UsageError, DataError: as for `import_jsonl`.
    """
    path, names = Path(path).expanduser(), _names(mapping or {})
    source = _source(path, kind, folder)
    found = _present(path, sources.READERS[kind](path))
    place, first = next(found)
    found = itertools.chain([(place, first)], found)
    if rows.is_own(first):
        return writer.write_all(folder, _own_datasets(path, found, source, {**(metadata or {})}, contains))
    if kind == "trl" or completion_rows.is_one(first, names):
        gathered = completion_rows.gathered(path, found, names, trl=kind == "trl")
        groups = (_placed(path, line.place, rows.build, line, parts, here, path.stem, task) for line, parts, here in gathered)
    else:
        groups = (_placed(path, place, _group, path, place, row, names, task) for place, row in found)
    provenance = {"task": task, "contains": list(contains), **(metadata or {}), **source}
    return writer.write_all(folder, [writer.DataSet(groups=groups, writer=kind, metadata=provenance)])


def import_gsm8k_solutions(path: str | os.PathLike[str], folder: str | os.PathLike[str]) -> str:
    """Imports GSM8K's example_model_solutions.jsonl: four models' solutions of each of its 1,319 test questions, with correctness.

    The file is https://github.com/openai/grade-school-math, grade_school_math/data/example_model_solutions.jsonl (Cobbe et al., "Training
    Verifiers to Solve Math Word Problems", https://arxiv.org/abs/2110.14168). A group is a question; its completions come from
    GSM8K_MODELS, in that order, with reward 1 where the file says that the solution is correct and 0 elsewhere; its answer is the final
    number of the ground truth, without thousands commas. Since the questions are GSM8K's test split, the data set's provenance says
    contains=["gsm8k/test"].

    Returns:
      The name of the sealed data set.

    Raises:
      UsageError: the file is already in the folder.
      DataError: the file is missing or empty, or a line is wrong; the message names line, field and fix, and nothing is sealed.
    """

    def group(line: Line, number: int) -> Group:
        solutions = [Line(line.path, line.place, line.take(model, dict), f"{model}.") for model in GSM8K_MODELS]
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
            extra={"ground_truth": truth} | line.rest,
        )

    path = Path(path).expanduser()
    source = _source(path, "gsm8k-solutions", folder)
    provenance = {"task": "gsm8k", "contains": ["gsm8k/test"], "license": "MIT", "origin": "https://github.com/openai/grade-school-math"}
    found = _present(path, sources.json_lines(path))
    groups = (_placed(path, place, group, Line(path, place, row), int(place.split()[-1])) for place, row in found)
    return writer.write(folder, groups, writer="gsm8k-solutions", metadata=provenance | source)


def _names(mapping: Mapping[str, str]) -> dict[str, str]:
    """The row's name of each column that is looked for."""
    names = {name: name for name in (*rows.GROUP_COLUMNS, *rows.COMPLETION_COLUMNS)}
    known = (*names, *rows.OWN_GROUP_COLUMNS, *rows.OWN_COMPLETION_COLUMNS, "group")
    for name, column in mapping.items():
        if name not in known:
            raise UsageError(f"The mapping renames {name!r}, which is no field of a group; its fields are {', '.join(known)}.")
        if not isinstance(column, str):
            raise UsageError(f"The mapping of {name!r} is {column!r}; give the name of a column.")
    return names | dict(mapping)


def _source(path: Path, kind: str, folder: str | os.PathLike[str]) -> dict[str, Any]:
    """What the metadata says of the file, which the folder does not hold yet."""
    digest = sources.digest(sources.files(path, kind))
    place = places.of(folder)
    for entry in place.tail().new():
        if any(step.get("source_sha256") == digest for step in (entry.metadata, *entry.metadata.get("history", []))):
            raise UsageError(
                f"{path} is already in {place.root} as data set {entry.name}; use what is there, or import into another folder."
            )
    return {"engine": "imported", "format": kind, "source_file": path.name, "source_sha256": digest}


def _group(path: Path, place: str, row: Any, names: dict[str, str], task: str) -> Group | tuple[Group, bytes]:
    return rows.to_group(Line(path, place, row), names, path.stem, task)


def _own_datasets(
    path: Path, found: sources.Rows, source: dict[str, Any], metadata: dict[str, Any], contains: tuple[str, ...]
) -> Iterator[writer.DataSet]:
    """The data sets of exported rows: consecutive ones of the same provenance."""
    names = {name: name for name in (*rows.GROUP_COLUMNS, *rows.COMPLETION_COLUMNS, *rows.OWN_GROUP_COLUMNS, *rows.OWN_COMPLETION_COLUMNS)}

    def provenance(item: tuple[str, Any]) -> str:
        if not rows.is_own(item[1]):
            raise DataError(f"{path}, {item[0]}: field data_set is missing, which the rows before it have; import them separately.")
        return json.dumps(item[1]["data_set"], sort_keys=True)

    for about, items in itertools.groupby(found, provenance):
        said = Line(path, "line 1", json.loads(about), "data_set.")
        fields = {name: said.take(name, kind) for name, kind in (("writer", str), ("policy_version", int), ("metadata", dict))}
        fields["metadata"] |= metadata
        step = {"operation": "import", "data_set": said.take("name", str, ""), "sealed": said.take("created", str, ""), **source}
        fields["metadata"]["history"] = [*fields["metadata"].get("history", []), step]
        if contains:
            fields["metadata"]["contains"] = sorted({*fields["metadata"].get("contains", ()), *contains})
        groups = (_placed(path, place, _group, path, place, row, names, "") for place, row in items)
        yield writer.DataSet(groups=groups, schema_version=said.take("schema_version", str, SCHEMA_VERSION), **fields)


def _placed(path: Path, place: str, make: Callable[..., Any], *arguments: Any) -> Any:
    """What `make` makes of a row; its errors name the place."""
    try:
        return make(*arguments)
    except DataError as error:
        if str(error).startswith(f"{path}, {place}"):
            raise
        raise DataError(f"{path}, {place}: {error}") from error


def _present(path: Path, found: sources.Rows) -> sources.Rows:
    """The rows, of which there is at least one."""
    first = next(found, None)
    if first is None:
        raise DataError(f"{path} holds no groups; write one JSON object a line.")
    return itertools.chain([first], found)
