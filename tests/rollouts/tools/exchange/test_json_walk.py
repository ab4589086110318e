"""Every JSON value in every field of every row that is imported: it is read, or refused by file,
line and field.
"""

import io
import json
import re

import pyarrow
import pyarrow.parquet
import pytest

from grre_jax.errors import DataError, UsageError
from grre_jax.rollouts import encoding, writer
from grre_jax.rollouts.tools import commands
from grre_jax.rollouts.tools.exchange import importers, rows, sources

DEEP = "[" * 400 + "]" * 400
VALUES = (
    *(
        "null",
        "true",
        "false",
        "0",
        "1",
        "-1",
        "2",
        "1.5",
        "4.0",
        "-0.5",
        "1e400",
        "-1e400",
        "NaN",
        "1e39",
        "1e300",
    ),
    *("1" + "0" * 30, "1" + "0" * 400, "-1" + "0" * 400, str(2**31), str(2**63), "9" * 5000),
    *('""', '"text"', '"0"', '"0x7fc00000"', '"0x7fc0"', '"\\ud800"', '"é\\u0000"', '"eA=="'),
    *(
        "[]",
        "[[]]",
        "[1]",
        "[0]",
        "[-1]",
        "[null]",
        "[true]",
        "[1.5]",
        "[NaN]",
        "[1e400]",
        '[1, "a"]',
        "[1, [2]]",
        '["a"]',
    ),
    *(
        '["0x7fc00000"]',
        "[1" + "0" * 400 + "]",
        "[1.5, 1" + "0" * 400 + "]",
        '["\\ud800"]',
        "[{}]",
        '[{"role": "user"}]',
    ),
    *(
        '[{"role": 1, "content": "a"}]',
        '[{"role": "assistant", "content": "a"}]',
        '[{"role": "user", "content": "a"}]',
    ),
    *(
        '[{"role": "assistant", "content": null}]',
        '[{"role": "assistant", "tool_calls": [1]}]',
        DEEP,
        "[" * 100000,
    ),
    *(
        "{}",
        '{"a": 1}',
        '{"a": "b"}',
        '{"a": NaN}',
        '{"a": [1]}',
        '{"\\ud800": 1}',
        '{"a": 1' + "0" * 400 + "}",
        '{"": null}',
    ),
)
COMPLETION = {
    **{
        "text": "t",
        "reward": 1.0,
        "tokens": [4],
        "mask": [1],
        "finish_reason": "stop",
        "policy_version": 3,
        "token_versions": [3],
    },
    **dict.fromkeys(rows.LOGPROB_COLUMNS.values(), [-1.0]),
    **{"components": {"a": 1.0}, "source": "s", "is_expert": False},
}
ROW = {
    **{
        "prompt": "p",
        "answer": "a",
        "question_id": "q",
        "task": "t",
        "group_id": "g",
        "position": 1,
        "attempt": 0,
    },
    **{"prompt_tokens": [1], "temperature": 0.5, "top_k": 1, "top_p": 0.9, "min_p": 0.1, "seed": 1},
    **{"logprob_dtype": "float32", "engine": "e", "extra": {"x": 1}},
}
ABOUT = {"name": "n", "writer": "w", "policy_version": 3, "schema_version": "1.1.0", "created": "c"}
METADATA = {
    "task": "t",
    "contains": ["gsm8k/test"],
    "history": [{"operation": "x"}],
    "tokenizer": "0" * 16,
}
OWN = ROW | {"completions": [COMPLETION], "data_set": ABOUT | {"metadata": METADATA}}
TRL = {
    "step": 1,
    "prompt": "p",
    "completion": "c",
    "accuracy": 1.0,
    "advantage": 0.5,
    "temperature": 0.7,
}
SOLUTIONS = {"question": "q", "ground_truth": "A: 7"} | {
    model: {"is_correct": True, "solution": "s"} for model in importers.GSM8K_MODELS
}
STRANGE = (
    "strange",
    "behavior_logprobs",
    "rewards",
    "lengths",
    "prompt_messages",
    "tools",
    "data_set",
    "record",
    "completion",
    "step",
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


def drain(folder, datasets):
    """Takes in data sets without writing them; what a record holds is what was to be written."""
    for dataset in datasets:
        writer._provenance(dataset)
        for group in dataset.groups:
            group.validate()
            assert encoding.decode(encoding.encode(group)).num_completions == group.num_completions
    return ["x"]


@pytest.fixture
def imported(tmp_path, monkeypatch):
    """`imported(kind, path, text=None)`: imports a file, or a text as if it were the file's,
    without writing.
    """
    monkeypatch.setattr(writer, "write_all", drain)
    monkeypatch.setattr(
        writer,
        "write",
        lambda folder, groups, **about: drain(folder, [writer.DataSet(groups=groups, writer="w")]),
    )

    def run(kind, path, text=None):
        with monkeypatch.context() as files:
            if text is not None:
                files.setattr(
                    sources,
                    "open",
                    lambda *_: io.BytesIO(text.encode(errors="surrogatepass")),
                    raising=False,
                )
                files.setattr(importers, "_source", lambda *_: {})
            if kind == "gsm8k-solutions":
                return importers.import_gsm8k_solutions(path, tmp_path / "none")
            return importers.import_rows(kind, path, tmp_path / "none", task="t")

    return run


def walk(imported, kind, path, texts, fields, place="line 1"):
    """Imports each text; returns how many were read."""
    read = 0
    for text in texts:
        try:
            imported(kind, path, text)
            read += 1
        except (DataError, UsageError) as error:
            message = str(error)
            assert message.startswith(f"{path}, {place}"), (text[:200], message)
            assert "not JSON" in message or any(
                re.search(rf"\b{field}", message) for field in fields
            ), (text[:200], message)
        except Exception as error:
            raise AssertionError(f"{text[:300]}: {error!r}") from error
    return read


SAID_OTHERWISE = {
    "text": ["texts"],
    "logprobs": ["behavior_logprobs"],
    "finish_reason": ["finish_reasons"],
    "reward": ["rewards"],
    "components": ["components"],
    "record": ["record"],
    "messages": ["prompt"],
}


def names_of(path):
    return (
        [str(step) for step in path if isinstance(step, str)]
        + SAID_OTHERWISE.get(str(path[-1]), [])
        + ["Group"]
    )


GROUP_ROW = ROW | {"completions": [COMPLETION, COMPLETION]}
CASES = [
    ("jsonl", "groups", GROUP_ROW, path)
    for path in [*paths(GROUP_ROW), *((name,) for name in STRANGE)]
]
CASES += [
    ("jsonl", "groups", GROUP_ROW, ("completions", 0, name))
    for name in (*STRANGE, "temperature", "extra")
]
CASES += [
    ("jsonl", "completions", ROW | COMPLETION, path)
    for path in [*paths(ROW | COMPLETION), *((name,) for name in STRANGE)]
]
CASES += [("jsonl", "export", OWN, path) for path in [*paths(OWN), ("record",), ("strange",)]]
CASES += [
    ("gsm8k-solutions", "solutions", SOLUTIONS, path)
    for path in [*paths(SOLUTIONS), ("strange",), ("completions",)]
]


@pytest.mark.parametrize(
    ("kind", "form", "row", "path"),
    CASES,
    ids=[f"{case[1]}-{'.'.join(map(str, case[3]))}" for case in CASES],
)
def test_every_json_value_in_every_field(imported, tmp_path, kind, form, row, path):
    walk(imported, kind, tmp_path / "a.jsonl", lines(row, path), names_of(path))


@pytest.mark.parametrize(
    "path", [*paths(TRL), ("components",), ("reward",), ("group_id",), ("strange",)], ids=str
)
def test_every_json_value_in_every_field_of_trl(imported, tmp_path, monkeypatch, path):
    monkeypatch.setitem(
        sources.READERS, "trl", sources.json_lines
    )  # Parquet holds one type a column
    walk(
        imported,
        "trl",
        tmp_path / "a.parquet",
        lines(TRL, path),
        [*names_of(path), "reward", "completion"],
    )


def test_every_json_value_as_a_whole_row(imported, tmp_path):
    assert walk(imported, "jsonl", tmp_path / "a.jsonl", VALUES, ["the line", "field"]) == 0


def test_a_second_row_is_walked_too(imported, tmp_path):
    for form in (GROUP_ROW, ROW | COMPLETION, OWN):
        first = json.dumps(form)
        texts = [f"{first}\n{value}" for value in VALUES]
        assert (
            walk(imported, "jsonl", tmp_path / "a.jsonl", texts, ["the line", "field"], "line 2")
            == 0
        )


def test_every_json_value_as_a_mapping(tmp_path, imported):
    (tmp_path / "a.jsonl").write_text(json.dumps(GROUP_ROW))
    for text in [
        *VALUES,
        *(f'{{"prompt": {value}}}' for value in VALUES),
        *(f'{{"mask": {value}}}' for value in VALUES),
    ]:
        (tmp_path / "m.json").write_text(text)
        try:
            importers.import_rows(
                "jsonl",
                tmp_path / "a.jsonl",
                tmp_path / "none",
                mapping=commands.read_mapping(tmp_path / "m.json"),
            )
        except UsageError as error:
            assert "apping" in str(error)
        except DataError as error:
            assert "a.jsonl, line 1: field" in str(error)


def columns():
    """Values that Parquet holds, by name."""
    for value in (
        True,
        0,
        -1,
        1.5,
        float("nan"),
        2**62,
        "",
        "text",
        b"\xff",
        [],
        [[]],
        [None],
        ["a"],
        [1.5],
        [[1]],
        {"a": 1},
        {"a": None},
    ):
        yield repr(value), pyarrow.array([value])
    yield "map", pyarrow.array([[("a", 1.0)]], pyarrow.map_(pyarrow.string(), pyarrow.float64()))
    yield "null", pyarrow.nulls(1)
    yield "time", pyarrow.array([10**18 + 1], pyarrow.timestamp("ns"))
    yield "binary list", pyarrow.array([[b"\xff"]])
    yield "uint64", pyarrow.array([2**64 - 1], pyarrow.uint64())


PARQUET = (
    "prompt",
    "text",
    "reward",
    "tokens",
    "mask",
    "logprobs",
    "components",
    "is_expert",
    "policy_version",
    "finish_reason",
)


@pytest.mark.parametrize(
    "name",
    [
        *PARQUET,
        "answer",
        "group_id",
        "position",
        "prompt_tokens",
        "extra",
        "data_set",
        "record",
        "strange",
    ],
)
def test_every_type_of_parquet_in_every_column(imported, tmp_path, name):
    table = pyarrow.Table.from_pylist([ROW | COMPLETION])
    export = pyarrow.Table.from_pylist(
        [OWN | {"data_set": json.dumps(OWN["data_set"]), "extra": "{}", "record": None}]
    )
    for label, column in columns():
        for whole in (table, export):
            whole = whole.drop_columns([name]) if name in whole.column_names else whole
            pyarrow.parquet.write_table(whole.append_column(name, column), tmp_path / "a.parquet")
            try:
                imported("parquet", tmp_path / "a.parquet")
            except (DataError, UsageError) as error:
                assert str(tmp_path / "a.parquet") in str(error), (label, str(error))
                assert any(
                    field in str(error)
                    for field in (*names_of((name,)), "not a readable Parquet", "data_set")
                ), (label, str(error))


def test_two_columns_of_one_name_are_refused(imported, tmp_path):
    table = pyarrow.table([pyarrow.array(["p"]), pyarrow.array(["q"])], names=["prompt", "prompt"])
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(DataError, match="a.parquet"):
        imported("parquet", tmp_path / "a.parquet")
