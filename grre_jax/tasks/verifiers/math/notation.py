r"""One way of writing mathematics out of many: what means the same in another notation becomes
the same text, and units come off.

    normalised(r"\dfrac12 \text{ cm}")  ->  \frac{1}{2}\text{cm}
    without_unit(...)                   ->  (\frac{1}{2}, "cm")

Everything is a fixed number of linear passes over a text of at most a thousand characters.
"""

import re
import unicodedata

_SYMBOLS = {
    **dict.fromkeys("−–—‐‑‒﹣－", "-"),
    **dict.fromkeys("×✕✖", r"\times "),
    **dict.fromkeys("·⋅∙•", r"\cdot "),
    **{"÷": "/", "⁄": "/", "∕": "/", "∗": "*", "％": "%", "∛": r"\sqrt[3]", "∜": r"\sqrt[4]"},
    **{"ℝ": r"\mathbb{R}", "ℤ": r"\mathbb{Z}", "ℕ": r"\mathbb{N}"},
    **dict.fromkeys("º°", r"^\circ "),
    **dict.fromkeys("\u00a0\u202f\u2009", " "),
    **{"\u200b": "", "\ufeff": "", "’": "'", "‘": "'", "“": '"', "”": '"'},
}
_LETTERS = "π∞√±∓≤⩽≦≥⩾≧≠≈≃≐≅∈∪∩∖∅⟨⟩⌊⌋⌈⌉µαβγδεζηθικλμνξρστυφχψωΓΔΘΛΞΠΣΦΨΩ"
_COMMANDS = (
    "pi infty sqrt pm mp le le le ge ge ge ne approx approx approx cong in cup cap setminus"
    " emptyset langle rangle lfloor rfloor lceil rceil mu alpha beta gamma delta epsilon zeta"
    " eta theta iota kappa lambda mu nu xi rho sigma tau upsilon phi chi psi omega Gamma Delta"
    " Theta Lambda Xi Pi Sigma Phi Psi Omega"
).split()
_SYMBOLS |= {letter: rf"\{name} " for letter, name in zip(_LETTERS, _COMMANDS, strict=True)}
_RAISED = {raised: str(digit) for digit, raised in enumerate("⁰¹²³⁴⁵⁶⁷⁸⁹")} | {"⁻": "-", "ⁿ": "n"}
_LOWERED = {lowered: str(digit) for digit, lowered in enumerate("₀₁₂₃₄₅₆₇₈₉")}
_PLAIN = str.maketrans(_RAISED | _LOWERED)
_RAISED_OVER_LOWERED = re.compile("([⁰¹²³⁴⁵⁶⁷⁸⁹]+)[⁄∕/]([₀₁₂₃₄₅₆₇₈₉]+)")
_UNICODE_METRES = re.compile(r"(?<=[0-9])\s+m([²³])")  # m^2 may be a variable's square
_SIZES = re.compile(
    r"\\(?:left|right|bigl|bigr|Bigl|Bigr|biggl|biggr|big|Big|bigg|Bigg|middle"
    r"|displaystyle|textstyle|limits|large|Large)(?![A-Za-z])\.?"
)
_SPACES = re.compile(
    r"\\(?:quad|qquad|hspace\{[^}]*\}|hfill|thinspace)(?![A-Za-z])|\\[,!;: >]|(?<!\\)~|\{\s*\}"
)
_UPRIGHT = re.compile(
    r"\\(?:textbf|textit|textrm|textnormal|mathrm|mbox|operatorname|mathit|emph|texttt|mathsf)\s*\{"
)
_BARE_UPRIGHT = re.compile(r"\\(?:rm|bf|it)(?![A-Za-z])")
_ENCLOSING = re.compile(
    r"\\(?:boxed|fbox|mathbf|boldsymbol|bm|underline|ensuremath|tag)\s*(?=\{)|\\(?:boxed"
    r"|fbox)(?![A-Za-z])|\\(?:text)?color\s*\{[A-Za-z]+\}"
)
_FUNCTIONS = "sin|cos|tan|cot|sec|csc|arcsin|arccos|arctan|sinh|cosh|tanh|ln|log|exp"
_NUMERALS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen"
    " sixteen seventeen eighteen nineteen".split()
)
_SCALES = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
_SCALE = "|".join(_SCALES)
_MEMBER = r"(?:[A-Z]|-?[0-9]+)"
_RENAMED = {
    r"\\[dtc]frac(?![A-Za-z])": r"\\frac",
    r"\\leqs?(?:lant)?(?![A-Za-z])": r"\\le",
    r"\\geqs?(?:lant)?(?![A-Za-z])": r"\\ge",
    r"\\(?:simeq|doteq|thickapprox|approxeq)(?![A-Za-z])|\\(?:cong|sim)(?=\s*-?[0-9.])": (
        r"\\approx"
    ),
    r"\\(?:backslash|smallsetminus)(?![A-Za-z])|(?<=\\mathbb\{R\})\s*-\s*(?=\\\{)": (
        r"\\setminus "
    ),
    r"(?<=[0-9])\{,\}(?=[0-9]{3}(?![0-9]))": "",  # of thousands
    r"\\neq(?![A-Za-z])": r"\\ne",
    r"\\to(?![A-Za-z])": r"\\rightarrow",
    r"\\varnothing(?![A-Za-z])": r"\\emptyset",
    r"\\lbrace(?![A-Za-z])": r"\\{",
    r"\\rbrace(?![A-Za-z])": r"\\}",
    r"\\(?:lor|vee)(?![A-Za-z])": r"\\text{or}",
    r"\\(?:land|wedge)(?![A-Za-z])": r"\\text{and}",
    r"\\(?:big)?cup(?![A-Za-z])": r"\\cup",
    r"\\degrees?(?![A-Za-z])": r"^\\circ",
    r"\^\s*\{\s*\\circ\s*\}": r"^\\circ",
    r"\\(?:lt|gt)(?![A-Za-z])": lambda m: "<" if "l" in m[0] else ">",
    r"\*\*": "^",
    r"\\[lr]?Vert(?![A-Za-z])": r"\\|",
    r"\\[lr]?vert(?![A-Za-z])": "|",
    r">=": r"\\ge ",
    r"<=(?!>)": r"\\le ",
    r"\+/-": r"\\pm ",
    r"\\\{\s*\\\}": r"\\emptyset",
    r"\\[dt]binom(?![A-Za-z])": r"\\binom",
    r"\{([^{}]*)\\choose(?![A-Za-z])([^{}]*)\}": r"\\binom{\1}{\2}",
    r"\\binom\s*([0-9A-Za-z])\s*([0-9A-Za-z])": r"\\binom{\1}{\2}",
    **{rf"\\text\s*\{{\s*({_FUNCTIONS})\s*\}}": r"\\\1 ", r"\\pmod\s*([0-9A-Za-z])": r"\\pmod{\1}"},
    # a vector
    r"\\langle((?:(?!\\[lr]angle).)*,(?:(?!\\[lr]angle).)*)\\rangle(?![A-Za-z])": r"(\1)",
    # m/s as a fraction; \text{12 students}
    r"\\frac\s*\{\s*\\text\{([A-Za-z ]+)\}\s*\}\s*\{\s*\\text\{([A-Za-z ]+)\}\s*\}": (
        r"\\text{\1/\2}"
    ),
    r"^\s*\\text\s*\{\s*(-?[0-9][0-9.,]*)\s([A-Za-z ]+)\}\s*$": r"\1\\text{ \2}",
    # Bases: (1101)_2, 1101_{\text{two}}
    r"(?<![A-Za-z])\(\s*([0-9A-F]+)\s*\)\s*(?=_\s*\{?\s*(?:[0-9]|\\text))": r"\1",
    rf"(?<=_)\{{?\s*\\text\s*\{{\s*({'|'.join(_NUMERALS)})\s*\}}\s*\}}?": lambda m: (
        f"{{{_NUMERALS.index(m[1])}}}"
    ),
    rf"(?<=[0-9}}])\s*\\text\s*\{{\s*({_SCALE})\s*\}}": lambda m: rf"\cdot 10^{{{_SCALES[m[1]]}}}",
    rf"(?<=[0-9}}])\s*\\text\s*\{{\s*({_SCALE})\s": lambda m: (
        rf"\cdot 10^{{{_SCALES[m[1]]}}}\text{{"
    ),
    rf"(?<=[0-9}}])\s+({_SCALE})(?![A-Za-z])": lambda m: rf"\cdot 10^{{{_SCALES[m[1]]}}}",
    # The letters that are numbers or variables whatever their type: 5\mathrm{i} has no unit i.
    r"\\text\s*\{\s*([eixyzn])\s*\}": r" \1 ",
    r"(?<=:[0-9]{2})\s*(?:\\text\s*\{\s*)?([AaPp])\.?\s?[Mm](?![A-Za-z])\.?(?:\s*\})?": (
        lambda m: rf"\text{{ {m[1].lower()}m}}"
    ),
    # Digits and members that go on; behind anything else three points are punctuation.
    r"(\.[0-9]+)\s?\.{3,}": r"\1\\ldots ",
    r",\s*\.{3,}": r",\\ldots ",
    r"\\(?:c?dots|dotsc)(?![A-Za-z])": r"\\ldots ",
    r"\\(?:pounds|textsterling)(?![A-Za-z])": "£",
    r"\\euro(?![A-Za-z])": "€",
    r"(?<=[)\]])\s*U\s*(?=[(\[])": r"\\cup ",
    # \text{A and C} lists two answers
    rf"^\s*\\text\s*\{{\s*({_MEMBER}(?:\s*(?:,|,?\s(?:and|or)\s)\s*{_MEMBER})+)\s*\}}\s*$": (r"\1"),
    r"\{,\}": ",",
    r"\\log\s*_\s*\{?\s*e\s*\}?(?![A-Za-z])": r"\\ln",
    r"(?<=[0-9])\s*\\?%": r"\\%",
}
_RENAMINGS = [(re.compile(written), meant) for written, meant in _RENAMED.items()]
_TAKES_ARGUMENTS = re.compile(
    r"\\(?P<name>frac|sqrt)(?![A-Za-z])(?:\s*\[[^\[\]]*\])?|\^(?=\s*\\(?:frac|sqrt)(?![A-Za-z]))"
)
_ROOT_INDEX = re.compile(r"\s*\[[^\[\]]*\]")
_ARGUMENT = re.compile(r"[0-9A-Za-z]|\\(?!text)[A-Za-z]+")
_PLAIN_POWER = re.compile(r"\^\s*\(([^()]*)\)|\^\s*(-?[0-9]{2,}|-[0-9])")
_PLAIN_NAMES = re.compile(
    r"(?<![\\A-Za-z])(pi|infinity|infty|inf|theta|alpha|beta|gamma|delta|lambda|omega"
    r"|sqrt|(?:arc)?(?:sin|cos|tan)|sinh|cosh|tanh|cot|csc|exp|ln|log)(?![A-Za-z])"
)
# Thousands apart, 1 000 000; not where they may be a mixed number, an exponent's base or a
# factorial.
_GROUPS = re.compile(
    r"(?<![0-9A-Za-z.,_^/])[1-9][0-9]{0,2}(?: [0-9]{3})+(?![0-9]|,[0-9]|\s?[0-9/^_!]|\s?\\frac)"
)
_ROW_SPACE = re.compile("(?<=\x01)\\s?\\[[0-9.]+\\s?[a-z]{2}\\]")  # \\[2pt]
_HIDDEN = re.compile(r"\\(?:[hv]?phantom|sout|st|[bx]?cancel)\s*(?=\{)")
# ]0,1[ for (0,1): read from the left, so that the end of one interval is not the start of another.
_INTERVAL = re.compile(r"([\[\]])((?:[^\[\](),\\]|\\(?!cup))+,(?:[^\[\](),\\]|\\(?!cup))+)([\[\]])")
_UNARY_PLUS = re.compile(r"(^|[(\[,=<>{])\s*\+\s*(?=[0-9A-Za-z\\.(])")
_PERCENT = re.compile(r"\\text\{\s*percent(?![A-Za-z])[A-Za-z ]*\}|\bpercent\b")
TEXT_COMMAND = re.compile(r"\\text\s*\{([^{}]*)\}")
# Words behind a number that make it another, deny it or go on: what has one of them is no unit. So
# is "squared" alone.
_NO_UNITS = frozenset(
    "and or nor not no never than to is are was were be isn aren if unless when whenever where"
    " while for except but least most between under over above below wrong incorrect false invalid"
    " impossible undefined maybe perhaps possibly probably either else otherwise instead rather"
    " then plus minus divided multiplied factorial mod modulo remainder base double doubled twice"
    " thrice half halves third thirds fourth fourths quarter quarters fifths sixths sevenths"
    " eighths ninths tenths twelfths hundredths thousandths dozen dozens hundreds thousands"
    " millions billions trillions twenty thirty forty fifty sixty seventy eighty ninety repeating"
    " recurring choose x y z fifth sixth seventh eighth ninth tenth eleventh elevenths twelfth"
    " sixteenth sixteenths twentieth twentieths hundredth thousandth millionth millionths".split()
).union(_NUMERALS, _SCALES)


def normalised(text: str) -> str:
    """The text in one notation, as the module describes. Never raises."""
    text = _RAISED_OVER_LOWERED.sub(
        lambda found: rf"\frac{{{found[1].translate(_PLAIN)}}}{{{found[2].translate(_PLAIN)}}}",
        text,
    )
    text = "".join(map(_character, _UNICODE_METRES.sub(r" \\text{m}\1", text)))
    text = re.sub(r"[⁰¹²³⁴⁵⁶⁷⁸⁹⁻ⁿ]+", lambda found: "^{" + found[0].translate(_PLAIN) + "}", text)
    text = re.sub(r"[₀₁₂₃₄₅₆₇₈₉]+", lambda found: "_{" + found[0].translate(_PLAIN) + "}", text)
    text = text.replace("\\\\", "\x01").replace("\\$", "\x00").replace("$$", "")
    text = re.sub(r"\\[()\[\]]", "", text)
    money = re.match(r"^\s*-?\$\s*[0-9.,]+\s*$", text)  # $5 has one dollar sign, $5$ two
    text = (text if money else text.replace("$", "")).replace("\x00", "$").replace("`", "")
    text = re.sub(r"\*\*(.*)\*\*", r"\1", text)
    text = _ENCLOSING.sub("", _SIZES.sub("", _without_hidden(text)))
    text = _UPRIGHT.sub(r"\\text{", _BARE_UPRIGHT.sub("", text))
    text = _SPACES.sub(" ", re.sub(r"\s?\\!\s?", "", text))
    for written, meant in _RENAMINGS:
        text = written.sub(meant, text)
    text = _GROUPS.sub(lambda found: found[0].replace(" ", ""), _ROW_SPACE.sub("", text))
    text = _PLAIN_NAMES.sub(
        lambda found: "\\" + {"inf": "infty", "infinity": "infty"}.get(found[0], found[0]) + " ",
        text,
    )
    text = _with_braces(text)
    text = _INTERVAL.sub(_with_round_brackets, text.replace(";", ", "))
    text = _UNARY_PLUS.sub(r"\1", text)
    text = _PLAIN_POWER.sub(
        lambda found: "^{" + (found[1] if found[1] is not None else found[2]) + "}", text
    )
    text = _PERCENT.sub(lambda found: found[0] if says_more(found[0]) else r"\%", text)
    text = " ".join(text.strip(" \x01").replace("\x01", r" \\ ").split())
    return text.lstrip(" ,;:").rstrip(" .,;:")


def squeezed(text: str) -> str:
    """Without white space, but that between digits (3 1/2 is not 31/2), and without what braces
    and text marks add: equal for texts that are read the same.
    """
    text = TEXT_COMMAND.sub(r"\1", text)
    text = re.sub(r"([_^])\{([0-9A-Za-z])\}", r"\1\2", text)
    return re.sub(r"\s+", "", re.sub(r"(?<=[0-9])\s+(?=[0-9])", "\x00", text)).replace("\x00", " ")


def words(text: str) -> str | None:
    r"""The words of an answer, in lower case: \text{Evelyn}, (C), "even"; None for mathematics."""
    plain = re.sub(r"[\s\"'.{}]+", " ", TEXT_COMMAND.sub(r" \1 ", text)).strip()
    choice = re.fullmatch(
        r"(?:(?:[Oo]ption|[Cc]hoice|[Aa]nswer) )?(?:\(?\s*([A-Z])\s*\)?|\(\s*([a-j])\s*\))", plain
    )
    if choice:
        return (choice[1] or choice[2]).lower()
    several = {"no solutions": "no solution", "no real solutions": "no real solution"}
    plain = ({"dne": "does not exist"} | several).get(plain.lower(), plain)
    marked = "\\text" in text or re.search(r"[A-Za-z]{3}", plain)
    return plain.lower() if marked and re.fullmatch(r"[A-Za-z][A-Za-z\-, ]+", plain) else None


def says_more(unit: str) -> bool:
    """Returns True if the words after a number are more than a unit."""
    said = re.findall("[a-z]+", unit.replace("\\text", "").lower())
    return not _NO_UNITS.isdisjoint(said) or said[:1] in (["squared"], ["cubed"])


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
    above, bar, below = unicodedata.normalize("NFKC", character).partition("⁄")
    if bar and below:  # ½
        return rf"\frac{{{above}}}{{{below}}}"
    if "\uff01" <= character <= "\uff5e":  # full-width forms of ASCII
        return chr(ord(character) - 0xFEE0)
    return character


def _without_hidden(text: str) -> str:
    """Without what is not seen or struck out."""
    for found in reversed(list(_HIDDEN.finditer(text))):
        stop = _closing(text, found.end())
        text = text[: found.start()] + " " + text[stop + 1 :] if stop >= 0 else text
    return text


def _with_round_brackets(interval: re.Match) -> str:
    opening, inside, closing = interval.groups()
    return f"{'(' if opening == ']' else '['}{inside}{')' if closing == '[' else ']'}"


def _with_braces(text: str) -> str:
    r"""Braces around the arguments of fractions and roots, and around exponents that are one:
    \frac\pi4, \sqrt2, 2^\frac12.

    From the last to the first, so that what is an argument has its own already.
    """
    for found in reversed(list(_TAKES_ARGUMENTS.finditer(text))):
        name, written, place = found["name"], found[0], found.end()
        for _ in range(2 if name == "frac" else 1):
            start = place + len(text[place:]) - len(text[place:].lstrip())
            stop = _argument_end(text, start, name)
            if stop < 0:
                break
            bare = text[start] == "{" or (name == "sqrt" and text[start] == "(")
            written += "{" + (text[start + 1 : stop - 1] if bare else text[start:stop]) + "}"
            place = stop
        text = text[: found.start()] + written + text[place:]
    return text


def _argument_end(text: str, start: int, name: str | None) -> int:
    """The end of the argument that starts here, -1 for none: all digits of a root's."""
    if text[start : start + 1] == "{" or (name == "sqrt" and text[start : start + 1] == "("):
        return _closing(text, start) + 1 or -1
    if name == "sqrt" and (digits := re.match("[0-9]+", text[start:])):
        return start + digits.end()
    found = _ARGUMENT.match(text, start)
    if not found or found[0] not in ("\\frac", "\\sqrt"):
        return found.end() if found else -1
    stop = found.end()
    if index := _ROOT_INDEX.match(text, stop):
        stop = index.end()
    for _ in range(2 if found[0] == "\\frac" else 1):
        stop = _closing(text, stop) + 1 if text[stop : stop + 1] == "{" else 0
        if not stop:
            return -1
    return stop


def _closing(text: str, start: int) -> int:
    """Index at which the bracket that opens here is closed by one of its kind, or -1."""
    opening, depth = text[start], 0
    closing = {"{": "}", "(": ")"}[opening]
    for place in range(start, len(text)):
        depth += (text[place] == opening) - (text[place] == closing)
        if depth == 0:
            return place
    return -1
