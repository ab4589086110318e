"""Every verifier against a table of cases that were decided by hand, and against texts made to
hang or crash it.
"""

import csv
from pathlib import Path

import pytest

from grre_jax import tasks
from grre_jax.tasks.judging import Failure, verdict_of

CASES = Path(__file__).parent / "cases.tsv"
NEEDS = {
    "math": "math_verify",
    "guru_math": "math_verify",
    "reasoning_gym": "reasoning_gym",
}  # packages of extras


def _rows():
    with CASES.open(encoding="utf-8", newline="") as file:
        lines = [line for line in file if not line.startswith("#")]
    return list(csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE, strict=True))


ROWS = _rows()
KINDS = sorted({row["kind"] for row in ROWS})
# Without a verifier of their own, or (questions) compared as they stand.
WORLDS = ("calculator", "guess_number", "gymnasium", "textarena", "questions")
JUDGED = [name for name in tasks.names() if name not in WORLDS]


def _built(name, **options):
    if name in NEEDS:
        pytest.importorskip(NEEDS[name])
    return tasks.build(name, **options)


def _text(cell):
    return cell.replace("⏎", "\n").replace("␀", "\0")


def _returned(row, built):
    """The reward that a row's verifier returns, as a cell: "1", "0" or a kind of failure."""
    name, _, number = row["truth"].partition("/")
    gym = row["kind"] == "reasoning_gym"
    key = name if gym else row["kind"]
    if key not in built:
        built[key] = _built(row["kind"], **({"dataset": name} if gym else {}))
    task = built[key]
    question = tasks.Question("case", row["question"] or "asked", row["truth"])
    question = task._question(int(number)) if gym else question
    completion = _text(row["completion"])
    verdict = verdict_of(task, question, completion.replace("{answer}", question.answer))
    return verdict.kind if isinstance(verdict, Failure) else str(int(verdict.reward == 1))


def test_the_table_covers_every_task():
    assert KINDS == JUDGED
    assert all(row["reward"] in ("0", "1") and row["note"] for row in ROWS)
    keys = [(row["kind"], row["question"], row["truth"], row["completion"]) for row in ROWS]
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize("kind", KINDS)
def test_every_case(kind):
    """A known mistake that disappears fails as a new one does."""
    built = {}
    rows = [row for row in ROWS if row["kind"] == kind]
    returned = [_returned(row, built) for row in rows]
    wrong = [
        (row["truth"], row["completion"], row["reward"], verdict)
        for row, verdict in zip(rows, returned, strict=True)
        if verdict != (row["differs"] or row["reward"])
    ]
    assert not wrong, "\n".join(map(str, wrong))


def _huge():
    """Texts of ten million characters, and bytes that are no text."""
    many = 10_000_000
    yield from ("5" * many, " " * many, "[" * many, "\\boxed{" * (many // 7), "\0" * 1000, "\ud800")
    yield "\\boxed{" + "{" * (many // 2) + "5" + "}" * (many // 2) + "}"
    yield "the answer is " * (many // 14)
    yield from (
        "11," * 3_000_000,
        "111," * 2_000_000 + "1111",
        "1/" * 3_000_000,
        "1 " * 3_000_000,
        "111\u2009" * 2_000_000,
    )


def _pieces():
    """What repetitions in a pattern could share out among themselves in too many ways, in texts
    as long as are looked at.
    """
    for piece in (
        "11,",
        "11,111,",
        "1.",
        "\\frac{1",
        "\\frac{11,",
        "answer to ",
        "####\n",
        "A:\n ",
        "= - ",
        "$",
        "\\(",
        "\\) ",
        "\\text{ ",
    ):
        yield piece * (1_000_000 // len(piece))
    for piece in (
        "<think>",
        "</think>",
        "<answer>",
        "</answer>",
        "\\boxed{5},",
        "the answer is $",
        "x, not ",
        "the answer is a, not ",
        "1\u202f",
    ):
        yield piece * (1_000_000 // len(piece))


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
    # Many digits: of exact numbers, of sums whose terms differ in size, and of functions where
    # these need them.
    for part in (
        "97^{9999}",
        "1/9^{9999}",
        "x^{999}+1",
        "x^{1/3}+2^{-999}",
        "\\sin x+9^{-999}",
        "x^{x}+9^{-999}",
        "\\tan x",
        "x!",
        "x!+9!",
    ):
        yield ",".join(part.replace("x", letter) for letter in "abcdfghjklmnopqrstuvwxyz")[
            : 300 // len(part + ",") * len(part + ",") - 1
        ]
    for piece in (
        "]0,1[",
        "\\phantom{",
        "\\setminus",
        "\\ne1,",
        "2(",
        "1,000,",
        "{,}",
        "^T",
        "\\sout{5}",
        "x\\approx1,",
        "\\frac{d}{dx}",
        "\\vec{",
    ):
        yield piece * (290 // len(piece))
    hard = [f"\\sin{n}" for n in range(40)]
    yield from (
        "\\mathbb{R}\\setminus\\{" + ",".join(hard[:count]) + "\\}" for count in (20, 32, 40)
    )
    yield "\\tan2\\begin{pmatrix}" + "&".join(hard[:36]) + "\\end{pmatrix}^T"
    for piece in ("11,", "+", "(+", ";", "|A", "\\approx", "x\\in", "no ", "1_1", "miles per "):
        yield piece * (290 // len(piece))


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
    yield from (
        "[" + "a" * 9_990,
        "[a" + " " * 9_990,
        "{" + " " * 9_990,
        "a" * 9_990,
        "a." * 4_990 + "(",
        "[f(a=" + "a if b else " * 800 + "1)]",
    )
    for piece in ("not ", "1**", "a.", "lambda:", "~", "x<", "x and "):
        yield "[f(a=" + piece * (9_900 // len(piece)) + "1)]"
    for piece in ("11,", "[{ ", "a=", "f(a", '{"name"', "<tool_call>", "</think>"):
        yield piece * (9_900 // len(piece))


HOSTILE = {
    "arithmetic": _huge,
    "gsm8k": lambda: (*_huge(), *_pieces()),
    "chat_arithmetic": lambda: (*_huge(), *_pieces()),
    "guru_math": _pieces,
    "reasoning_gym": lambda: (*_huge(), *_pieces()),
    "math": lambda: (*_huge(), *_pieces(), *(f"\\boxed{{{text}}}" for text in _boxed_hostile())),
    "toolace": lambda: (*_huge(), *_call_hostile()),
}


def test_hostile_texts_are_tried_on_every_task():
    assert sorted(HOSTILE) == JUDGED


@pytest.mark.parametrize("name", HOSTILE)
def test_no_text_hangs_or_crashes_a_verifier(name):
    task = _built(name)
    question = (
        tasks.Question("case", "asked", {"toolace": "[f(a=1)]"}.get(name, "5"))
        if name != "reasoning_gym"
        else task.question(0)
    )
    failed = []
    for number, text in enumerate(HOSTILE[name]()):
        verdict = verdict_of(task, question, text)
        if isinstance(verdict, Failure):
            failed.append((number, text[:30], verdict))
    assert not failed, "\n".join(map(str, failed))


def test_hostile_pairs_do_not_hang():
    """Where the right answer is as hard as the given one, and is almost the same."""
    task = _built("math")
    hard = [f"\\sin{n}" for n in range(40)]
    for form in (
        "\\mathbb{R}\\setminus\\{%s\\}",
        "\\tan2\\begin{pmatrix}%s\\end{pmatrix}",
        "\\{%s\\}",
        "3(%s)",
    ):
        given, truth = (
            form % ("&" if "matrix" in form else ",").join(some)
            for some in (hard[1:33], hard[32:0:-1])
        )
        for wrong in (truth.replace("sin7", "cos7"), truth.replace("sin7", "sin7\\approx 0.65")):
            assert (
                task.verify(tasks.Question("case", "asked", wrong), f"\\boxed{{{given}}}").reward
                == 0
            )


def test_a_hostile_truth_does_not_hang_either():
    task = _built("math")
    for text in (
        "9^{9^{9^9}}",
        "(10^{10})!",
        "\\frac{" * 60 + "1" + "}{2}" * 60,
        "{" * 5_000,
        "x=" * 400,
    ):
        assert task.verify(tasks.Question("case", "asked", text), "\\boxed{5}").reward == 0
