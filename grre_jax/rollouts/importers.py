"""Bringing completions from elsewhere into a rollout folder.

An importer reads its file line by line and seals one data set: all of the file, or nothing when a line is wrong. What was imported
has no behaviour log-probs unless the file gives them; objectives that need them refuse it by name.
"""

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from grre_jax.errors import DataError, UsageError
from grre_jax.rollouts import manifest, writer
from grre_jax.rollouts.schema import Group

GSM8K_MODELS = ("6b_finetuning", "6b_verification", "175b_finetuning", "175b_verification")

# The names that a line of groups has by default, by what they mean; `mapping` renames them.
GROUP_COLUMNS = ("prompt", "completions", "answer", "question_id", "task", "prompt_tokens", "temperature", "top_k", "top_p")
COMPLETION_COLUMNS = ("text", "reward", "tokens", "logprobs", "source", "finish_reason")


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
    question_id, task, prompt_tokens, temperature, top_k and top_p, and a completion source (who generated it), finish_reason, tokens,
    and logprobs (one per token, at the sampling temperature over the full vocabulary: the behaviour policy's). Other fields are kept in
    the group's `extra`.

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
    names = {name: name for name in (*GROUP_COLUMNS, *COMPLETION_COLUMNS)}
    for name in mapping or {}:
        if name not in names:
            raise UsageError(f"The mapping renames {name!r}, which is no field of a group; its fields are {', '.join(names)}.")
    names |= mapping or {}
    stem = Path(path).stem
    provenance = {"task": task, "contains": list(contains), **(metadata or {})}
    return _import(Path(path), folder, "jsonl", lambda line: _jsonl_group(line, names, stem, task), provenance)


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

    def group(line: "_Line") -> Group:
        solutions = [_Line(line.path, line.number, line.take(model, dict), f"{model}.") for model in GSM8K_MODELS]
        truth = line.take("ground_truth", str)
        answer = re.search(r"A:\s*(-?[\d,]*\.?\d+)\s*$", truth)
        if answer is None:
            line.fail("ground_truth", f"does not end in 'A:' and a number ({truth[-40:]!r})")
        return Group(
            group_id=f"gsm8k-solutions:{line.number}",
            prompt=line.take("question", str),
            texts=[solution.take("solution", str) for solution in solutions],
            rewards=[float(solution.take("is_correct", bool)) for solution in solutions],
            task="gsm8k",
            question_id=f"gsm8k/test/{line.number - 1}",
            answer=answer[1].replace(",", ""),
            sources=list(GSM8K_MODELS),
            extra={"ground_truth": truth} | line.rest,
        )

    provenance = {"task": "gsm8k", "contains": ["gsm8k/test"], "license": "MIT", "origin": "https://github.com/openai/grade-school-math"}
    return _import(Path(path), folder, "gsm8k-solutions", group, provenance)


class _Line:
    """One JSON object of a file, whose fields are taken one by one; errors name file, line and field. `rest` is what nobody took."""

    def __init__(self, path: Path, number: int, value: Any, prefix: str = "") -> None:
        self.path, self.number, self.prefix = path, number, prefix
        if not isinstance(value, dict):
            raise DataError(f"{path}, line {number}: {prefix.rstrip('.') or 'the line'} is {_json_type(value)}; give a JSON object.")
        self.rest = dict(value)

    def take(self, name: str, kinds: type | tuple[type, ...], default: Any = ...) -> Any:
        value = self.rest.pop(name, ...)
        if value is ... or (value is None and default is not ...):
            if default is ...:
                has = ", ".join(self.rest) or "nothing else"
                self.fail(name, f"is missing (it has {has}); add it, or map another field to it")
            return default
        kinds = kinds if isinstance(kinds, tuple) else (kinds,)
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            self.fail(name, f"is {_json_type(value)}; give {' or '.join(dict.fromkeys(_JSON_NAMES[kind] for kind in kinds))}")
        return value

    def fail(self, name: str, problem: str) -> None:
        raise DataError(f"{self.path}, line {self.number}: field {self.prefix}{name} {problem}.")


_JSON_NAMES = {str: "a string", bool: "true or false", int: "a number", float: "a number", list: "a list", dict: "an object"}


def _json_type(value: Any) -> str:
    return "null" if value is None else _JSON_NAMES[type(value)]


def _jsonl_group(line: _Line, names: dict[str, str], stem: str, task: str) -> Group:
    completions = line.take(names["completions"], list)
    if not completions:
        line.fail(names["completions"], "is empty; give at least one completion")
    parts = [_Line(line.path, line.number, item, f"{names['completions']}[{i}].") for i, item in enumerate(completions)]
    texts = [part.take(names["text"], str) for part in parts]
    rewards = [float(part.take(names["reward"], (bool, int, float))) for part in parts]
    tokens = _all_or_none(parts, names["tokens"])
    logprobs = _all_or_none(parts, names["logprobs"])
    prompt_tokens = line.take(names["prompt_tokens"], list, None)
    if (tokens is None) != (prompt_tokens is None):
        line.fail(names["prompt_tokens"], f"and the completions' {names['tokens']} belong together; give both or neither")
    _check_logprobs(parts, names["logprobs"], tokens, logprobs)
    return Group(
        group_id=f"{stem}:{line.number}",
        prompt=line.take(names["prompt"], str),
        texts=texts,
        rewards=rewards,
        task=line.take(names["task"], str, task),
        question_id=str(line.take(names["question_id"], (str, int), f"{stem}/{line.number}")),
        answer=str(line.take(names["answer"], (str, int, float), "")),
        prompt_tokens=prompt_tokens,
        lengths=None if tokens is None else [len(row) for row in tokens],
        tokens=None if tokens is None else [token for row in tokens for token in row],
        behavior_logprobs=None if logprobs is None else [value for row in logprobs for value in row],
        sources=[part.take(names["source"], str, "imported") for part in parts],
        finish_reasons=[part.take(names["finish_reason"], str, "imported") for part in parts],
        temperature=float(line.take(names["temperature"], (int, float), 1.0)),
        top_k=line.take(names["top_k"], int, 0),
        top_p=float(line.take(names["top_p"], (int, float), 1.0)),
        extra=line.rest | ({"completions": [part.rest for part in parts]} if any(part.rest for part in parts) else {}),
    )


def _all_or_none(parts: list[_Line], name: str) -> list[list[Any]] | None:
    """A list field that either every completion has or none."""
    rows = [part.take(name, list, None) for part in parts]
    if all(row is None for row in rows):
        return None
    for part, row in zip(parts, rows, strict=True):
        if row is None:
            part.fail(name, "is missing where another completion of the group has it; give it for all or none")
    return rows


def _check_logprobs(parts: list[_Line], name: str, tokens: list[list[int]] | None, logprobs: list[list[float]] | None) -> None:
    if logprobs is None:
        return
    for k, part in enumerate(parts):
        if tokens is None or len(logprobs[k]) != len(tokens[k]):
            count = 0 if tokens is None else len(tokens[k])
            part.fail(name, f"has {len(logprobs[k])} values for {count} tokens; give one log-probability per token")


def _import(path: Path, folder: str | os.PathLike[str], kind: str, group: Callable[[_Line], Group], provenance: dict[str, Any]) -> str:
    path = path.expanduser()
    if not path.is_file():
        raise DataError(f"{path} does not exist or is not a file; check the path.")
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    root = Path(folder).expanduser()
    for entry in manifest.load(root):
        if entry.metadata.get("source_sha256") == digest:
            raise UsageError(f"{path} is already in {root} as data set {entry.name}; use what is there, or import into another folder.")
    metadata = provenance | {"engine": "imported", "format": kind, "source_file": path.name, "source_sha256": digest}
    return writer.write(root, _groups(path, group), writer=kind, policy_version=-1, metadata=metadata)


def _groups(path: Path, group: Callable[[_Line], Group]) -> Iterator[Group]:
    empty = True
    with open(path, "rb") as file:
        for number, data in enumerate(file, start=1):
            if not data.strip():
                continue
            empty = False
            try:
                value = json.loads(data.decode("utf-8-sig" if number == 1 else "utf-8"))
            except (ValueError, RecursionError) as error:  # ValueError: bad UTF-8 too
                raise DataError(f"{path}, line {number}: not JSON ({error}); write one JSON object a line.") from error
            try:
                yield group(_Line(path, number, value))
            except DataError as error:
                place = f"{path}, line {number}"
                if str(error).startswith(place):
                    raise
                raise DataError(f"{place}: {error}") from error
    if empty:
        raise DataError(f"{path} holds no groups; write one JSON object a line.")
