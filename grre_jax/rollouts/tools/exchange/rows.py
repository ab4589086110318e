"""A group as one row of a JSONL or Parquet file, with completions as a list of objects.

    {"prompt": "2+2=", "answer": "4", "completions": [{"text": "4", "reward": 1}, {"text": "5",
    "reward": 0}]}

A row that this package exported also has `data_set`, the provenance of the group in the manifest,
and every field of the record: exporting and importing it is the identity, bit for bit. If the
columns cannot express a record (turns, a NaN among log-probs), the row has the whole `record` too,
which takes precedence.
"""

import base64
import binascii
import itertools
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from grre_jax.errors import DataError
from grre_jax.rollouts import encoding
from grre_jax.rollouts.schema import FIELDS, LOGPROB_FIELDS, Group, json_number
from grre_jax.rollouts.tools.exchange import messages, turns
from grre_jax.rollouts.tools.exchange.sources import Line
from grre_jax.tasks.judging import FIELD, REASONS

if TYPE_CHECKING:
    from grre_jax.tasks import Tokenizer

LOGPROB_COLUMNS = {
    field: "logprobs" if field == "behavior_logprobs" else field for field in LOGPROB_FIELDS
}
# The names that a row has by default; a mapping renames them.
GROUP_COLUMNS = (
    *("prompt", "completions", "answer", "question_id", "task", "group_id"),
    *("position", "attempt", "prompt_tokens"),
    *("temperature", "top_k", "top_p", "min_p", "seed", "logprob_dtype", "engine", "extra"),
)
COMPLETION_COLUMNS = (
    *("text", "reward", "tokens", "mask", *LOGPROB_COLUMNS.values()),
    *("finish_reason", "policy_version", "token_versions", "components", "source", "is_expert"),
    "turn_rewards",
)
EXPORT_COLUMNS = ("data_set", "record")
COLUMNS = (*GROUP_COLUMNS, *COMPLETION_COLUMNS, *EXPORT_COLUMNS)
REQUIRED = ("prompt", "completions", "text", "reward")
# Names of records and rows: kept in `extra`, a field in the wrong object would be lost.
_RESERVED = tuple(dict.fromkeys((*COLUMNS, *(name for name, _, _ in FIELDS))))
# Other libraries' names of a mask. Kept in `extra`, it would be lost, and observations imitated.
_MASKS = (
    *("completion_mask", "response_mask", "loss_mask", "action_mask"),
    *("assistant_mask", "assistant_masks", "generation_mask", "tool_mask"),
)


def of_group(group: Group, data_set: dict[str, Any]) -> dict[str, Any]:
    """Returns the row of a group: JSON values, and under "record" the bytes, if the other fields
    cannot express all of it.
    """
    has_tokens = len(group.tokens) > 0 or len(group.prompt_tokens) > 0
    made = ("completions", "prompt_tokens")
    row = {name: getattr(group, name) for name in GROUP_COLUMNS if name not in made}
    if has_tokens:
        row["prompt_tokens"] = group.prompt_tokens.tolist()
    row["completions"] = [_completion(group, k, has_tokens) for k in range(group.num_completions)]
    row["data_set"] = data_set
    logprobs = [getattr(group, name) for name in LOGPROB_FIELDS]
    finite = all(values is None or np.isfinite(values).all() for values in logprobs)
    if len(group.turn_counts) or not finite:
        row["record"] = encoding.encode(group)
    return row


def _completion(group: Group, k: int, has_tokens: bool) -> dict[str, Any]:
    said: dict[str, Any] = {
        "text": group.texts[k],
        "reward": json_number(group.rewards[k]),
        "finish_reason": group.finish_reasons[k],
        "policy_version": int(group.policy_version[k]),
        "source": group.sources[k],
        "is_expert": bool(group.is_expert[k]),
    }
    if group.components:
        said["components"] = {name: json_number(row[k]) for name, row in group.components.items()}
    if has_tokens:
        start, end = (int(offset) for offset in group.offsets[k : k + 2])
        said["tokens"] = group.tokens[start:end].tolist()
        for name, column in LOGPROB_COLUMNS.items():
            if getattr(group, name) is not None:
                values = getattr(group, name)[start:end].tolist()
                said[column] = [value if math.isfinite(value) else None for value in values]
        if len(group.token_versions):
            said["token_versions"] = group.token_versions[start:end].tolist()
        if not group.mask.all():
            said["mask"] = group.mask[start:end].tolist()
    return said


def is_own(row: Any) -> bool:
    """True if this package exported the row."""
    return isinstance(row, dict) and isinstance(row.get("data_set"), dict) and "completions" in row


def to_group(line: Line, stem: str, task: str, tokenizer: "Tokenizer | None" = None) -> Group:
    """Returns the group of a row with a list of completions.

    Args:
        line: the row.
        stem: begins the identifiers of groups and questions that have none.
        task: the task's name where the row has none.
        tokenizer: renders chat messages.

    Raises:
        DataError: a field is missing or wrong; the message names file, line, field and fix.
    """
    if (stored := line.take("record", (str, bytes), None)) is not None:
        try:
            data = base64.b64decode(stored, validate=True) if isinstance(stored, str) else stored
            group = encoding.decode(data)
            group.validate()
            return group
        except (binascii.Error, ValueError, DataError) as error:
            line.fail("record", f"is not a record in base64 ({error}); export the group again")
    completions = line.take("completions", list)
    if not completions:
        line.fail("completions", "is empty; give at least one completion")
    column = line.names.get("completions") or "completions"
    parts = [
        Line(line.path, line.location, item, f"{column}[{i}].", line.names)
        for i, item in enumerate(completions)
    ]
    return build(line, parts, stem, task, tokenizer)


def build(
    line: Line, parts: list[Line], stem: str, task: str, tokenizer: "Tokenizer | None" = None
) -> Group:
    """Returns the group of the fields of a row and of its completions.

    See `to_group` for the other arguments and the errors.
    """
    number = line.location.split()[-1]
    rewards = [part.number_or_nan("reward", or_truth=True) for part in parts]
    fields: dict[str, Any] = {
        "rewards": rewards,
        "finish_reasons": [part.take("finish_reason", str, "imported") for part in parts],
        "policy_version": [part.take("policy_version", int, -1) for part in parts],
        "sources": [part.take("source", str, "imported") for part in parts],
        "is_expert": [part.take("is_expert", bool, False) for part in parts],
        "components": _components(line, parts, rewards),
        "group_id": str(line.take("group_id", (str, int), f"{stem}:{number}")),
        "question_id": str(line.take("question_id", (str, int), f"{stem}/{number}")),
        "task": line.take("task", str, task),
        "answer": _answer(line),
        "position": line.take("position", int, -1),
        "attempt": line.take("attempt", int, 0),
        "seed": line.take("seed", int, -1),
        "top_k": line.take("top_k", int, 0),
        "temperature": line.number("temperature", 1.0),
        "top_p": line.number("top_p", 1.0),
        "min_p": line.number("min_p", 0.0),
        "logprob_dtype": line.take("logprob_dtype", str, ""),
        "engine": line.take("engine", str, ""),
    }
    fields |= _token_fields(line, parts)
    turn_rewards = _all_or_none(parts, "turn_rewards", (int, float))
    _check_ids(line, parts, fields, tokenizer)
    _decode_missing(line, parts, fields, tokenizer)
    fields |= messages.texts(line, parts, fields, tokenizer)
    fields |= turns.turn_fields(parts, fields, turn_rewards, tokenizer)
    extra = _extra(line, parts, fields.get("extra", {}))
    return Group(**fields | {"extra": _failures(rewards) | extra})


def _failures(rewards: list[float]) -> dict[str, list[str]]:
    """Returns the fields of `extra` about completions without a reward; none if each has one."""
    missing = [math.isnan(reward) for reward in rewards]
    if not any(missing):
        return {}
    return {
        FIELD: ["none" if here else "" for here in missing],
        REASONS: ["imported without a reward" if here else "" for here in missing],
    }


def _check_ids(
    line: Line, parts: list[Line], fields: dict[str, Any], tokenizer: "Tokenizer | None"
) -> None:
    """Refuses ids that the tokenizer does not have."""
    if tokenizer is None:
        return
    size = tokenizer.vocab_size
    for part, name in ((line, "prompt_tokens"), (parts[0], "tokens")):
        for found in fields[name] or ():
            if not 0 <= found < size:
                part.fail(
                    name,
                    f"holds {found}, and the tokenizer has 0 to {size - 1}; name the tokenizer that"
                    " made it",
                )


def _decode_missing(
    line: Line, parts: list[Line], fields: dict[str, Any], tokenizer: "Tokenizer | None"
) -> None:
    """Gives a prompt and completions that have tokens alone their texts."""
    if tokenizer is None or fields["tokens"] is None:
        return
    starts = [0, *itertools.accumulate(fields["lengths"])]
    ids = [fields["tokens"][start:end] for start, end in itertools.pairwise(starts)]
    texts = [("text", part, tokens) for part, tokens in zip(parts, ids, strict=True)]
    prompt = messages.without_start(fields["prompt_tokens"], tokenizer)
    for name, part, tokens in [("prompt", line, prompt), *texts]:
        column = part.names.get(name) or name
        if part.rest.get(column) is None:
            part.rest[column] = tokenizer.decode(tokens)


def _answer(line: Line) -> str:
    """Returns the true answer; a number is written out."""
    answer = line.take("answer", (str, int, float), "")
    if isinstance(answer, float) and not math.isfinite(answer):
        line.fail("answer", f"is {answer}; give a string or a finite number")
    return str(answer)


def _components(line: Line, parts: list[Line], rewards: list[float]) -> dict[str, list[float]]:
    """Returns the reward components by name, one number per completion: NaN where it is null, or
    the completion has no reward.
    """
    rows = []
    for part in parts:
        said = part.take("components", (dict, list), {})
        if isinstance(said, list) and said:  # Parquet's empty map is an empty list
            part.fail("components", "is a list; give an object of numbers by name")
        prefix = f"{part.prefix}{part.names.get('components') or 'components'}."
        rows.append(Line(part.path, part.location, dict(said), prefix))
    judged = [row for row, reward in zip(rows, rewards, strict=True) if not math.isnan(reward)]
    names = list((judged or rows)[0].rest)
    if any(row.rest.keys() != set(names) for row in judged):
        line.fail(
            "components", "has other names in one completion than in another; give all the same"
        )
    components = {
        name: [
            math.nan if math.isnan(reward) else row.number_or_nan(name, or_truth=True)
            for row, reward in zip(rows, rewards, strict=True)
        ]
        for name in names
    }
    for row, value in zip(rows, components.get("correct", ()), strict=False):
        if value not in (0, 1) and not math.isnan(value):
            row.fail("correct", f"is {value:g}; give true or false")
    return components


def _extra(line: Line, parts: list[Line], own: dict[str, Any]) -> dict[str, Any]:
    """Returns the fields that are not a record's.

    Args:
        line, parts: of which everything that is read was taken.
        own: what the import itself adds.
    """
    extra = line.take("extra", dict, {})
    for part in (line, *parts):
        _refuse_reserved(part)
    rest = [{name: v for name, v in part.rest.items() if v is not None} for part in parts]
    kept = {"completions": rest} if any(rest) else {}
    added = own | kept
    twice = (extra.keys() & (line.rest.keys() | added.keys())) | (added.keys() & line.rest.keys())
    for name in sorted(twice):
        line.fail(name, "would be in the group's `extra` twice; rename it")
    return extra | line.rest | added


def _refuse_reserved(part: Line) -> None:
    """Refuses a field of records and rows that was not taken from this object, and a mask under
    another library's name; drops those that are null.
    """
    masks = _MASKS if part.names.get("mask", "mask") == "mask" else ()
    for name in (*_RESERVED, *masks):
        column = part.names.get(name, name)
        if column is None or part.rest.pop(column, None) is None:
            continue
        part.fail(
            name,
            "is not read here: move it to its own object, give all rows of a group one value of it,"
            " rename it, or map it with --mapping (docs/rollouts.md)",
        )


def _token_fields(line: Line, parts: list[Line]) -> dict[str, Any]:
    """Returns the tokens and the fields with one value per token."""
    for part in parts:
        column = part.names.get("logprobs", "logprobs")
        if column is not None and part.rest.get(column) is None:
            part.rest[column] = part.rest.pop("behavior_logprobs", None)
    tokens = _all_or_none(parts, "tokens", (int,))
    values = {
        field: _all_or_none(parts, column, kinds, tokens)
        for field, column, kinds in (
            ("mask", "mask", (int, bool)),
            ("token_versions", "token_versions", (int,)),
            *((field, column, (int, float)) for field, column in LOGPROB_COLUMNS.items()),
        )
    }
    prompt_tokens = line.numbers("prompt_tokens")
    if (tokens is None) != (prompt_tokens is None):
        line.fail(
            "prompt_tokens",
            f"and the completions' {line.names.get('tokens') or 'tokens'} belong together; give"
            " both or neither",
        )

    def flat(rows: list[list[Any]] | None) -> list[Any] | None:
        return None if rows is None else [value for row in rows for value in row]

    fields: dict[str, Any] = {name: flat(rows) for name, rows in values.items()}
    lengths = None if tokens is None else [len(row) for row in tokens]
    return fields | {"prompt_tokens": prompt_tokens, "lengths": lengths, "tokens": flat(tokens)}


def _all_or_none(
    parts: list[Line], name: str, kinds: tuple[type, ...], tokens: Any = ...
) -> list[list[Any]] | None:
    """Returns a list of numbers that either every completion has or none, as long as its `tokens`
    if these are given.
    """
    rows = [part.numbers(name, kinds) for part in parts]
    if all(row is None for row in rows):
        return None
    if None in rows:
        missing = "is missing where another completion of the group has it"
        parts[rows.index(None)].fail(name, f"{missing}; give it for all or none")
    for k, row in enumerate(rows if tokens is not ... else ()):
        if len(row) != (count := len(tokens[k]) if tokens else 0):
            parts[k].fail(name, f"has {len(row)} values for {count} tokens; give one per token")
    return rows
