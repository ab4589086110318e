"""The verifiers against the table of cases: right where the column "differs" is empty, and wrong as
it says elsewhere, so that a mistake that disappears fails as a new one does.
"""

import re
from pathlib import Path

import pytest

from grre_jax import tasks
from grre_jax.tasks.judging import InProcess, verdict_of

from . import cases

NEEDS = {"math": "math_verify", "guru_math": "math_verify", "reasoning_gym": "reasoning_gym"}
# Without a verifier of their own, or (questions) compared as they stand.
WORLDS = ("calculator", "gymnasium", "openenv", "questions", "textarena", "verifiers")
ROWS = cases.rows()
KINDS = sorted({row["kind"] for row in ROWS})


def test_the_table_covers_every_task():
    assert [name for name in tasks.names() if name not in WORLDS] == KINDS
    assert all(row["reward"] in ("0", "1") and row["note"] for row in ROWS)
    keys = [(row["kind"], row["question"], row["truth"], row["completion"]) for row in ROWS]
    assert len(set(keys)) == len(keys)


def check(rows):
    built = {}
    wrong = [row for row in rows if cases.returned(row, built) != (row["differs"] or row["reward"])]
    assert not wrong, "\n".join(map(str, wrong))


@pytest.mark.parametrize("kind", KINDS)
def test_cases(kind):
    """Of mathematics every fortieth, since math-verify takes long."""
    pytest.importorskip(NEEDS.get(kind, "pytest"))
    rows = [row for row in ROWS if row["kind"] == kind and row["differs"] != "timeout"]
    check(rows[::40] if kind == "math" else rows)


@pytest.mark.slow
def test_all_cases_of_mathematics():
    pytest.importorskip("math_verify")
    check([row for row in ROWS if row["kind"] == "math" and row["differs"] != "timeout"])


def test_the_documentation_has_the_agreement():
    page = (Path(__file__).parents[3] / "docs" / "tasks.md").read_text(encoding="utf-8")
    for kind in KINDS:
        rows = [row for row in ROWS if row["kind"] == kind]
        right = sum(not row["differs"] for row in rows)
        numbers = re.search(rf"\| {kind} \| ([\d,]+) \| ([\d,]+) \| ([\d,]+) \|", page)
        found = [int(text.replace(",", "")) for text in numbers.groups()]
        assert found == [len(rows), len(rows), right]


SLOW = """11, 111, \\boxed{ \\frac{ answer_to_ the_answer_is_$ ####_ A:⏎ 1_ 1/ 1:0 not_1_ <a << <answer>
    { \\ \0 5 [{_ [f(""".replace("⏎", "\n")


@pytest.mark.parametrize("name", ["arithmetic", "gsm8k", "toolace"])
def test_texts_made_to_be_slow_are_judged_in_the_run_s_own_process(name):
    """A million characters each; anything quadratic would take an hour."""
    task = tasks.build(name)
    question = tasks.Question("case", "asked", {"toolace": "[f(a=1)]"}.get(name, "7"))
    pieces = [piece.replace("_", " ") for piece in SLOW.split(" ") if piece]
    texts = [piece * (size // len(piece)) for piece in pieces for size in (1_000_000, 9_900)]
    (judged,) = InProcess(task)([(question, texts)])
    assert judged.failures == [""] * len(texts)
    assert not judged.rewards.any()


CONSTANTS = """0 1 5 18 0.5 1/2 nan yes None [] {} x C \\pi the_answer 0_1_2_3_4_5_6_7_8_9 0,0,0$ [f()] ?
    #### <answer></answer> <think>5</think> <think>5 \\boxed{}"""
FORMS = ("{}", "The answer is {}.", "\\boxed{{{}}}", "#### {}", "<answer>{}</answer>")


@pytest.mark.parametrize(
    ("name", "truths"), [("gsm8k", ("4", "1,080", "-6", "1/3")), ("toolace", ("[a(), b(port=1)]",))]
)
def test_no_constant_is_paid(name, truths):
    task = tasks.build(name)
    constants = ["", " ", "\n\n\t", "\0", "1 " * 2_000, *CONSTANTS.split()]
    texts = [form.format(x.replace("_", " ")) for x in constants for form in FORMS]
    for text in texts:
        for truth in truths:
            question = tasks.Question("q", "What is it?", truth)
            assert verdict_of(task, question, text).reward == 0, (truth, text)
