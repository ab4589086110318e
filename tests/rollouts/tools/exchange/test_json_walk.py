"""Every JSON value in every field of every row that is imported: it is read, or refused by file,
line and field.
"""

import json
from typing import Any

import pytest

from grre_jax.domains import parse
from grre_jax.errors import UsageError
from grre_jax.rollouts.tools.exchange import importers, rows, sources

from .... import json_values

VALUES = (
    *json_values.VALUES,
    *r"""1|2|4.0|1e39|"0"|"eA=="|[1]|[0]|[-1]|[true]|[1.5]|[NaN]""".split("|"),
    *r"""[1, [2]]|["a"]|["\ud800"]|{"a": "b"}|{"a": NaN}|{"a": [1]}""".split("|"),
    *r"""{"": null}|[{"role": "user"}]|[{"role": 1, "content": "a"}]""".split("|"),
    *r"""[{"role": "assistant", "content": "a"}]|[{"role": "user", "content": "a"}]""".split("|"),
    *r"""[{"role": "assistant", "content": null}]""".split("|"),
    '[{"role": "assistant", "tool_calls": [1]}]',
    *(str(2**31), str(2**63), "[1.5, 1" + "0" * 400 + "]", '{"a": 1' + "0" * 400 + "}"),
)
COMPLETION = {
    "text": "t",
    "reward": 1.0,
    "tokens": [4],
    "mask": [1],
    "finish_reason": "stop",
    "policy_version": 3,
    "token_versions": [3],
    **dict.fromkeys((name for name in rows.PER_TOKEN if "logprobs" in name), [-1.0]),
    "components": {"a": 1.0},
    "source": "s",
    "is_expert": False,
}
ROW = {
    **dict.fromkeys(("prompt", "answer", "question_id", "task", "group_id", "engine"), "x"),
    **{"position": 1, "attempt": 0, "prompt_tokens": [1], "seed": 1, "logprob_dtype": "float32"},
    **{"temperature": 0.5, "top_k": 1, "top_p": 0.9, "min_p": 0.1, "extra": {"x": 1}},
}
ABOUT = {"name": "n", "writer": "w", "policy_version": 3, "schema_version": "1.1.0", "created": "c"}
METADATA = {"task": "t", "contains": ["gsm8k/test"], "history": [{"operation": "x"}]}
OWN = (
    ROW
    | {"texts": ["t"], "rewards": [1.0], "tokens": [4], "lengths": [1], "mask": [1]}
    | {"components": {"a": [1.0]}, "data_set": ABOUT | {"metadata": METADATA}}
)
TRL = {"step": 1, "prompt": "p", "completion": "c", "accuracy": 1.0, "advantage": 0.5}
SOLUTIONS = {"question": "q", "ground_truth": "A: 7"} | {
    model: {"is_correct": True, "solution": "s"} for model in sources.GSM8K_MODELS
}
STRANGE = (
    *("strange", "behavior_logprobs", "rewards", "lengths", "prompt_messages", "tools"),
    *("data_set", "completion", "step"),
)


def paths(row, *before):
    """The place of every field of a row, nested ones too, and of fields that it does not have."""
    found = []
    for name, value in row.items() if isinstance(row, dict) else enumerate(row):
        found.append((*before, name))
        if isinstance(value, dict) or (
            isinstance(value, list) and value and isinstance(value[0], dict)
        ):
            found += paths(value, *before, name)
    return found


def lines(row, path):
    """The row as a line of JSON for each value in the field at `path`."""
    row = json.loads(json.dumps(row))
    inner = row
    for step in path[:-1]:
        inner = inner[step]
    inner[path[-1]] = "@@"
    before, after = json.dumps(row).split('"@@"')
    return [before + value + after for value in VALUES]


GROUP_ROW = ROW | {"completions": [COMPLETION, COMPLETION]}
FORMS = {
    "groups": (GROUP_ROW, [(name,) for name in STRANGE]),
    "completions": (ROW | COMPLETION, [(name,) for name in STRANGE]),
    "export": (OWN, [("strange",)]),
    "solutions": (SOLUTIONS, [("strange",), ("completions",)]),
    "trl": (TRL, [(name,) for name in ("components", "reward", "group_id", "strange")]),
}
FORMS["groups"][1].extend(("completions", 0, n) for n in (*STRANGE, "temperature", "extra"))
CASES = [(form, path) for form, (row, more) in FORMS.items() for path in [*paths(row), *more]]


@pytest.mark.slow
@pytest.mark.parametrize(("form", "path"), CASES, ids=str)
def test_every_json_value_in_every_field(walk, form, path):
    kind = {"solutions": "gsm8k-solutions", "trl": "trl"}.get(form, "jsonl")
    walk(kind, lines(FORMS[form][0], path))


def test_every_json_value_as_a_row_and_as_a_second_row(walk):
    assert walk("jsonl", VALUES) == 0
    for form in (GROUP_ROW, ROW | COMPLETION, OWN):
        texts = [f"{json.dumps(form)}\n{value}" for value in VALUES]
        assert walk("jsonl", texts, "line 2") == 0


def test_every_json_value_as_a_mapping():
    nested = [f'{{"{name}": {value}}}' for name in ("prompt", "mask") for value in VALUES]
    for text in [*VALUES, *nested]:
        try:
            mapping = parse("mapping", dict[str, Any], text)
            importers._column_names(importers._checked_mapping(mapping))
        except UsageError as error:
            assert "apping" in str(error)
