"""Every JSON value in every field of a stored question: it is read or left out, or refused by
file and record.
"""

import json

import pytest

from grre_jax.errors import DataError
from grre_jax.json_files import json_lines
from grre_jax.tasks.datasets import (
    competition_math,
    gsm8k,
    guru_math,
    questions,
    stored_records,
    toolace,
)

from ... import json_values

VALUES = (
    *json_values.VALUES,
    *r'''"#### 1"|"#### \ud800"|"#### 1e999999999"|"[1"|"\\boxed{x"|"[f(x=1)]"'''.split("|"),
    *r""""[f(x=\ud800)]"|[{"role": "user"}]|[{"role": [], "content": "a"}]""".split("|"),
    *r"""[{"from": [], "value": "a"}]|[{"role": "user", "content": "\ud800"}]""".split("|"),
    *r"""[{"from": "assistant", "value": "[f(a=[[[)]"}]""".split("|"),
    *r"""[{"from": "user", "value": 1}]|{"ground_truth": [[]]}""".split("|"),
    *r"""{"ground_truth": NaN}|{"ground_truth": "\ud800"}""".split("|"),
    '{"ground_truth": 1' + "0" * 400 + "}",
    '{"ground_truth": ' + json.dumps("[" * 100000) + "}",
)
PROMPT = [{"role": "system", "content": "s"}, {"role": "user", "content": "q"}]
TURNS = [{"from": "user", "value": "q"}, {"from": "assistant", "value": "[f(x=1)]"}]
RECORDS = {
    gsm8k.GSM8K: {"question": "q", "answer": "#### 1"},
    competition_math.CompetitionMath: {
        "problem": "p",
        "solution": "\\boxed{1}",
        "type": "Algebra",
        "level": "Level 1",
    },
    guru_math.GuruMath: {
        "prompt": PROMPT,
        "reward_model": {"ground_truth": "1"},
        "ability": "math",
    },
    toolace.ToolACE: {"system": "s", "conversations": TURNS},
}
CASES = [(kind, name) for kind, record in RECORDS.items() for name in (*record, "strange")]


@pytest.mark.parametrize(
    ("kind", "name"), CASES, ids=[f"{kind.__name__}-{name}" for kind, name in CASES]
)
def test_every_json_value_in_every_field(tmp_path, kind, name):
    task = kind(path=tmp_path)
    file = tmp_path / "a.jsonl"
    before, after = json.dumps(RECORDS[kind] | {name: "@@"}).split('"@@"')
    for value in VALUES:
        try:
            ((_, record),) = json_lines([(before + value + after).encode()], file)
            for _, question in task._questions_of("train", record, "here"):
                texts = (question.question_id, question.prompt, question.answer)
                assert all(isinstance(text, str) for text in texts)
        except DataError as error:
            assert str(error).startswith(("here", f"{file}, line 1")), (value[:100], str(error))
        except Exception as error:
            raise AssertionError(f"{value[:100]}: {error!r}") from error


@pytest.mark.parametrize("value", [value for value in VALUES if not value.startswith('{"')])
def test_every_json_value_as_a_file(tmp_path, value):
    for file in (tmp_path / "a.json", tmp_path / "a.jsonl"):
        file.write_text(value)
        try:
            records = stored_records.read_records(file)
            assert all(isinstance(record, dict) for record in records)
        except DataError as error:
            assert str(error).startswith(str(file))


USER = {"role": "user", "content": "x"}
TRUTH = {"ground_truth": "1"}


@pytest.mark.parametrize(
    "kind, record, field",
    [
        (gsm8k.GSM8K, {"question": "q"}, "answer"),
        (competition_math.CompetitionMath, {"question": "p"}, "problem"),
        (guru_math.GuruMath, {"prompt": "text", "reward_model": TRUTH}, "prompt"),
        (guru_math.GuruMath, {"prompt": [USER | {"role": "assistant"}]}, "prompt"),
        (guru_math.GuruMath, {"prompt": [USER]}, "reward_model"),
        (toolace.ToolACE, {"system": 1, "conversations": []}, "system"),
        (toolace.ToolACE, {"system": "s", "conversations": [{"from": "robot"}]}, "conversations"),
        (questions.Questions, {"text": "q"}, "prompt or question or problem"),
        (questions.Questions, {"question": [USER, USER | {"role": "robot"}]}, "question"),
        (questions.Questions, {"question": [USER | {"content": 3}]}, "content"),
    ],
)
def test_wrong_fields_are_named(tmp_path, kind, record, field):
    with pytest.raises(DataError, match=f"^here: .*{field}.*: expected"):
        list(kind(path=tmp_path)._questions_of("train", record, "here"))
