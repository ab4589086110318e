r"""Numbers as they are written (digits of any script, LaTeX, words after them), and their
values.
"""

import re
import unicodedata
from dataclasses import dataclass
from fractions import Fraction
from math import prod

LONGEST_NUMERAL = 400

# The pairs of digits are few: unlimited, a text of nothing else would be gone through from each of
# them.
_DIGITS = (
    r"(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]{1,2}(?:,[0-9]{2}){1,8},[0-9]{3}(?![0-9])|[0-9]+)"
)
_DECIMAL = rf"(?:{_DIGITS}(?:\.[0-9]+)?|(?<![\w)\]}}])\.[0-9]+)"


def _latex_fraction(name: str) -> str:
    r"""A pattern for \frac{1}{2} (groups NAME_above, NAME_below) and \frac12 (_up, _down)."""
    above, below = rf"(?P<{name}_above>[-−]?{_DECIMAL})", rf"(?P<{name}_below>[-−]?{_DECIMAL})"
    return (
        rf"\\[dtc]?frac\s?(?:\{{\s?{above}\s?\}}"
        rf"|(?P<{name}_up>[0-9]))\s?(?:\{{\s?{below}\s?\}}|(?P<{name}_down>[0-9]))"
    )


# A sign belongs to the number only where no operand stands before it: 5-3 ends in 3, "= -3" in -3.
_SIGN = r"(?:(?<![\w.)\]}%])(?P<sign>[-+−–])|(?<==)\s?(?P<spaced_sign>[-−])\s)?"
_CURRENCY = r"(?:[$€£¥₹]\s?(?P<inner_sign>[-−])?)?"
RAISED = "⁺⁻⁰¹²³⁴⁵⁶⁷⁸⁹"
_TEN = (
    rf"10\s?(?:(?:\^|\*\*)\s?\{{?(?P<ten>[+-]?[0-9]{{1,3}})(?![0-9])\}}?"
    rf"|(?P<raised>[⁺⁻]?[⁰¹²³⁴⁵⁶⁷⁸⁹]{{1,3}})(?![{RAISED}]))"
)
_POWER = rf"(?:[eE](?P<e>[+-]?[0-9]{{1,3}})(?!\w)|\s?(?:\\times|\\cdot|[×x*·])\s?{_TEN})"
VULGAR = "[¼-¾⅐-⅞]"
_SLASH = rf"(?P<mixed>\s(?:and\s)?[0-9]+)?\s?/\s?(?P<below>{_DIGITS})(?![0-9/]|\.[0-9])"
_MIXED = rf"\s?(?:and\s)?(?:{_latex_fraction('m')}|(?P<part>{VULGAR}))"
_SCALE = (
    r"(?:\s?(?:\\text\s?\{\s?)?(?P<scale>(?ai:(?:hundred|dozen|thousand|lakh|crore|(?:m|b"
    r"|tr)illions?)(?:\s(?:thousand|(?:m|b|tr)illion))?))(?![A-Za-z])"
    r"|(?<=[0-9])(?P<letter>[kKM])(?![A-Za-z0-9]))?"
)
NUMBER = re.compile(
    rf"{_SIGN}{_CURRENCY}(?:{_latex_fraction('f')}|(?<![A-Za-z0-9])(?<![A-Za-z0-9)}}\]]_)(?P<vulg"
    rf"ar>{VULGAR})"
    rf"|(?<![A-Za-z0-9])(?<![A-Za-z0-9)}}\]]_)(?P<decimal>{_DECIMAL})(?:{_POWER}|{_MIXED}"
    rf"|{_SLASH})?){_SCALE}"
)
_LOWERED = str.maketrans(RAISED, "+-0123456789")
_LETTERS = {"k": 10**3, "K": 10**3, "M": 10**6}
SCALES = {"dozen": 12, "hundred": 10**2, "thousand": 10**3, "lakh": 10**5, "million": 10**6}
SCALES |= {"crore": 10**7, "billion": 10**9, "trillion": 10**12}

_PERCENT = re.compile(r"(?:\\text|[\s{$])*(?:%|per\s?cent(?![A-Za-z]))", re.IGNORECASE)
_THIN_GROUPS = re.compile("(?<![0-9.,])[0-9]{1,3}(?:[\u2009\u202f'’][0-9]{3})+(?![0-9])")
# Digits of other scripts, full-width characters, and other signs for what numbers are made of.
_ASCII = {
    code: str(unicodedata.decimal(chr(code)))
    for code in range(0x80, 0x1FFFF)
    if chr(code).isdecimal()
}
_ASCII |= dict.fromkeys((*range(0x200B, 0x2010), *range(0x2060, 0x2065), 0xFEFF))  # without width
_ASCII |= {0xFF01 + place: chr(0x21 + place) for place in range(94)} | str.maketrans(
    "‐‑‒﹣⁄∕∗⋅∙٫٬", "----//*··.,"
)


@dataclass(frozen=True)
class Answer:
    """The answer that a text gives.

    Attributes:
        value: the number, exactly.
        form: how it was said: "hashes", "boxed", "phrase", "heading", or "number" for the last
            number of a text without any of these.
        text: the number as it was written, after LaTeX's spaces and escapes were taken out.
        scale: what is behind the number multiplied it by: 10**6 for "3 million", whose value is
            3,000,000; 1/100 for "0.5%", whose value is 0.005 (from 1 on percent signs do not
            count).
    """

    value: Fraction
    form: str
    text: str
    scale: Fraction = Fraction(1)


def normalised(text: str) -> str:
    r"""LaTeX's spaces and escapes in numbers taken out: 1{,}234 and 1,\!234 are 1,234, 1\,234 is
    1234, \$5 is $5; thin spaces between thousands too.
    """
    text = text.replace("\0", "")
    if not text.isascii():
        text = text.translate(_ASCII)
    text = _THIN_GROUPS.sub(lambda found: re.sub("[^0-9]", "", found[0]), text)
    text = text.replace("{,}", ",").replace("\\!", "").replace("\\,", "")
    text = text.replace("\\$", "$").replace("\\%", "%")
    return text.replace("\u00a0", " ").replace("\u202f", " ")


def as_answer(match: re.Match | None, form: str) -> Answer | None:
    """The exact value of a matched number; None for no match or a numeral too long."""
    if match is None or len(match.group()) > LONGEST_NUMERAL:
        return None
    try:
        value = _unscaled(match) * _scale(match)
    except ZeroDivisionError:
        return None
    negative = (match["sign"] or match["spaced_sign"] or "+") != "+"
    value = -value if negative != bool(match["inner_sign"]) else value
    if 0 < abs(value) < 1 and _PERCENT.match(match.string, match.end()):
        return Answer(value / 100, form, match.group(), Fraction(1, 100))
    return Answer(value, form, match.group(), Fraction(_scale(match)))


def _scale(match: re.Match) -> int:
    """Returns the factor of the words after a number: 1000 for "5 thousand"."""
    words = (match["scale"] or "").lower().split()
    return prod(SCALES[word.removesuffix("s")] for word in words) * _LETTERS.get(match["letter"], 1)


def _unscaled(match: re.Match) -> Fraction:
    """The value but for sign and words; ZeroDivisionError for a denominator of 0."""
    if match["vulgar"]:
        return _vulgar(match["vulgar"])
    if match["decimal"] is None:
        return _latex_value(match, "f")
    value = _plain(match["decimal"])
    power = match["e"] or match["ten"] or (match["raised"] or "").translate(_LOWERED)
    if power:
        return value * Fraction(10) ** int(power)
    if match["below"] and match["mixed"]:
        return value + _plain(match["mixed"].split()[-1]) / _plain(match["below"])
    if match["below"]:
        return value / _plain(match["below"])
    if match["part"]:
        return value + _vulgar(match["part"])
    return value + _latex_value(match, "m") if match["m_above"] or match["m_up"] else value


def _vulgar(character: str) -> Fraction:
    return Fraction(unicodedata.numeric(character)).limit_denominator(10)


def _latex_value(match: re.Match, name: str) -> Fraction:
    above = match[f"{name}_above"] or match[f"{name}_up"]
    below = match[f"{name}_below"] or match[f"{name}_down"]
    return _signed(above) / _signed(below)


def _signed(numeral: str) -> Fraction:
    return -_plain(numeral[1:]) if numeral[0] in "-−" else _plain(numeral)


def _plain(numeral: str) -> Fraction:
    return Fraction(("0" if numeral.startswith(".") else "") + numeral.replace(",", ""))
