"""Formulas of `grre algorithms`, plain text, as TeX; and the TeX of all pages as MathML."""

import html
import re
from typing import Any

from latex2mathml.converter import convert

from grre_jax.objectives.objective import hyperparameters

_GREEK = "rho tau beta lambda phi delta".split()
_FUNCTIONS = "min max exp log mean std clip sigmoid sgn sg sum".split()
SYMBOLS = {
    **{name: rf"\{name}" for name in _GREEK},
    **{f"beta_{index}": rf"\beta_{index}" for index in "12"},
    **{name: rf"\operatorname{{{name}}}" for name in _FUNCTIONS if name != "sum"},
    "sum": r"\sum",
    "grad": r"\nabla",
    "l": r"\ell",
    "e_low": r"\varepsilon_\mathrm{low}",
    "e_high": r"\varepsilon_\mathrm{high}",
    "e'_low": r"\varepsilon'_\mathrm{low}",
    "e'_high": r"\varepsilon'_\mathrm{high}",
    "log_e_low": r"\varepsilon^{\log}_\mathrm{low}",
    "log_e_high": r"\varepsilon^{\log}_\mathrm{high}",
    "r_max": r"r_\mathrm{max}",
    "r_second": r"r_\mathrm{second}",
    "V*": "V^*",
    "M(one-side)": r"M_\text{one-side}",
    "1[": r"\mathbb{1}[",
    "<=": r"\le ",
    ">=": r"\ge ",
    "+=": r"\mathrel{+}=",
}
_HYPERPARAMETERS = {
    name: r"\mathtt{" + name.replace("_", r"\_") + "}" for name in [*hyperparameters(), "cap"]
}
_TOKEN = re.compile(
    r"M\(one-side\)|V\*|1\[|<=|>=|\+=|\w+=[a-z]\w*|e'_\w+|[A-Za-z]+'s|[A-Za-z]{2,}-[a-z]{2,}"
    r"|[A-Za-z]\w*|\d*\.?\d+|\s+|."
)
_OPERATORS = set("-+*/^<>=()[]|") | {"<=", ">=", "+=", "1["}


def on_page_content(content: str, **_: Any) -> str:
    """Converts formulas to MathML, which browsers set without a script."""
    inline = r'<span class="arithmatex">\\\((.+?)\\\)</span>'
    block = r'<div class="arithmatex">\s*\\\[(.+?)\\\]\s*</div>'
    for pattern, display in ((inline, "inline"), (block, "block")):
        content = re.sub(
            pattern,
            lambda found, display=display: convert(html.unescape(found[1]), display=display),
            content,
            flags=re.DOTALL,
        )
    return content


def as_markdown(formula: str) -> str:
    """Converts a formula to Markdown: mathematics between dollar signs, words unchanged."""
    tokens = _TOKEN.findall(formula)
    math, depth, plain_depth = [], 0, 0
    for place, token in enumerate(tokens):
        opening, closing = token in ("(", "[", "1["), token in (")", "]")
        if opening and (plain_depth or (depth == 0 and ":" in _inside(tokens, place))):
            plain_depth += 1
            math.append(False)
        elif closing and plain_depth:
            plain_depth -= 1
            math.append(False)
        else:
            depth += opening - closing
            inner = depth > 0 or closing
            math.append(inner or token.isspace() or _is_math(tokens, place))
    pieces, place = [], 0
    while place < len(tokens):
        end = place + 1
        while end < len(tokens) and math[end] == math[place]:
            end += 1
        part = tokens[place:end]
        pieces.append(_tex(part) if math[place] else "".join(map(_word, part)))
        place = end
    return "".join(pieces)


def _inside(tokens: list[str], place: int) -> list[str]:
    """Returns the tokens up to the bracket that closes the one at `place`."""
    depth = 0
    for end in range(place, len(tokens)):
        depth += (tokens[end] in ("(", "[", "1[")) - (tokens[end] in (")", "]"))
        if depth == 0:
            break
    return tokens[place:end]


def _is_math(tokens: list[str], place: int) -> bool:
    token = tokens[place]
    following = next((t for t in tokens[place + 1 :] if not t.isspace()), "")
    if token in _FUNCTIONS:  # in "its mean is" it is a word: it applies to nothing
        variable = len(following) == 1 and following.isalpha()
        return variable or following in ("(", "[") or following in SYMBOLS
    return _is_symbol(token)


def _is_symbol(token: str) -> bool:
    known = token in SYMBOLS or token in _HYPERPARAMETERS or token in _OPERATORS
    number = token.replace(".", "", 1).isdigit()
    variable = re.fullmatch(r"[A-Za-z](_[a-z])?", token) and token != "a"
    return bool(known or number or variable)


def _tex(tokens: list[str]) -> str:
    """Converts tokens to one formula, with its blanks outside."""
    text = "".join(tokens)
    if not text.strip():
        return text
    inner, exponents = "", []
    depth = 0
    for place, token in enumerate(tokens):
        if token == "(" and place and tokens[place - 1] == "^":  # e^(l - q)
            exponents.append(depth)
            token = "{"
        elif token == ")" and exponents and depth - 1 == exponents[-1]:
            exponents.pop()
            depth -= 1
            inner += "}"
            continue
        depth += (token in ("(", "{")) - (token == ")")
        words = token[0].isalpha() and not _is_symbol(token)
        inner += (
            rf"\text{{ {token} }}"
            if words
            else SYMBOLS.get(token, _HYPERPARAMETERS.get(token, token))
        )
        inner += " " if token.isalpha() and not words else ""
    before, after = text[: len(text) - len(text.lstrip())], text[len(text.rstrip()) :]
    return f"{before}${' '.join(inner.split())}${after}"


def _word(token: str) -> str:
    return f"`{token}`" if "_" in token or "=" in token else token
