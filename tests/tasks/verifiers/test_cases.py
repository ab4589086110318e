"""The verifiers against the table of cases: right where the column "differs" is empty, and wrong as
it says elsewhere, so that a mistake that disappears fails as a new one does.
"""

import pytest

from grre_jax import tasks
from grre_jax.tasks.judging import InProcess

from . import cases

NEEDS = {"math": "math_verify", "guru_math": "math_verify", "reasoning_gym": "reasoning_gym"}
# Without a verifier of their own, or (questions) compared as they stand.
WORLDS = ("gymnasium", "openenv", "questions", "verifiers")
ROWS = cases.rows()
KINDS = sorted({row["kind"] for row in ROWS})


def test_the_table_covers_every_task():
    assert [name for name in tasks.names() if name not in WORLDS] == KINDS


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


SLOW = """11, 111, \\boxed{ \\frac{ answer_to_ the_answer_is_$ ####_ A:⏎ 1_ 1/ 1:0 not_1_ <a << <answer>
    { \\ \0 5 [{_ [f(""".replace("⏎", "\n")


@pytest.mark.parametrize("name", ["arithmetic", "gsm8k", "toolace"])
def test_texts_made_to_be_slow_are_judged_in_the_run_s_own_process(name):
    """A hundred thousand characters; anything quadratic would take minutes."""
    task = tasks.build(name)
    question = tasks.Question("case", "asked", {"toolace": "[f(a=1)]"}.get(name, "7"))
    pieces = [piece.replace("_", " ") for piece in SLOW.split(" ") if piece]
    texts = [piece * (size // len(piece)) for piece in pieces for size in (100_000, 9_900)]
    (judged,) = InProcess(task)([(question, texts)])
    assert judged.failures == [""] * len(texts)
    assert not judged.rewards.any()
