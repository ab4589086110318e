r"""The final number of a text, as an exact fraction.

The last explicit form with a number counts (`#### 42`, `\boxed{42}`, `<answer>42</answer>`, "the
answer is 42", "Answer: 42"), else the last number of the text. Several numbers there ("18 or 19"),
or a part of an expression (2^3, "at least 18"), are no answer. Takes linear time.
"""

import itertools
import re
from collections import deque
from fractions import Fraction

from grre_jax.tasks.task import Question, Verdict
from grre_jax.tasks.verifiers.text import after_thinking, in_braces

_MOST_CHARACTERS = 500_000  # of the end of a text
_MOST_FORMS = 100  # explicit forms examined, from the last
_REACH = 400  # characters behind a form within which its number begins, and of one numeral
_DIGITS = r"(?:(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+)"
_FRACTION = re.compile(
    rf"(?<![0-9])\\[dtc]?frac(?:\{{(-?{_DIGITS})\}}\{{({_DIGITS})\}}|([0-9])([0-9]))"
)
_NUMBER = re.compile(
    r"(?<![\w.^])(?<!\^\{)(?:(?<![)\]}%])(?P<sign>-))?(?:[$€£]\s?(?P<inner>-)?)?"
    rf"(?P<above>{_DIGITS})(?:\s?/\s?(?P<below>{_DIGITS}))?"
)
_FORM = re.compile(
    r"\\(?P<box>boxed|fbox)\s?\{|(?P<tag><answer>)|(?P<direct>(?<!#)####(?!#)|\banswer\W{0,4}:|^A:)"
    r"|\banswer(?:\s(?:to|of|for)\s[^.\n:=]{0,60}?)?,?\s(?:is|are|would be|comes to)\b(?!\snot)",
    re.I | re.M,
)
_END = re.compile(r"[.!?](?=\s|$)|\n")
_WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{3,}")  # commands of LaTeX apart
_TAG = re.compile(r"<<[^<>\n]{0,80}>>|</?(?!answer)[A-Za-z][^<>\n]{0,60}>", re.I)
# Between two numbers that are alternatives: marks and words, with a unit before "or" alone.
_LINK = re.compile(r"\W*[a-z]+\W+or\b\W*|[^\w.=:!?]*(?:(?:or|and|to|text)\b[^\w.=:!?]*)*", re.I)
_PART_BEFORE = re.compile(
    r"(?:[\^*/×÷≤≥≠±√+]|\}(?=\{)|(?<!-|=)[<>]=?|[\w)}\]]\s?-|[0-9]:|% of|n't"
    r"|\\(?:times|cdot|div|sqrt|pm|lt|gt|leq?|geq?|neq?|overline)|sqrt"
    r"|\b(?:not|anything but|nor|than|least|most|(?:half|third) of|twice|thrice|double|minus"
    r"|plus|times|negative|nearly|almost|close to|under|above|below))[\s$({\\]*(?:text\{)?$",
    re.I,
)
_PART_AFTER = re.compile(
    r"[\s)$}]*(?:[\^*×÷!√+½¼¾≤≥]|[<>]\s?[\w=]|/\s?[0-9(]|[:-]\s?(?:[$(0-9]|[xy]\b)|\.\.|[xyn]\b"
    r"|e[0-9]|[kKM]\b|\([0-9]|\\(?:times|cdot|div|sqrt|overline|[dtc]?frac|[lg]eq?\b|text\{ or)"
    r"|plus|minus|(?:[a-z]+ )?(?:or|and|at) (?:more|less|fewer|up|least|most)|hundred|thousand|lakh"
    r"|dozen|[mbtr]+illion|(?:is |[(-] ?)(?:wrong|incorrect|false|not (?:right|correct|the)))"
)


def final_number(text: str) -> Fraction | None:
    """Returns the number that a text gives as its answer; None if that is not one number."""
    text = _TAG.sub(" ", _normalised(after_thinking(text)[-_MOST_CHARACTERS:]))
    for form in reversed(deque(_FORM.finditer(text), maxlen=_MOST_FORMS)):
        answer = _content(text, form)
        numbers = [n for n in _NUMBER.finditer(answer) if n.start() <= _REACH]
        directly = bool(numbers) and not _WORD.search(answer, 0, numbers[0].start())
        if numbers and (directly or not form["direct"]):
            return _alone(answer, numbers, _chosen(answer, numbers, directly))
    numbers = list(deque(_NUMBER.finditer(text), maxlen=2))
    return _alone(text, numbers, numbers[-1]) if numbers else None


def final_answer(text: str) -> str | None:
    """Returns the final number as an exact fraction ("18", "1/2"), or None without one."""
    number = final_number(text)
    return None if number is None else str(number)


def first_number(text: str) -> Fraction | None:
    """Returns the first number of a short text such as "$1,234.50", None without one."""
    return next(map(_value, _NUMBER.finditer(_normalised(text[: 2 * _REACH]))), None)


def verify_number(question: Question, completion: str) -> Verdict:
    """Reward 1 if the final number is the answer's, else 0; ValueError if that has no number."""
    truth = first_number(question.answer)
    if truth is None:
        raise ValueError(f"answer: expected a number, got {question.answer[:80]!r}")
    right = final_number(completion) == truth
    return Verdict(float(right), correct=right)


def _normalised(text: str) -> str:
    # Of hyphens those that models write for a minus: else the number would lose its sign.
    text = text.translate(str.maketrans("−–‑－’", "----'", "`\0"))
    text = text.replace("**", "").replace("{,}", ",")
    text = text.replace("\\!", "").replace("\\,", "").replace("\\$", "$").replace("\\%", "%")
    return _FRACTION.sub(r"\1\3/\2\4", text)


def _content(text: str, form: re.Match) -> str:
    """Returns what a form holds: its braces or tag, or the rest of its sentence."""
    if form["box"]:
        return in_braces(text, form.end(), 2 * _REACH) or ""
    rest = text[form.end() : form.end() + 2 * _REACH].lstrip()
    return re.split("</answer>" if form["tag"] else _END, rest, maxsplit=1)[0]


def _chosen(answer: str, numbers: list[re.Match], directly: bool) -> re.Match:
    """Returns the result of a calculation, else the number that stands directly, or the last."""
    equals = answer.rfind("=")
    if equals >= 0 and not (directly and _WORD.search(answer, 0, equals)):
        numbers = [number for number in numbers if number.start() > equals] or numbers
        directly = True
    return numbers[0] if directly else numbers[-1]


def _alone(text: str, numbers: list[re.Match], chosen: re.Match) -> Fraction | None:
    """Returns the value of a number, None beside another one or as a part of an expression."""
    before = text[max(0, chosen.start() - 30) : chosen.start()]
    if _PART_BEFORE.search(before) or _PART_AFTER.match(text, chosen.end()):
        return None
    for pair in itertools.pairwise(numbers):
        between = text[pair[0].end() : pair[1].start()]
        linked = len(between) <= 40 and _LINK.fullmatch(between)
        if linked and chosen in pair and _value(pair[0]) != _value(pair[1]):
            return None
    return _value(chosen)


def _value(number: re.Match) -> Fraction | None:
    parts = [(part or "1").replace(",", "") for part in number.group("above", "below")]
    if len(number[0]) > _REACH or Fraction(parts[1]) == 0:
        return None
    value = Fraction(parts[0]) / Fraction(parts[1])
    return value if bool(number["sign"]) == bool(number["inner"]) else -value
