"""Every verifier against a table of cases that were decided by hand, and against texts made to hang or crash it."""

import csv
import time
from pathlib import Path

import pytest

from grre_jax import tasks
from grre_jax.tasks.judging import Failure, verdict_of

TABLE = Path(__file__).parent / "verifier_cases.tsv"
NEEDS = {"math": "math_verify", "guru_math": "math_verify", "reasoning_gym": "reasoning_gym"}  # packages of extras
A_SECOND = 1.0  # of processor time: no verdict takes longer


def _rows():
    with TABLE.open(encoding="utf-8", newline="") as file:
        lines = [line for line in file if not line.startswith("#")]
    return list(csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE, strict=True))


ROWS = _rows()
NAMES = sorted({row["task"] for row in ROWS})


def _built(name, **options):
    if name in NEEDS:
        pytest.importorskip(NEEDS[name])
    return tasks.build(name, **options)


def _asked(row):
    """The task, question and completion of a row."""
    completion = row["completion"].replace("⏎", "\n").replace("␀", "\0")
    if row["task"] != "reasoning_gym":
        return {}, tasks.Question("case", "asked", row["truth"]), completion
    dataset, _, number = row["truth"].partition("/")
    return {"dataset": dataset}, int(number), completion


def test_the_table_is_large_and_covers_every_task():
    assert len(ROWS) >= 300 and NAMES == tasks.names()
    assert all(row["reward"] in ("0", "1") and row["note"] for row in ROWS)
    keys = [(row["task"], row["truth"], row["completion"]) for row in ROWS]
    assert len(set(keys)) == len(keys)
    for name in NAMES:
        assert {row["reward"] for row in ROWS if row["task"] == name} == {"0", "1"}


@pytest.mark.parametrize("name", NAMES)
def test_every_case(name):
    wrong, built = [], {}
    for row in (row for row in ROWS if row["task"] == name):
        options, question, completion = _asked(row)
        key = str(options)
        task = built[key] = built.get(key) or _built(name, **options)
        if name == "reasoning_gym":
            question = task._question(question)
            completion = completion.replace("{answer}", question.answer)
        began = time.process_time()
        verdict = verdict_of(task, question, completion)
        took = time.process_time() - began
        if isinstance(verdict, Failure) or (verdict.reward == 1) != (row["reward"] == "1") or took > A_SECOND:
            wrong.append((row["truth"], row["completion"], row["reward"], verdict, round(took, 2)))
    assert not wrong, "\n".join(map(str, wrong))


def _huge():
    """Texts of ten million characters, and bytes that are no text."""
    many = 10_000_000
    yield from ("5" * many, " " * many, "[" * many, "\\boxed{" * (many // 7), "\0" * 1000, "\ud800")
    yield "\\boxed{" + "{" * (many // 2) + "5" + "}" * (many // 2) + "}"
    yield "the answer is " * (many // 14)


def _boxed_hostile():
    """What an answer may hold that its bounds let through, or just not."""
    for opening, inside, closing in (
        ("(", "5", ")"),
        ("\\frac{", "1", "}{2}"),
        ("x^{", "", "}"),
        ("(x+1)(", "1", ")"),
        ("{", "x", "}"),
        ("[[", "1", "]]"),
    ):
        for depth in (5, 6, 19, 60, 400):
            yield opening * depth + inside + closing * depth
    yield from (
        "1+" * 90 + "1",
        "-" * 119 + "1",
        ",".join(["1"] * 140),
        "\\pm 1," * 40,
        "\\sqrt" * 20,
        "|x" * 50,
        "x!" * 60,
        "a" * 119,
        "x^" * 9 + "x",
    )
    yield from (
        "\\begin{pmatrix}" * 20,
        "1&" * 140,
        "\\cup" * 59,
        "<" * 290,
        "x=" * 140,
        "5} and \\boxed{" * 20_000,
        "\\( " * 90,
        "a^a" * 10,
        "5 " + "cm / " * 55 + "!",
        "5 " + "\\text{ cm } / " * 20 + "?",
        "5 " + "\\text{a a} " * 24 + "!",
    )
    yield from (
        "\\exp(" * 6 + "9" + ")" * 6,
        "9999^{9999}",
        "(9^{99})^{99}",
        "99!!",
        "\\tan(9^{9999})",
        "\\log(" * 6 + "x" + ")" * 6,
        "1/" * 50 + "0",
    )


def _call_hostile():
    yield from (
        "[" * 9_000,
        "(" * 9_000,
        '["' * 4_500,
        "[f(" * 3_000,
        "[f(a=" + "[" * 39 + "]" * 39 + ")]",
        "[f(a=" + "[" * 300 + "]" * 300 + ")]",
    )
    yield from (
        "[f(a=" + "-" * 5_000 + "1)]",
        "[f(a=" + "9" * 9_000 + ")]",
        "[f(a=1e" + "9" * 50 + ")]",
        "f(" * 4_000,
        "[f(a=1)," * 1_000,
        "[f(a=1)]" * 1_000,
    )
    yield from (
        '{"a":' * 1_900,
        "[f(a=" + "'" * 3_000 + ")]",
        "[f(a='" + "\\" * 5_000 + "')]",
        "```" * 3_000,
        "[f(a=1" + "+1" * 3_000 + ")]",
        "<think>" * 1_400,
    )
    yield from (
        "[f(a=" + "{" * 38 + "1:2" + "}" * 38 + ")]",
        "[f(" + ",".join(f"a{i}=1" for i in range(1_100)) + ")]",
        "a b " * 2_400,
        "[a " * 3_000,
        "{" * 9_000,
    )
    yield from (
        "[f(a={[1]: 2})]",
        "[f(a={None: 2})]",
        "[f(a=b'x')]",
        "[f(a=1j)]",
        "[f(a=...)]",
        "[f(a=*b)]",
        "[f(**a)]",
        "[f(a:=1)]",
        "[f(a=lambda: 1)]",
        "[f(a=f'{b}')]",
    )


HOSTILE = {
    "gsm8k": _huge,
    "math": lambda: (*_huge(), *(f"\\boxed{{{text}}}" for text in _boxed_hostile())),
    "toolace": lambda: (*_huge(), *_call_hostile()),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_no_text_hangs_or_crashes_a_verifier(name):
    task = _built(name)
    question = tasks.Question("case", "asked", {"toolace": "[f(a=1)]"}.get(name, "5"))
    slow = []
    for number, text in enumerate(HOSTILE[name]()):
        began = time.process_time()
        verdict = verdict_of(task, question, text)
        took = time.process_time() - began
        if isinstance(verdict, Failure) or took > A_SECOND:
            slow.append((number, text[:30], verdict, round(took, 2)))
    assert not slow, "\n".join(map(str, slow))


def test_a_hostile_truth_does_not_hang_either():
    task = _built("math")
    for text in ("9^{9^{9^9}}", "(10^{10})!", "\\frac{" * 60 + "1" + "}{2}" * 60, "{" * 5_000, "x=" * 400):
        began = time.process_time()
        assert task.verify(tasks.Question("case", "asked", text), "\\boxed{5}").reward == 0
        assert time.process_time() - began < A_SECOND
