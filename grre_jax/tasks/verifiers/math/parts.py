r"""The parts of a normalised answer: its sides, alternatives, members, coordinates, entries.

Text alone, nothing is computed.
"""

import itertools
import re
from collections.abc import Iterator

_OPEN, _CLOSE = "([{", ")]}"
RELATION = re.compile(r"\\(?:le|ge|ne|in|approx)(?![A-Za-z])|[=<>]")
_MATRIX = re.compile(
    r"\\begin\{([pbvBV]?matrix|smallmatrix|array)\}(?:\{[lcr| ]*\})?(.*)\\end\{\1\}", re.DOTALL
)
GROUPED = re.compile(r"-?[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]+)?")
_COMMAS = re.compile(r"(?<![\w.,])[1-9][0-9]{0,2}(?:,[0-9]{3})+(?!,?[0-9])")
_SPACED_COMMA = re.compile(r",(?:\s|\\)")
_MOST_CELLS = 36
_FACTOR = re.compile(r"[-+]?\s?(?:[0-9./]|\\(?:frac|sqrt|cdot|times|pi)(?![A-Za-z])|[{}\s])*")
_TRANSPOSED = re.compile(r"\^\s?\{?\s?(?:T|\\top|\\intercal|\\text\s?\{T\})\s?\}?$")


def ungrouped(text: str) -> str:
    """The text without the commas of thousands: 135,000 and (1,000, 2,000), but not the pair
    (100,200).

    Within brackets a comma between digits is one of thousands where a number would begin with 0, or
    where other commas have a space behind them.
    """
    spaced = _SPACED_COMMA.search(text) is not None

    def without(found: re.Match) -> str:
        inside = _brackets_at(text, found.start()) > 0
        return found[0].replace(",", "") if not inside or spaced or ",0" in found[0] else found[0]

    return _COMMAS.sub(without, text)


def _brackets_at(text: str, place: int) -> int:
    """Returns the number of open brackets at an index, not counting those of LaTeX's arguments."""
    before = text[:place].replace("\\{", "(").replace("\\}", ")")
    return sum((character in "([") - (character in ")]") for character in before)


AND = re.compile(
    r"\\text\s*\{\s*,?\s*(?:and|or)\s*\}|(?<![A-Za-z\\])(?:and|or)(?![A-Za-z])", re.IGNORECASE
)


def sides_of(text: str) -> list[str]:
    """["x", "=", "5"] of "x = 5"; [text] where there is no relation outside of brackets."""
    sides, start, depths = [], 0, list(_depths(text))
    for found in RELATION.finditer(text):
        if depths[found.start()] == 0:
            sides += [text[start : found.start()].strip(), found[0]]
            start = found.end()
    return [*sides, text[start:].strip()]


def alternatives_of(text: str) -> list[str]:
    r"""The answers of a text: members of a set, parts of a list, both signs of \pm."""
    inside = in_braces(text)
    inner = text if inside is None else inside
    if inside is None and GROUPED.fullmatch(inner):
        return [inner]
    parts = [part for piece in cut_at(AND.sub(",", inner), ",") if (part := piece.strip())]
    found = []
    for part in parts:
        if re.search(r"\\(?:pm|mp)(?![A-Za-z])", part):
            found += [part.replace("\\pm", s).replace("\\mp", t) for s, t in ("+-", "-+")]
        else:
            found.append(part)
    return [part.removeprefix("+").strip() for part in found]


def in_braces(text: str) -> str | None:
    r"""Returns the content of a set in braces; None for all else, \{1\} \cup \{2\} too."""
    if text.startswith("\\{") and text.endswith("\\}") and _closes_at(text[1:]) == len(text) - 2:
        return text[2:-2]
    return None


def nesting_of(text: str) -> int:
    """Returns the depth of nested sets: 1 for \{5\} and \emptyset, 2 for \{\emptyset\}."""
    levels = 0
    while (inside := in_braces(text)) is not None:
        text, levels = inside.strip(), levels + 1
    return levels + (text == "\\emptyset")


def union_of(text: str) -> tuple[str, list[str]] | None:
    """Splits a union of sets into its sets; None if the text is no union."""
    parts = cut_at(text, "\\cup")
    return ("union", [part.strip() for part in parts]) if len(parts) > 1 else None


def matrix_of(text: str) -> tuple[str, list[str]] | None:
    """Splits a matrix or determinant into its entries, row by row; None for another text."""
    inside = text[1:-1].strip() if text[:1] + text[-1:] in ("[]", "||") else text
    found = _MATRIX.fullmatch(inside)
    if not found:
        return None
    determinant = found[1].startswith(("v", "V")) or text.startswith("|")
    rows = [row.split("&") for row in found[2].strip().removesuffix("\\\\").split("\\\\")]
    shape = "x".join(str(len(row)) for row in rows)
    kind = "determinant" if determinant else "matrix"
    return kind + shape, [cell.strip() for row in rows for cell in row]


def evaluated(text: str) -> str:
    r"""Works out a matrix or tuple times a number or transposed, and a determinant of two or
    three rows.

    Args:
        text: an answer, normalised.

    Returns:
        One matrix or tuple, or the terms of the determinant; the text itself where it is nothing of
        these.
    """
    rest, transposed = _TRANSPOSED.subn("", text)
    found = [at for mark in ("\\begin", "(", "[", "|") if (at := rest.find(mark)) >= 0]
    place = min(found, default=-1)
    if place < 0 or not _FACTOR.fullmatch(rest[:place]):
        return text
    factor = re.sub(r"\s?\\(?:cdot|times)\s?$", "", rest[:place].strip())
    inner = rest[place:].strip()
    found = matrix_of(inner) or (tuple_of(inner) if inner[0] == "(" else None)
    whole = _closes_at(inner) in (-1, 0, len(inner) - 1) and inner.count("\\begin") < 2
    if found is None or not whole or len(found[1]) > _MOST_CELLS:
        return text
    kind, cells = found
    if not kind.startswith("matrix") and kind != "()":
        return _determinant(text, factor, kind, cells) if not transposed else text
    if not factor and not transposed:
        return text
    if factor:
        factor = factor + "1" if factor in "+-" else factor
        cells = [f"{factor}\\cdot ({cell})" for cell in cells]
    if kind == "()" and not transposed:
        return f"({', '.join(cells)})"
    widths = [len(cells)] if kind == "()" else list(map(int, kind[len("matrix") :].split("x")))
    if len(set(widths)) > 1:
        return text
    rows = [cells[start : start + widths[0]] for start in range(0, len(cells), widths[0])]
    rows = list(zip(*rows, strict=True)) if transposed else rows
    return "\\begin{matrix}" + " \\\\ ".join(" & ".join(row) for row in rows) + "\\end{matrix}"


def _determinant(text: str, factor: str, kind: str, cells: list[str]) -> str:
    if kind == "determinant2x2":
        a, b, c, d = (f"({cell})" for cell in cells)
        terms = f"{a}{d}-{b}{c}"
    elif kind == "determinant3x3x3":
        a, b, c, d, e, f, g, h, i = (f"({cell})" for cell in cells)
        terms = f"{a}({e}{i}-{f}{h})-{b}({d}{i}-{f}{g})+{c}({d}{h}-{e}{g})"
    else:
        return text
    return f"{factor}({terms})" if factor else terms


def tuple_of(text: str) -> tuple[str, list[str]] | None:
    """Splits what stands in one pair of brackets at its commas; None without either."""
    for opening, closing in itertools.product(("(", "[", "\\langle"), (")", "]", "\\rangle")):
        if text.startswith(opening) and text.endswith(closing):
            inner = text[len(opening) : -len(closing)]
            parts = cut_at(inner, ",")
            if len(parts) > 1:
                kind = "()" if opening == "\\langle" else opening + closing
                return kind, [part.strip() for part in parts]
    return None


def bare(text: str) -> str:
    """Without brackets around the whole that say nothing: {x}, (x), \\text{5}."""
    while True:
        text = text.strip()
        number = re.fullmatch(r"\\text\s*\{\s*([-0-9.,/]+)\s*\}", text)
        if number:
            text = number[1]
        elif (
            len(text) > 2
            and text[0] + text[-1] in ("{}", "()")
            and _closes_at(text) == len(text) - 1
            and (text[0] == "{" or not _list_like(text[1:-1]))
        ):
            text = text[1:-1]
        else:
            return text


def _list_like(text: str) -> bool:
    return len(cut_at(text, ",")) > 1 or re.fullmatch(r"\s*[A-Za-z]\s*", text) is not None


def _depths(text: str) -> Iterator[int]:
    """The number of open brackets after each character."""
    return itertools.accumulate((letter in _OPEN) - (letter in _CLOSE) for letter in text)


def _closes_at(text: str) -> int:
    return next((place for place, depth in enumerate(_depths(text)) if depth == 0), -1)


def cut_at(text: str, separator: str) -> list[str]:
    """The text cut at a separator outside of brackets."""
    parts, start, depths = [], 0, list(_depths(text))
    for found in re.finditer(re.escape(separator), text):
        if depths[found.start()] == 0:
            parts.append(text[start : found.start()])
            start = found.end()
    return [*parts, text[start:]]


def deepest(text: str) -> int:
    """Counts how many brackets are open at once, at most."""
    return max(0, *_depths(text)) if text else 0
