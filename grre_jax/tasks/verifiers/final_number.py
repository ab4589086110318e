r"""The usual judge of mathematical answers: is the final number the right one?

**Where the answer is.** These forms say it explicitly, and the last of them that has a number
counts:

- `#### 18`, GSM8K's own; a Markdown heading such as `#### Step 3` or `#### 3. Total` is none.
- `\boxed{18}`, `\fbox{18}` with nested braces, and `\boxed 18`.
- `<answer>18</answer>`, which is read as a box.
- "the answer is 18", "the answer to the question would be 18".
- "final answer: 18" and a line `A: 18`, if the number follows at once, be it on the next line;
  before words or a calculation these are the heading of a solution, not the end of one.

Without any, the last number of the text is the answer. Where words or a calculation stand between a
form and its number ("the answer is the sum of 3 and 5, which is 8", `\boxed{3 + 5 = 8}`), the
number is the one after the last "=" of that sentence or box, or else the last in it.

**What is no answer.** A text that ends in one of these gives none at all, so that no part of it is
rewarded:

- Several numbers: "18 or 19", "18, 19", "18 and 19", "18 to 19", "3 hours and 30 minutes". The same
  number twice is one, and so is an amount in two units ("5 dollars or 500 cents"). Where words come
  before the numbers, or no form does, the commas are a sentence's: then it is "18 or 19", "18 and
  19", three numbers or more in a row, and numbers alone ("3, 18").
- A bound: "at least 18", "more than 18", "18 or more", "18+", "almost 18", x < 18. "About 18" is
  18.
- A calculation that was not worked out, or another part of something larger: 2^3, 2 \times 9,
  \sqrt{16}, 0.\overline{3}, 16 - 3, 18 + x, \boxed{5!}, sqrt(16), half of 36, twice 9, 18 plus tax,
  10:30, 1.000.000.

A number that is denied, before it ("not 18", "isn't 18", "rather than 18") or behind it ("18 is
wrong", "18? No."), is passed over, and what else the text says counts, but for that number; so is
the exponent of a unit (18 cm^2). A form that says what the answer is not ("the wrong answer is 18",
"I don't think the answer is 18") counts for nothing, and without another there is none.

What stands before the last `</think>` does not count, and a text that ends between `<think>` and
its end has no answer.

**What a number is.** Digits of any script with thousands separators (1,234; 1{,}234; 1\,234;
12,34,567; 1'234; thin spaces, and plain ones after a form), a sign, decimals (12.50, .5), fractions
(1/2, \frac{1}{2}, \dfrac12, ½), mixed numbers (1 1/2, 3\frac{1}{2}, 3½, 2 and 1/2), powers of ten
(1.5e3, 2 \times 10^{3}, 2×10³), dozen, hundred, thousand, million and so on behind them (3 million,
$3k). Currency signs, units, tags and words around it do not count, nor does a percent sign from 1
on: 50% is 50, not one half, because that is how grade-school answers are written; 0.5% is 0.005.
Digits glued to a letter before them (x2, H2O) are no number, nor are numerals longer than 400
characters.

**When two are equal.** Numbers are exact fractions and compared exactly: 0.50 = 1/2, -0.0 = 0,
18.00 = 18, and 0.333 is not 1/3.

Everything is a few linear scans of at most the last 500,000 characters, so no completion, however
long or deeply nested, takes long or raises.
"""

import itertools
import re
from collections import deque
from collections.abc import Iterator, Sequence
from fractions import Fraction

from grre_jax.tasks.verifiers import number_context as context
from grre_jax.tasks.verifiers import numerals
from grre_jax.tasks.verifiers.numerals import NUMBER, Answer, as_answer

# Of a completion's end: some times what the longest reasoning models write.
_MOST_CHARACTERS = 500_000
# Explicit forms looked at, from the last: a text that has more of them without a number is no
# answer.
_MOST_FORMS = 1_000
_REACH = 400  # characters after an explicit form within which its number must lie
_MOST_DENIED = 64  # numbers at the end of a text that may be passed over
_END = 10_000  # characters at the end of a text that are looked at first, before all of it

_BRACES = re.compile(r"\\(?:boxed|fbox)\s{0,4}\{|\\(?:boxed|fbox)(?![A-Za-z])|\\[{}\\]|[{}]")
_HASHES = re.compile(r"(?<!#)####(?!#)")
_HEADING = re.compile(r"\s*[0-9]+[.)]\s+[A-Za-z]")
_LINE_A = re.compile(r"^[ \t*]{0,8}A[ \t*]{0,4}:", re.MULTILINE)
# Up to the next "answer" at most, so that every character is passed for one of them only.
_ANSWER = re.compile(
    r"(?<!\w)answers?(?!\w)(?:\s(?:to|for"
    r"|of)\s(?:(?!\banswers?\b)[^.\n:=]){0,60}?)?[\s*_`,]{0,6}(?:(?:therefore|then|thus|now"
    r"|hence)[\s,]{1,3})?"
    r"(?:(?P<heading>[:=])|(?:(?:would|should|will|must|has\sto)\sbe|comes\s(?:out\s)?to|is|are"
    r"|was|equals)(?!\w)(?!\s+not(?!\w)))",
    re.IGNORECASE,
)
# What may stand between a form and the number directly after it: no letters but LaTeX's, currency
# codes and words of approximation.
_BETWEEN = re.compile(
    r"(?:[^A-Za-z0-9\\]|\\[(\[{]|\\(?:boxed|fbox|text|textbf|mathbf|mathrm|left|approx"
    r"|displaystyle)(?![A-Za-z])"
    r"|(?:approximately|approx|about|exactly|just|simply|only|also|roughly|around|equal|to|USD"
    r"|EUR|GBP|Rs)(?![A-Za-z]))*",
    re.IGNORECASE,
)
# What makes two numbers one list or one hedge, when markup is gone and a space follows every word
# and mark.
_MARKUP = re.compile(r"\\(?:[A-Za-z]+|.)|[$*_`~{})\]?]|\((?=\s?(?:or|and)\s)")
_MARK = re.compile(r"[,;&–/|]")
_LINK = re.compile(
    r"(?P<unit>(?:[A-Za-z°%]+ ){0,3}?)(?P<link>(?:[,;&–/|]"
    r" )?(?:or|and|to|vs|versus|through|thru|till|until|maybe|perhaps|possibly) |[,;&–/|] )"
    r"(?:(?:or|and|even|also|maybe|perhaps|possibly|probably|[A-Za-z] =) )*",
    re.IGNORECASE,
)
_HEDGES = {"or", "vs", "versus", "maybe", "perhaps", "possibly"}
_RANGES = {"to", "–", "through", "thru", "till", "until"}
_COMPOUND = re.compile(
    r"(?:hours?|hrs?|h|minutes?|mins?|years?|months?|weeks?|days?|feet|foot|ft|dollars?"
    r"|pounds?|lbs?) ",
    re.IGNORECASE,
)
# What makes the second of two numbers an aside: ", or 6 each", ", 3 more than 15", ", 3/4 of 24", "
# to 2 decimal places".
_ASIDE = re.compile(
    r"[\s*}%]{0,4}(?:(?P<places>decimal|significant|places)|(?:[A-Za-z]{1,20}\s)?(?:(?:each|per"
    r"|apiece)(?![A-Za-z])|(?:more|less|fewer)\sthan"
    r"|of\s\$?[0-9]|times\s(?:as|more|[0-9])|=|[-−+*/x×÷]\s?\$?[0-9]|\\(?:times|cdot|div)))",
    re.IGNORECASE,
)
_UNIT = re.compile(r"(?:\\text|[\s{}$*\\])*(?!(?:or|and|to)(?![A-Za-z]))([A-Za-z]+|%)")
_RATIOS = {3, 4, 7, 12, 16, 24, 36, 52, 60, 100, 365, 1000, 3600}  # of units in daily use
_PARTS_OF_ONE = {"%", "percent", "cent", "dozen"}  # what may be said beside a number without a unit
_SENTENCE_END = re.compile(r"[.!?](?=\s|$)")
_EMPTY_LINE = re.compile(r"[\s*_`$:\-]*(?:\\[(\[]\s*)?")
_SPACE = re.compile(r"\s*")
_SEPARATORS = re.compile(r"(?:[\s,;|&*_`\\]|\\text)*")
# Tags and marks of chat templates, whose brackets are no signs of inequality.
_IN_ANGLES = re.compile(r"(?<!<)<([^<>A-Za-z\n]{1,40})>(?!>)")
_ANSWER_TAG = re.compile(r"<answer>((?:(?!</?answer>).)*)</answer>", re.IGNORECASE | re.DOTALL)
_TAG = re.compile(r"</?[A-Za-z][^<>\n]{0,60}>|<\|[^<>\n|]{0,40}\|>")
_SPACED_GROUPS = re.compile("(?<![0-9.,])[0-9]{1,3}(?: [0-9]{3})+(?![0-9]|-[A-Za-z])")
_O_CLOCK = re.compile("(?<=[0-9]):00(?![0-9:])")
_RATIO = re.compile("(?<=[0-9]):(?=[0-9]{1,2}(?![0-9]))")


class _NoOneNumber(Exception):
    """The answer is several numbers, or something that a number is only a part of."""


def extract_answer(text: str) -> Answer | None:
    """The answer a text gives, or None if it gives none; see the module's text. Never raises."""
    text = numerals.normalised(after_thinking(text)[-_MOST_CHARACTERS:])
    text = _TAG.sub(" ", _ANSWER_TAG.sub(r"\\boxed{\1}", text))
    text = _IN_ANGLES.sub(r" \1 ", text)
    text = _RATIO.sub("∶", _O_CLOCK.sub("", text))
    forms, denied = _forms(text), False
    try:
        for place, (start, stop, form) in enumerate(forms):
            if form in ("phrase", "heading") and context.is_denied_form(text, start):
                denied = True
                continue
            found = _said_by(text, start, stop, form)
            if found is not None:
                several = form == "boxed" and _boxed_with_another(text, forms, place, found)
                return None if several or found.value in _denied_values(text, start) else found
        return None if denied else _last_number(text)
    except _NoOneNumber:
        return None


def after_thinking(text: str) -> str:
    """Returns the text after the last `</think>`; an empty text if a `<think>` is left open."""
    said = text[text.rfind("</think>") + len("</think>") :] if "</think>" in text else text
    return "" if "<think>" in said else said


def parse_number(text: str) -> Fraction | None:
    """The first number of a short text, units and currency apart ("$1,234.50"), or None."""
    text = _without_spaces(numerals.normalised(text[: 2 * numerals.LONGEST_NUMERAL]))
    found = as_answer(NUMBER.search(text), "number")
    if found is None:
        return None
    return found.value * 100 if found.scale < 1 else found.value


def exact_number(text: str) -> Fraction | None:
    """The value of a text that is one number and nothing but white space, or None."""
    if len(text) > 2 * numerals.LONGEST_NUMERAL:
        return None
    written = numerals.normalised(text.replace("\\%", "")).strip()
    match = NUMBER.fullmatch(re.sub(r"^([-−+])\s+", r"\1", written))
    if match is None or match["scale"] or match["letter"] or "and" in match[0]:
        return None
    found = as_answer(match, "number")
    return found.value if found is not None else None


def final_number_is(completion: str, answer: str, question: str = "") -> bool:
    """Returns True if a completion's final number is the right answer.

    Args:
        completion: what a model wrote.
        answer: the right answer, such as "18", "1,080" or "1/2".
        question: what was asked. Where it speaks of millions, "3 million" is right for 3 as well as
            for 3,000,000, and where it speaks of percent, "0.5%" for 0.5.

    Returns:
        True if it is; False if it is not or the completion gives no number.

    Raises:
        ValueError: `answer` holds no number, so nothing could be right.
    """
    truth = parse_number(answer)
    if truth is None:
        raise ValueError(f"the right answer {answer[:80]!r} holds no number")
    given = extract_answer(completion)
    if given is None:
        return False
    question = question.lower()
    asked_in = {scale for word, scale in numerals.SCALES.items() if word in question}
    if "%" in question or "percent" in question:
        asked_in.add(Fraction(1, 100))
    return given.value == truth or (given.scale in asked_in and given.value / given.scale == truth)


def _without_spaces(text: str) -> str:
    """The text with the first number of thousands apart (1 000 000) in one piece."""
    return _SPACED_GROUPS.sub(lambda found: found[0].replace(" ", ""), text, count=1)


def _forms(text: str) -> list[tuple[int, int, str]]:
    """(start, stop, form) of each explicit form, the last first; stop -1 at the line end."""
    forms = [(match.end(), -1, "hashes") for match in _HASHES.finditer(text)]
    forms += [(match.end(), -1, "heading") for match in _LINE_A.finditer(text)]
    forms += [
        (match.end(), -1, "heading" if match["heading"] else "phrase")
        for match in _ANSWER.finditer(text)
    ]
    forms += [(start, stop, "boxed") for start, stop in boxes(text)]
    return sorted(forms, reverse=True)[:_MOST_FORMS]


def spoken_forms(text: str) -> list[tuple[int, str]]:
    """Finds each "####", "Answer:" and "the answer is", the last first; 1,000 at most.

    Yields where each ends and its kind ("hashes", "heading", "phrase").
    """
    return [(start, form) for start, _, form in _forms(text) if form != "boxed"]


def boxes(text: str) -> Iterator[tuple[int, int]]:
    """Start and stop of the contents of boxes, in the order in which they end; stop is -1 for
    one without braces (\\boxed 18).

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
    """The number that a form gives, None for none; _NoOneNumber for several or a part."""
    next_line = False
    if stop < 0:
        stop = _line_end(text, start)
        if form != "boxed" and _EMPTY_LINE.fullmatch(text, start, stop):
            start, next_line = _SPACE.match(text, stop).end(), True
            stop = _line_end(text, start)
    elif stop - start > _REACH:
        return None
    said = _without_spaces(text[start:stop])
    if form == "boxed":  # - 5: elsewhere such a dash is a list's or a subtraction's
        said = re.sub(r"^\s*([-−])\s+", r"\1", said)
    else:
        said = re.sub(r"^([\s*$]{0,8})−\s+", r"\1−", said)
    if form == "hashes" and _HEADING.match(said):
        return None
    numbers = list(NUMBER.finditer(said))
    if not numbers:
        return None
    chosen = numbers[0]
    directly = _BETWEEN.fullmatch(
        said, 0, chosen.start()
    ) is not None and not context.is_passed_over(said, chosen)
    if not directly or context.GOES_ON.match(said, chosen.end()) or context.is_bound(said, chosen):
        if form == "heading" or next_line or (form == "hashes" and not directly):
            return None
        end = None if form == "boxed" else _SENTENCE_END.search(said, chosen.end())
        numbers = [number for number in numbers if end is None or number.end() <= end.start()]
        counted = [number for number in numbers if not context.is_passed_over(said, number)]
        if not counted and form == "boxed":
            raise _NoOneNumber
        if not counted:
            return None
        equals = said.rfind("=", 0, end.start() if end else len(said))
        chosen = next((number for number in counted if number.start() > equals >= 0), counted[-1])
    if context.is_part(said, chosen) or (
        form == "boxed" and context.GOES_ON_IN_A_BOX.match(said, chosen.end())
    ):
        raise _NoOneNumber
    place = numbers.index(chosen)
    beside = itertools.pairwise(numbers[max(0, place - 1) : place + 2])
    if any(_are_several(said, one, other, directly) for one, other in beside):
        raise _NoOneNumber
    return as_answer(chosen, form)


def _value_of(number: re.Match) -> Fraction | None:
    found = as_answer(number, "number")
    return found and found.value


def _last_number(text: str) -> Answer | None:
    """The last number of a text without forms; _NoOneNumber for several or a part."""
    numbers = list(NUMBER.finditer(text, max(0, len(text) - _END)))
    if len(numbers) < 2 * _MOST_DENIED:  # the first of them may be the rest of a longer one
        numbers = NUMBER.finditer(text)
    last, denied = deque(numbers, maxlen=_MOST_DENIED), set()
    while last and context.is_passed_over(text, last[-1]):
        number = last.pop()
        if context.is_denied(text, number):
            denied.add(_value_of(number))
    if not last:
        return None
    several = len(last) > 1 and _are_several(text, last[-2], last[-1], False)
    if several or context.is_part(text, last[-1]) or _are_a_list(text, last):
        raise _NoOneNumber
    found = as_answer(last[-1], "number")
    return None if found is None or found.value in denied else found


def _denied_values(text: str, start: int) -> set[Fraction | None]:
    """Values of the numbers near the end of a text that it denies after a place."""
    numbers = deque(NUMBER.finditer(text, max(start, len(text) - _END)), maxlen=_MOST_DENIED)
    return {_value_of(number) for number in numbers if context.is_denied(text, number)}


def _are_a_list(text: str, numbers: Sequence[re.Match]) -> bool:
    """True if the last of three numbers or more, or of two alone, ends a list without words."""
    first, ends = len(numbers) - 1, [0, *(number.end() for number in numbers)]
    while first > 0 and _SEPARATORS.fullmatch(text, ends[first], numbers[first].start()):
        first -= 1
    alone = first == 0 and _SEPARATORS.fullmatch(text, 0, numbers[0].start()) is not None
    listed = {_value_of(numbers[place]) for place in range(first, len(numbers))}
    return len(listed) > 1 and (alone or len(numbers) - first > 2)


def _link(between: str) -> re.Match | None:
    """The link of two numbers by the text between them, to a list or hedge; None without."""
    return _LINK.fullmatch(
        "".join(f"{word} " for word in _MARK.sub(r" \g<0> ", _MARKUP.sub(" ", between)).split())
    )


def _are_several(text: str, one: re.Match, other: re.Match, directly: bool) -> bool:
    """True for two answers or parts of one; `directly` if no words precede, whose list it is."""
    between = text[one.end() : other.start()]
    if len(between) > context.NEAR or context.is_denied(text, other):
        return False
    link = _link(between)
    if link is None:
        # But 12 20-cent coins.
        beside = not _MARKUP.sub("", between).strip() and not text.startswith("-", other.end())
        return directly and (beside or _COMPOUND.fullmatch(between.strip() + " ") is not None)
    how, unit = link["link"].lower().split()[-1], link["unit"]
    if how in _RANGES:
        if unit or not directly:
            return False
    elif how not in _HEDGES and not directly and (unit or how != "and"):
        return False
    aside = _ASIDE.match(text, other.end())
    bare = link.group().strip() in ("or", "and", "to")
    if aside and (aside["places"] or not bare):
        return False
    return not _are_the_same_amount(text, one, other, how)


def _are_the_same_amount(text: str, one: re.Match, other: re.Match, how: str) -> bool:
    """True if equal, also in two units (5 dollars, 500 cents), or a sum and its result."""
    if how == "or" and context.is_part(text, one):  # 30 + 160 or 190
        return True
    values = [_value_of(one), _value_of(other)]
    if None in values or values[0] == values[1]:
        return None not in values
    units = {_unit(text, one), _unit(text, other)}
    named = len(units) == 2 and ("" not in units or units & _PARTS_OF_ONE)
    return bool(named) and how != "and" and min(values) > 0 and max(values) / min(values) in _RATIOS


def _unit(text: str, number: re.Match) -> str:
    found = _UNIT.match(text, number.end(), number.end() + context.NEAR)
    if found:
        return found[1].lower().removesuffix("s")
    return "$" if re.search("[$€£¥₹]", number[0]) else ""


def _boxed_with_another(
    text: str, forms: list[tuple[int, int, str]], place: int, found: Answer
) -> bool:
    r"""True if a box and another number are one answer: \boxed{18} or \boxed{19}."""
    start, stop, form = forms[place + 1] if place + 1 < len(forms) else (0, -1, "")
    end = forms[place][0]
    if form != "boxed" or not 0 <= end - stop <= context.NEAR or _link(text[stop:end]) is None:
        return False
    another = _said_by(text, start, stop, form)
    return another is not None and another.value != found.value


def _line_end(text: str, start: int) -> int:
    stop = text.find("\n", start, start + _REACH)
    return min(start + _REACH, len(text)) if stop < 0 else stop
