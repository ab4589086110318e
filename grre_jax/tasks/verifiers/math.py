r"""Mathematical answers, read and compared by math-verify.

The answer of a completion is the content of its last `\boxed{}`, together with the boxes that
commas, "and" or "or" join to it. Without a box it is, in the last `<answer>` or in all of the text,
what follows the last "the answer is", "Answer:" or `####`, else the last line. An expression of the
question as it stands there is not an answer to it.

math-verify's limits are alarms, which threads cannot have: verifiers' processes end at theirs.
"""

import contextlib
import functools
import logging
import re
from collections import deque
from collections.abc import Callable
from fractions import Fraction

from grre_jax.errors import UsageError
from grre_jax.tasks.task import Question, Verdict
from grre_jax.tasks.verifiers.text import after_thinking, in_braces

_MOST_CHARACTERS = 200_000  # of the end of a text
_MOST_BOXES = 50
_LONGEST_ANSWER = 1_000
_BOX = re.compile(r"\\(?:boxed|fbox)\s?\{")
_JOINED = re.compile(
    r"(?:[\s$,;.*}&]|\\(?:text\s?\{|q?quad|[()])|\b(?:and|or)\b|\b[a-z](?:_\d)?\s?=)*", re.I
)
_FORM = re.compile(
    r"\banswer(?:\s[^.\n:=]{0,60}?)?\s(?:is|are|would be)\b(?!\snot)|\banswer\W{0,4}:|####", re.I
)
_END = re.compile(r"[.!?](?=\s|$)|\n|,?\s(?:but )?(?:not|because|where|since|which|for|as)\b")
_MATHEMATICS = re.compile(r"\$\$?([^$]+)\$\$?|\\\((.+?)\\\)|\\\[(.+?)\\\]", re.S)
_WORD = re.compile(r"(?<![\\A-Za-z{])[A-Za-z]{2,}(?![A-Za-z({])|[:?!\n]|[.,;](?=\s|$)")
_DENIED = re.compile(r"(?:\bnot|n['’]t|\bcannot)(?:\s(?:be|equal))?\s*$")
_SPACING = re.compile(r"(?<!\\)\\(?:left|right|displaystyle|[,!;:$ ])|[\s$]|\\?[{}]|\.$")
_FRACTION = re.compile(r"\\[dtc]?frac(?:\{(\w+)\}\{(\w+)\}|(\d)(\d))")
_NUMBER = re.compile(r"-?[0-9.,]+(?:\\?%|\\(?:text|circ).*)?")


@functools.cache
def library() -> tuple[Callable, Callable]:
    """Returns `parse` and `verify` of math-verify.

    Raises:
        UsageError: it is not installed.
    """
    try:
        from math_verify import parse, verify
    except ImportError as error:
        raise UsageError(
            f"mathematics: expected the package math-verify, got {error}. pip install"
            " 'grre-jax[rewards]'."
        ) from error
    logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns of missing time limits
    return parse, verify


def verify_math(question: Question, completion: str) -> Verdict:
    """Returns reward 1 if a completion's answer is the question's, else 0.

    An expression of the question is wrong. Component "answered": whether the
    completion gives an answer. UsageError if math-verify is not installed.
    """
    expression = final_expression(completion)
    right = (
        expression is not None
        and same_answer(expression, question.answer)
        and not is_copy(expression, question.answer, question.prompt)
    )
    return Verdict(float(right), {"answered": float(expression is not None)}, correct=right)


def same_answer(given: str, truth: str) -> bool:
    """Returns True if math-verify takes two answers for the same, or they are written alike."""
    parse, verify = library()
    if given.split() == truth.split():
        return True
    parsed = [parse(f"\\boxed{{{text}}}", parsing_timeout=None) for text in (truth, given)]
    return bool(verify(*parsed, timeout_seconds=None))


def canonical(given: str) -> str:
    r"""Returns one text for answers that are typed differently ("1/2" for 0.5 and \frac12)."""
    with contextlib.suppress(ValueError, ZeroDivisionError):
        return str(Fraction(_typed(given)))
    return _typed(given)


def final_expression(completion: str) -> str | None:
    """Returns the answer as it was written, None if a completion gives none."""
    text = after_thinking(completion)[-_MOST_CHARACTERS:]
    spans: list[tuple[int, int, str]] = []
    boxes = deque(_BOX.finditer(text), maxlen=_MOST_BOXES)
    for box in boxes:
        content = in_braces(text, box.end(), _LONGEST_ANSWER)
        if content is not None:
            spans.append((box.start(), box.end() + len(content), content))
    if not boxes:
        text = _sentence(text)
        spans = [(m.start(), m.end(), m[m.lastindex]) for m in _MATHEMATICS.finditer(text)]
        if not spans or "=" in text[spans[-1][1] :]:
            spans = [(0, len(text), text.replace("$", "").strip(" \t*_:`=\"'"))]
    parts: list[str] = []
    for place, (_, stop, content) in reversed(list(enumerate(spans))):
        if parts and not _JOINED.fullmatch(text[stop : spans[place + 1][0]]):
            break
        parts.insert(0, content.strip().removesuffix("."))
    answer = ", ".join(dict.fromkeys(parts))
    return answer if 0 < len(answer) <= _LONGEST_ANSWER else None


def _sentence(text: str) -> str:
    """Returns the sentence behind the last form, or the last line; empty if that is prose."""
    stop = text.rfind("</answer>")
    start = text.rfind("<answer>", 0, max(stop, 0))
    text = text[start + len("<answer>") : stop] if start >= 0 else text
    for form in deque(_FORM.finditer(text), maxlen=1):
        sentence = text[form.end() :].lstrip(" \t\n*:=")[:_LONGEST_ANSWER]
        return _END.split(sentence, maxsplit=1)[0].replace("**", "")
    end = text[-_LONGEST_ANSWER:].rstrip(" \n*.")
    for mathematics in deque(_MATHEMATICS.finditer(end), maxlen=1):
        stops = mathematics.end() == len(end)
        return end if stops and not _DENIED.search(end, 0, mathematics.start()) else ""
    rest, _, line = end.rpartition("\n")
    prose = re.search("[A-Za-z]{3}", line) and (rest or len(line.split()) > 3)
    return "" if prose else line


def is_copy(given: str, truth: str, question: str) -> bool:
    r"""Returns True if an answer is an expression of the question, and the right one is another.

    "Simplify $\frac{60}{12}$" is not answered by 60/12, though that equals the right answer 5.
    """
    result = _typed(given.rpartition("=")[2])
    numbers = all(_NUMBER.fullmatch(_typed(text)) for text in (given, truth))
    if numbers or result in map(_typed, (truth, *truth.split("="))):
        return False
    question = question[-_MOST_CHARACTERS:]
    pieces = [m[m.lastindex] for m in _MATHEMATICS.finditer(question)]
    pieces += _WORD.split(_MATHEMATICS.sub("\n", question))
    sides = {_typed(side) for piece in pieces for side in (piece, *piece.split("="))}
    return not sides.isdisjoint({result, _typed(given)})


def _typed(text: str) -> str:
    r"""Returns a text without what typing alone changes: spaces, \dfrac, signs of a product."""
    text = _SPACING.sub("", _FRACTION.sub(r"\1\3/\2\4", text.strip())).replace("\\div", "/")
    return re.sub(r"\\(?:cdot|times)(?![A-Za-z])", "*", text)
