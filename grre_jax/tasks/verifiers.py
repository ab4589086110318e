r"""The usual judge of mathematical answers: is the final number the right one?

**Where the answer is.** These forms say it explicitly, and the last of them that has a number counts:

- `#### 18`, GSM8K's own; a Markdown heading such as `#### Step 3` or `#### 3. Total` is none.
- `\boxed{18}`, `\fbox{18}` with nested braces, and `\boxed 18`.
- "the answer is 18", "the answer to the question would be 18".
- "final answer: 18" and a line `A: 18`, if the number follows at once, be it on the next line; before words or a calculation
  these are the heading of a solution, not the end of one.

Without any, the last number of the text is the answer. Where words or a calculation stand between a form and its number ("the
answer is the sum of 3 and 5, which is 8", `\boxed{3 + 5 = 8}`), the number is the one after the last "=" of that sentence or
box, or else the last in it.

What stands before the last `</think>` does not count, and a text that ends between `<think>` and its end has no answer.

**What a number is.** Digits with thousands separators (1,234; 1{,}234; 1\,234; 12,34,567; thin spaces), a sign, decimals (12.50, .5),
fractions (1/2, \frac{1}{2}, \dfrac12), mixed numbers (1 1/2, 3\frac{1}{2}), powers of ten (1.5e3, 2 \times 10^{3}). Currency
signs, units, percent signs and words around it do not count: 50% is 50, not one half, because that is how grade-school answers
are written. Digits glued to a letter before them (x2, H2O) are no number, nor are numerals longer than 400 characters.

**When two are equal.** Numbers are exact fractions and compared exactly: 0.50 = 1/2, -0.0 = 0, 18.00 = 18, and 0.333 is not 1/3
unless a relative tolerance allows it.

Everything is a few linear scans of at most the last 500,000 characters, so no completion, however long or deeply nested, takes
long or raises.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

_MOST_CHARACTERS = 500_000  # of a completion's end: some times what the longest reasoning models write
_MOST_FORMS = 1_000  # explicit forms looked at, from the last: a text that has more of them without a number is no answer
_LONGEST_NUMERAL = 400
_REACH = 400  # characters after an explicit form within which its number must lie

# The pairs of digits are few: unlimited, a text of nothing else would be gone through from each of them.
_DIGITS = r"(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]{1,2}(?:,[0-9]{2}){1,8},[0-9]{3}(?![0-9])|[0-9]+)"
_DECIMAL = rf"(?:{_DIGITS}(?:\.[0-9]+)?|(?<![\w)\]}}])\.[0-9]+)"


def _latex_fraction(name: str) -> str:
    r"""A pattern for \frac{1}{2} and \frac12, with groups name_above and name_below, or name_up and name_down."""
    above, below = rf"(?P<{name}_above>[-−]?{_DECIMAL})", rf"(?P<{name}_below>{_DECIMAL})"
    return rf"\\[dt]?frac\s?(?:\{{\s?{above}\s?\}}\s?\{{\s?{below}\s?\}}|(?P<{name}_up>[0-9])\s?(?P<{name}_down>[0-9]))"


# A sign belongs to the number only where no operand stands before it: 5-3 ends in 3, "= -3" in -3.
_SIGN = r"(?:(?<![\w.)\]}%])(?P<sign>[-+−–])|(?<==)\s?(?P<spaced_sign>[-−])\s)?"
_CURRENCY = r"(?:[$€£¥₹]\s?(?P<inner_sign>[-−])?)?"
_POWER = r"(?:[eE](?P<e>[+-]?[0-9]{1,3})(?!\w)|\s?(?:\\times|\\cdot|[×x*·])\s?10\s?\^\s?\{?(?P<ten>[+-]?[0-9]{1,3})(?![0-9])\}?)"
_SLASH = rf"(?P<mixed>\s[0-9]+)?\s?/\s?(?P<below>{_DIGITS})(?![0-9/]|\.[0-9])"
_NUMBER = re.compile(
    rf"{_SIGN}{_CURRENCY}(?:{_latex_fraction('f')}"
    rf"|(?<![A-Za-z0-9_])(?P<decimal>{_DECIMAL})(?:{_POWER}|\s?{_latex_fraction('m')}|{_SLASH})?)"
)

_BRACES = re.compile(r"\\(?:boxed|fbox)\s{0,4}\{|\\(?:boxed|fbox)(?![A-Za-z])|\\[{}\\]|[{}]")
_HASHES = re.compile(r"(?<!#)####(?!#)")
_HEADING = re.compile(r"\s*[0-9]+[.)]\s+[A-Za-z]")
_LINE_A = re.compile(r"^[ \t*]{0,8}A[ \t*]{0,4}:", re.MULTILINE)
# Up to the next "answer" at most, so that every character is passed for one of them only.
_ANSWER = re.compile(
    r"(?<!\w)answers?(?!\w)(?:\s(?:to|for|of)\s(?:(?!\banswers?\b)[^.\n:=]){0,60}?)?[\s*_`,]{0,6}(?:(?:therefore|then|thus|now|hence)[\s,]{1,3})?"
    r"(?:(?P<heading>[:=])|(?:(?:would|should|will|must|has\sto)\sbe|comes\s(?:out\s)?to|is|are|was|equals)(?!\w)(?!\s+not(?!\w)))",
    re.IGNORECASE,
)
# What may stand between a form and the number directly after it: no letters but LaTeX's, currency codes and words of approximation.
_BETWEEN = re.compile(
    r"(?:[^A-Za-z0-9\\]|\\[(\[]|\\(?:boxed|fbox|text|textbf|mathbf|mathrm|left|approx|displaystyle)(?![A-Za-z])"
    r"|(?:approximately|approx|about|exactly|just|simply|only|also|roughly|around|equal|to|USD|EUR|GBP|Rs)(?![A-Za-z]))*",
    re.IGNORECASE,
)
_CALCULATION = re.compile(r"\s?(?:[=^]|[-−/+*×÷]\s?[0-9(\\$]|x\s?[0-9$]|\\(?:times|cdot|div|pm)(?![A-Za-z]))")
_SENTENCE_END = re.compile(r"[.!?](?=\s|$)")
_EMPTY_LINE = re.compile(r"[\s*_`$:\-]*(?:\\[(\[]\s*)?")
_SPACE = re.compile(r"\s*")
_THIN_GROUPS = re.compile("(?<![0-9.,])[0-9]{1,3}(?:[\u2009\u202f][0-9]{3})+(?![0-9])")


@dataclass(frozen=True)
class Answer:
    """The answer that a text gives.

    Attributes:
      value: the number, exactly.
      form: how it was said: "hashes", "boxed", "phrase", "heading", or "number" for the last number of a text without any of these.
      text: the number as it was written, after LaTeX's spaces and escapes were taken out.
    """

    value: Fraction
    form: str
    text: str


def extract_answer(text: str) -> Answer | None:
    """The answer a text gives, or None if it gives none; see the module's text. Never raises."""
    text = _normalised(after_thinking(text)[-_MOST_CHARACTERS:])
    for start, stop, form in _forms(text):
        found = _said_by(text, start, stop, form)
        if found is not None:
            return found
    last = None
    for last in _NUMBER.finditer(text):  # noqa: B007  (the last one is what is wanted)
        pass
    return _as_answer(last, "number")


def after_thinking(text: str) -> str:
    """What a text says after its last `</think>`, or all of it if it has none; nothing if a `<think>` is left open. Never raises."""
    said = text[text.rfind("</think>") + len("</think>") :] if "</think>" in text else text
    return "" if "<think>" in said else said


def parse_number(text: str) -> Fraction | None:
    """The first number of a short text, units and currency apart, or None: "$1,234.50", "50%", "-1/2", "18 eggs". Never raises."""
    found = _as_answer(_NUMBER.search(_normalised(text[: 2 * _LONGEST_NUMERAL])), "number")
    return found.value if found is not None else None


def exact_number(text: str) -> Fraction | None:
    """The value of a text that is one number and nothing else but white space, or None. Never raises."""
    if len(text) > 2 * _LONGEST_NUMERAL:
        return None
    text = _normalised(text).strip()
    found = _as_answer(_NUMBER.fullmatch(re.sub(r"^([-−+])\s+", r"\1", text)), "number")
    return found.value if found is not None else None


def numbers_equal(value: Fraction, truth: Fraction, tolerance: Fraction | float = 0) -> bool:
    """Whether |value - truth| <= tolerance * |truth|, which at the default tolerance of 0 is exact equality."""
    return abs(value - truth) <= Fraction(tolerance) * abs(truth)


def final_number_is(completion: str, answer: str, tolerance: Fraction | float = 0) -> bool:
    """Whether the answer that a completion gives is the right one.

    Args:
      completion: what a model wrote.
      answer: the right answer, such as "18", "1,080" or "1/2".
      tolerance: relative, 0 for exact equality.

    Returns:
      True if it is; False if it is not or the completion gives no number.

    Raises:
      ValueError: `answer` holds no number, so nothing could be right.
    """
    truth = parse_number(answer)
    if truth is None:
        raise ValueError(f"the right answer {answer[:80]!r} holds no number")
    given = extract_answer(completion)
    return given is not None and numbers_equal(given.value, truth, tolerance)


def _normalised(text: str) -> str:
    r"""LaTeX's spaces and escapes in numbers taken out: 1{,}234 and 1,\!234 are 1,234, 1\,234 is 1234, \$5 is $5; thin spaces between thousands too."""
    text = _THIN_GROUPS.sub(lambda found: re.sub("[\u2009\u202f]", "", found[0]), text)
    for written, meant in (("{,}", ","), ("\\!", ""), ("\\,", ""), ("\\$", "$"), ("\\%", "%"), ("\u00a0", " "), ("\u202f", " ")):
        text = text.replace(written, meant)
    return text


def _forms(text: str) -> list[tuple[int, int, str]]:
    """(start, stop, form) of what each explicit form has after it or encloses, the last first; stop is -1 where the line ends it."""
    forms = [(match.end(), -1, "hashes") for match in _HASHES.finditer(text)]
    forms += [(match.end(), -1, "heading") for match in _LINE_A.finditer(text)]
    forms += [(match.end(), -1, "heading" if match["heading"] else "phrase") for match in _ANSWER.finditer(text)]
    forms += [(start, stop, "boxed") for start, stop in boxes(text)]
    return sorted(forms, reverse=True)[:_MOST_FORMS]


def spoken_forms(text: str) -> list[tuple[int, str]]:
    """Where each "####", "Answer:" and "the answer is" ends, and which it is ("hashes", "heading", "phrase"), the last first; 1,000 at most."""
    return [(start, form) for start, _, form in _forms(text) if form != "boxed"]


def boxes(text: str) -> Iterator[tuple[int, int]]:
    """Start and stop of the contents of boxes, in the order in which they end; stop is -1 for one without braces (\\boxed 18).

    One pass with a stack: nesting costs nothing. An escaped brace is no brace.
    """
    if "\\boxed" not in text and "\\fbox" not in text:
        return
    opened: list[int] = []  # where the content of a box begins, or -1 for a plain brace
    for match in _BRACES.finditer(text):
        token = match.group()
        if token == "}":
            start = opened.pop() if opened else -1
            if start >= 0:
                yield start, match.start()
        elif token == "{":
            opened.append(-1)
        elif len(token) > 2 and token.endswith("{"):
            opened.append(match.end())
        elif len(token) > 2:  # \boxed 18
            yield match.end(), -1


def _said_by(text: str, start: int, stop: int, form: str) -> Answer | None:
    """The number that an explicit form gives, or None if it gives none."""
    next_line = False
    if stop < 0:
        stop = _line_end(text, start)
        if form != "boxed" and _EMPTY_LINE.fullmatch(text, start, stop):
            start, next_line = _SPACE.match(text, stop).end(), True
            stop = _line_end(text, start)
    elif stop - start > _REACH:
        return None
    said = text[start:stop]
    if form == "boxed":  # - 5: elsewhere such a dash is a list's or a subtraction's
        said = re.sub(r"^\s*([-−])\s+", r"\1", said)
    if form == "hashes" and _HEADING.match(said):
        return None
    first = _NUMBER.search(said)
    if first is None:
        return None
    directly = _BETWEEN.fullmatch(said, 0, first.start()) is not None
    if directly and not _CALCULATION.match(said, first.end()):
        return _as_answer(first, form)
    if form == "heading" or next_line or (form == "hashes" and not directly):
        return None
    end = None if form == "boxed" else _SENTENCE_END.search(said, first.end())
    sentence = said[: end.start()] if end else said
    equals = sentence.rfind("=")
    result = _NUMBER.search(sentence, equals + 1) if equals >= 0 else None
    return _as_answer(result or list(_NUMBER.finditer(sentence))[-1], form)


def _line_end(text: str, start: int) -> int:
    stop = text.find("\n", start, start + _REACH)
    return min(start + _REACH, len(text)) if stop < 0 else stop


def _as_answer(match: re.Match | None, form: str) -> Answer | None:
    """The exact value of a matched number; None where there is none: no match, a numeral too long, a denominator of 0."""
    if match is None or len(match.group()) > _LONGEST_NUMERAL:
        return None
    try:
        value = _value(match)
    except ZeroDivisionError:
        return None
    negative = (match["sign"] or match["spaced_sign"] or "+") != "+"
    return Answer(-value if negative != bool(match["inner_sign"]) else value, form, match.group())


def _value(match: re.Match) -> Fraction:
    """The value of a matched number but for its sign. Raises ZeroDivisionError for a denominator of 0."""
    if match["decimal"] is None:
        return _latex_value(match, "f")
    value = _plain(match["decimal"])
    power = match["e"] or match["ten"]
    if power:
        return value * Fraction(10) ** int(power)
    if match["below"] and match["mixed"]:
        return value + _plain(match["mixed"].strip()) / _plain(match["below"])
    if match["below"]:
        return value / _plain(match["below"])
    return value + _latex_value(match, "m") if match["m_above"] or match["m_up"] else value


def _latex_value(match: re.Match, name: str) -> Fraction:
    above, below = match[f"{name}_above"] or match[f"{name}_up"], match[f"{name}_below"] or match[f"{name}_down"]
    return (-_plain(above[1:]) if above[0] in "-−" else _plain(above)) / _plain(below)


def _plain(numeral: str) -> Fraction:
    return Fraction(("0" if numeral.startswith(".") else "") + numeral.replace(",", ""))
