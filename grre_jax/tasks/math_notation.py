r"""One way of writing mathematics out of many: what means the same in another notation becomes the same text, and units come off.

    normalised(r"\dfrac12 \text{ cm}")  ->  \frac{1}{2}\text{cm}
    without_unit(...)                   ->  (\frac{1}{2}, "cm")

Everything is a fixed number of linear passes over a text of at most a thousand characters.
"""

import re
import unicodedata

_SYMBOLS = {
    **dict.fromkeys("−–—‐‑﹣－", "-"),
    **{"×": r"\times ", "·": r"\cdot ", "⋅": r"\cdot ", "÷": "/", "⁄": "/", "∕": "/", "∗": "*"},
    **{"π": r"\pi ", "∞": r"\infty ", "√": r"\sqrt ", "±": r"\pm ", "∓": r"\mp ", "°": r"^\circ ", "º": r"^\circ "},
    **{"≤": r"\le ", "⩽": r"\le ", "≥": r"\ge ", "⩾": r"\ge ", "≠": r"\ne ", "≈": r"\approx ", "∈": r"\in ", "∪": r"\cup ", "∩": r"\cap "},
    **{"∅": r"\emptyset ", "ℝ": r"\mathbb{R}", "ℤ": r"\mathbb{Z}", "ℕ": r"\mathbb{N}", "θ": r"\theta ", "α": r"\alpha ", "β": r"\beta "},
    **{"\u00a0": " ", "\u202f": " ", "\u2009": " ", "\u200b": "", "\ufeff": "", "’": "'", "‘": "'", "“": '"', "”": '"', "％": "%"},
    **{
        "½": r"\frac{1}{2}",
        "⅓": r"\frac{1}{3}",
        "⅔": r"\frac{2}{3}",
        "¼": r"\frac{1}{4}",
        "¾": r"\frac{3}{4}",
        "⅕": r"\frac{1}{5}",
        "⅛": r"\frac{1}{8}",
    },
}
_RAISED = {raised: str(digit) for digit, raised in enumerate("⁰¹²³⁴⁵⁶⁷⁸⁹")} | {"⁻": "-", "ⁿ": "n"}
_SIZES = re.compile(
    r"\\(?:left|right|bigl|bigr|Bigl|Bigr|biggl|biggr|big|Big|bigg|Bigg|middle|displaystyle|textstyle|limits)(?![A-Za-z])\.?"
)
_SPACES = re.compile(r"\\(?:quad|qquad|hspace\{[^}]*\}|hfill|thinspace)(?![A-Za-z])|\\[,!;: >]|(?<!\\)~|\{\s*\}")
_UPRIGHT = re.compile(r"\\(?:textbf|textit|textrm|textnormal|mathrm|mbox|operatorname|mathit|emph|texttt|mathsf)\s*\{")
_BARE_UPRIGHT = re.compile(r"\\(?:rm|bf|it)(?![A-Za-z])")
_ENCLOSING = re.compile(r"\\(?:boxed|fbox|mathbf|boldsymbol|bm|underline|ensuremath|tag)\s*(?=\{)|\\(?:boxed|fbox)(?![A-Za-z])")
_RENAMED = {
    **{r"\\[dtc]frac(?![A-Za-z])": r"\\frac", r"\\leqs?(?:lant)?(?![A-Za-z])": r"\\le", r"\\geqs?(?:lant)?(?![A-Za-z])": r"\\ge"},
    **{r"\\neq(?![A-Za-z])": r"\\ne", r"\\to(?![A-Za-z])": r"\\rightarrow", r"\\varnothing(?![A-Za-z])": r"\\emptyset"},
    **{r"\\lbrace(?![A-Za-z])": r"\\{", r"\\rbrace(?![A-Za-z])": r"\\}", r"\\(?:lor|vee)(?![A-Za-z])": r"\\text{or}"},
    **{r"\\(?:land|wedge)(?![A-Za-z])": r"\\text{and}", r"\\(?:big)?cup(?![A-Za-z])": r"\\cup", r"\\degrees?(?![A-Za-z])": r"^\\circ"},
    **{r"\^\s*\{\s*\\circ\s*\}": r"^\\circ", r"\\(?:lt|gt)(?![A-Za-z])": lambda m: "<" if "l" in m[0] else ">", r"\*\*": "^"},
    **{r"\{,\}": ",", r"\\log\s*_\s*\{?\s*e\s*\}?(?![A-Za-z])": r"\\ln", r"(?<=[0-9])\s*\\?%": r"\\%"},
}
_RENAMINGS = [(re.compile(written), meant) for written, meant in _RENAMED.items()]
_FRACTION_ARGUMENTS = re.compile(r"\\frac\s*(?!\{)([0-9A-Za-z])\s*(?:([0-9A-Za-z])|(?=\{))|\\frac\s*(\{[^{}]*\})\s*([0-9A-Za-z])")
_ROOT_ARGUMENT = re.compile(r"\\sqrt\s*([0-9]+|[A-Za-z])|\\sqrt\s*\(([^()]*)\)|(?<![\\A-Za-z])sqrt\s*\(([^()]*)\)")
_PLAIN_POWER = re.compile(r"\^\s*\(([^()]*)\)|\^\s*(-?[0-9]{2,}|-[0-9])")
_PLAIN_NAMES = re.compile(r"(?<![\\A-Za-z])(pi|infinity|infty|inf|theta|sin|cos|tan|ln|log)(?![A-Za-z])")
_UNARY_PLUS = re.compile(r"(^|[(\[,=<>{])\s*\+\s*(?=[0-9A-Za-z\\.(])")
_TEXT = re.compile(r"\\text\s*\{([^{}]*)\}")

_UNIT_WORDS = (
    "degree degrees deg dollar dollars cent cents percent unit units inch inches in ft foot feet yard yards yd mile miles mi mph cm mm km meter meters metre metres "
    "kg gram grams lb lbs pound pounds ounce ounces oz liter liters litre litres ml hour hours hr hrs minute minutes min mins second seconds sec secs day days week "
    "weeks month months year years radian radians rad point points people ways square cubic sq usd eur way times cubes"
).split()
_SAME_UNITS = {
    **{
        "inches": "in",
        "inch": "in",
        "foot": "ft",
        "feet": "ft",
        "centimeter": "cm",
        "centimeters": "cm",
        "centimetre": "cm",
        "centimetres": "cm",
    },
    **{
        "meter": "m",
        "meters": "m",
        "metre": "m",
        "metres": "m",
        "kilometer": "km",
        "kilometers": "km",
        "kilometre": "km",
        "kilometres": "km",
    },
    **{
        "millimeter": "mm",
        "millimeters": "mm",
        "gram": "g",
        "grams": "g",
        "kilogram": "kg",
        "kilograms": "kg",
        "second": "s",
        "seconds": "s",
        "sec": "s",
        "secs": "s",
    },
    **{
        "hr": "h",
        "hrs": "h",
        "hour": "h",
        "hours": "h",
        "minute": "min",
        "minutes": "min",
        "mins": "min",
        "milesperhour": "mph",
        "unit": "",
        "units": "",
    },
    **{
        "squareunits": "",
        "squareunit": "",
        "cubicunits": "",
        "sqin": "in^2",
        "sqft": "ft^2",
        "sqcm": "cm^2",
        "degree": "deg",
        "degrees": "deg",
        "^\\circ": "deg",
    },
    **{
        "cent": "cents",
        "dollar": "dollars",
        "usd": "dollars",
        "$": "dollars",
        "€": "euros",
        "eur": "euros",
        "£": "gbp",
        "liter": "l",
        "liters": "l",
        "yard": "yd",
    },
    **{
        "radian": "rad",
        "radians": "rad",
        "litre": "l",
        "litres": "l",
        "pound": "lb",
        "pounds": "lb",
        "lbs": "lb",
        "yards": "yd",
        "mile": "mi",
        "miles": "mi",
    },
}
_WORDS = "|".join(sorted(_UNIT_WORDS, key=len, reverse=True))
# One at a time and anchored at the end: a pattern for several would try every way to share out the spaces between them.
_LAST_UNIT = re.compile(
    rf"\s?(?:(?:\\text\s?\{{(?!\s?(?:and|or)\s?\}})[A-Za-z./ \-]+\}}|(?<![A-Za-z\\])(?:{_WORDS})\.?)(?:\s?\^\s?\{{?\s?[23]\s?\}}?)?|\^\\circ(?:\s?[CF])?|/)$"
)
_MOST_UNITS = 6  # in a row, slashes counted
_PLAIN_WORDS = re.compile(r"(?P<core>-?[0-9][0-9,./]*)\s+(?P<unit>(?!.*\b(?:and|or|not|nor|than|to)\b)[A-Za-z]{3,}(?:\s[A-Za-z]+){0,4})$")
_CURRENCY = re.compile(r"(?P<sign>-?)\s*(?P<unit>[$€£])\s*(?P<core>-?[0-9.].*)$", re.DOTALL)


def normalised(text: str) -> str:
    """The text in one notation, as the module describes. Never raises."""
    text = "".join(_character(character) for character in text)
    text = re.sub(r"[⁰¹²³⁴⁵⁶⁷⁸⁹⁻ⁿ]+", lambda found: "^{" + "".join(_RAISED[c] for c in found[0]) + "}", text)
    text = (
        text.replace("\\\\", "\x01")
        .replace("\\$", "\x00")
        .replace("$$", "")
        .replace("\\(", "")
        .replace("\\)", "")
        .replace("\\[", "")
        .replace("\\]", "")
    )
    money = re.match(r"^\s*-?\$\s*[0-9.,]+\s*$", text)  # $5 has one dollar sign, $5$ two
    text = (text if money else text.replace("$", "")).replace("\x00", "$").replace("`", "")
    text = re.sub(r"\*\*(.*)\*\*", r"\1", text)
    text = _ENCLOSING.sub("", _SIZES.sub("", text))
    text = _UPRIGHT.sub(r"\\text{", _BARE_UPRIGHT.sub("", text))
    text = _SPACES.sub(" ", re.sub(r"\s?\\!\s?", "", text))
    for written, meant in _RENAMINGS:
        text = written.sub(meant, text)
    text = _PLAIN_NAMES.sub(lambda found: "\\" + {"inf": "infty", "infinity": "infty"}.get(found[0], found[0]) + " ", text)
    text = _ROOT_ARGUMENT.sub(lambda found: "\\sqrt{" + next(g for g in found.groups() if g is not None) + "}", text)
    text = _FRACTION_ARGUMENTS.sub(_braced_fraction, text)
    text = _UNARY_PLUS.sub(r"\1", text.replace(";", ", "))
    text = _PLAIN_POWER.sub(lambda found: "^{" + (found[1] if found[1] is not None else found[2]) + "}", text)
    text = re.sub(r"(\\text\{[^{}]*\}|\bpercent\b)", lambda found: r"\%" if "percent" in found[0] else found[0], text)
    return " ".join(text.replace("\x01", r" \\ ").split()).lstrip(" ,;:").rstrip(" .,;:")


def squeezed(text: str) -> str:
    """Without white space and without what braces and text marks add: equal for texts that are read the same."""
    text = _TEXT.sub(r"\1", text)
    text = re.sub(r"([_^])\{([0-9A-Za-z])\}", r"\1\2", text)
    return re.sub(r"\s+", "", text)


def words(text: str) -> str | None:
    """The words of an answer that is words, in lower case: \\text{Evelyn}, (C), "even"; None for mathematics."""
    plain = re.sub(r"[\s\"'.{}]+", " ", _TEXT.sub(r" \1 ", text)).strip()
    choice = re.fullmatch(r"\(?\s*([A-Z])\s*\)?|\(\s*([a-j])\s*\)", plain)
    if choice:
        return (choice[1] or choice[2]).lower()
    return (
        plain.lower() if re.fullmatch(r"[A-Za-z][A-Za-z\-, ]+", plain) and ("\\text" in text or re.search(r"[A-Za-z]{3}", plain)) else None
    )


def without_unit(text: str) -> tuple[str, str]:
    """(what is measured, its unit in a canonical short form or "" for none): money, degrees, \\text{...} and common unit words."""
    money = _CURRENCY.match(text)
    if money:
        core, unit = without_unit(money["sign"] + money["core"])
        return core, _SAME_UNITS[money["unit"]] if not unit else unit
    core, unit = _cut(text)
    if not unit:
        return text, ""
    unit = re.sub(r"[\s{}.]+", "", _TEXT.sub(r"\1", unit)).lower()
    unit = re.sub(r"^square(?=[a-z])(.*)$", lambda m: _SAME_UNITS.get(m[1], m[1]) + "^2" if m[1] not in ("units", "unit") else "", unit)
    unit = re.sub(r"^cubic(?=[a-z])(.*)$", lambda m: _SAME_UNITS.get(m[1], m[1]) + "^3" if m[1] not in ("units", "unit") else "", unit)
    base, caret, power = unit.partition("^") if unit != "^\\circ" else (unit, "", "")
    return core, _SAME_UNITS.get(base, base) + caret + power if _SAME_UNITS.get(base, base) else ""


def _cut(text: str) -> tuple[str, str]:
    """(core, unit as it was written); (text, "") where there is none."""
    plain = _PLAIN_WORDS.fullmatch(text)
    if plain:
        return plain["core"], plain["unit"]
    start = len(text)
    for _ in range(_MOST_UNITS):
        found = _LAST_UNIT.search(text, 0, start)
        if not found:
            break
        start = found.start()
    core, unit = text[:start].rstrip(), text[start:].strip()
    if unit and re.search(r"[0-9A-Za-z)}\]!]$", core) and not unit.startswith("/") and not unit.endswith("/"):
        return core, unit
    return text, ""


def _character(character: str) -> str:
    if character in _SYMBOLS:
        return _SYMBOLS[character]
    if character < "\x7f" and character >= " ":
        return character
    category = unicodedata.category(character)
    if category == "Nd":
        return str(unicodedata.decimal(character))
    if category.startswith("C"):
        return " " if character.isspace() else ""
    if "\uff01" <= character <= "\uff5e":  # full-width forms of ASCII
        return chr(ord(character) - 0xFEE0)
    return character


def _braced_fraction(found: re.Match) -> str:
    above = found[1] or found[3]
    below = found[2] or found[4] or ""
    above = above if above.startswith("{") else "{" + above + "}"
    return "\\frac" + above + ("{" + below + "}" if below else "")
