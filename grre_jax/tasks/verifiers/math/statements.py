r"""Statements taken apart: the subject, its value and range, exact or approximate; `equality`
compares them.
"""

import itertools
import re
from fractions import Fraction

from grre_jax.tasks.verifiers import final_number
from grre_jax.tasks.verifiers.math import parts, reading
from grre_jax.tasks.verifiers.math import values as math_values
from grre_jax.tasks.verifiers.math.notation import squeezed, words
from grre_jax.tasks.verifiers.math.parts import AND, alternatives_of, cut_at, sides_of
from grre_jax.tasks.verifiers.math.units import without_unit

NAME = re.compile(
    r"\\?[A-Za-z]+'*(?:_(?:\{?\\?[0-9A-Za-z]+\}?"
    r"|\{\\text\{[A-Za-z]+\}\}))?(?:\([A-Za-z0-9]+(?:,\s*[A-Za-z0-9]+)*\))?"
    r"|\([A-Za-z](?:,\s*[A-Za-z])+\)"
)
_REPEATING = re.compile(r"(-?)([0-9]*)\.([0-9]*)\\(?:overline|bar|dot)\{?([0-9]+)\}?")
_POINTS = r"[A-Z](?:'|_\{?[0-9A-Za-z]\}?)?"  # A, A', V_1
# What names a value but is no variable. An equation such as x + y = 7 is none: it may be a line.
_LABEL = re.compile(
    # F^{-1}(3), |AB|.
    r"[A-Za-z]\^\{?-1\}?\([^()=]*\)|\|(?:\\[a-z]+\{)?[A-Z][^|=]*\||\\(?:sum|prod|int"
    r"|lim)(?![A-Za-z]).*"
    # |z|, |\vec{v}|, \|v\|; not |x|, which may be an equation for x.
    r"|\|\s?(?:\\[a-z]+\s?\{?\s?[A-Za-z]\}?|\{?[uvwz]\}?)(?:_\{?[0-9A-Za-z]\}?)?\s?\|"
    r"|\\\|\s?(?:\\[a-z]+\s?)?\{?\s?[A-Za-z]\s?\}?(?:_\{?[0-9A-Za-z]\}?)?\s?\\\|"
    r"|\\(?:bar|hat|vec|tilde|dot|overline|widehat"
    r"|overrightarrow)\s?(?:\{[A-Za-z]+(?:_\{?[0-9A-Za-z]\}?)?\}|[A-Za-z])|\{[A-Za-z]\}"
    r"|(?:\\(?:Pr|det|dim|gcd|max|min|deg|arg)(?![A-Za-z])|\\text\s?\{[A-Za-z"
    r" .]+\}|[PEVfghFG])\s?[(\[][^()\[\]=]*(?:\([^()]*\))?[^()\[\]=]*[)\]]"
    r"|\\(?:det|dim|deg|arg)\s?[A-Z]"
    r"|\\frac\{(?:d|\\partial)(?:\^\{?[0-9]\}?)?\s?[A-Za-z]?\}\{(?:d"
    r"|\\partial)\s?[A-Za-z](?:\^\{?[0-9]\}?)?\}|[A-Za-z]_\{[^{}=]+\}"
    r"|m?\s?\\angle[^+\-=]+|\[[A-Z]{3,}\]|[A-Z]\^\{?(?:-1|T|\\top)\}?"
    rf"|{_POINTS}(?:\s?\\(?:cap|cup|setminus|times)\s?{_POINTS})+"
    rf"|\\frac\{{{_POINTS}[A-Z]?\}}\{{{_POINTS}[A-Z]?\}}|[A-Z]+(?::[A-Z]+)+"
    r"|\\(?:sin|cos|tan|cot|sec|csc)\s?\(?(?:[A-Z]|\\(?:alpha|beta|gamma|theta|phi"
    r"|angle\s?[A-Z]+))\)?"
)
SEGMENT = re.compile(
    r"^(?:\|(?=.*\|$))?(?:\\overline\s?\{)?([A-Z]{2})\}?\|?$|^m\s?(?=\\angle)"
)  # |AB| for AB
_COMMAND = re.compile(rf"\\(?!(?:{'|'.join(reading.GREEK)})(?![A-Za-z]))[A-Za-z]+")
_VARIABLE = re.compile(r"\\[a-z]+|[A-Za-z]")
REALS = frozenset(("\\mathbb{R}", "\\mathbbR", "\\R", "allrealnumbers", "allreals"))
_BUILDER = re.compile(
    rf"\\\{{\s*({NAME.pattern})\s*(?:\\in\s*(?:\\mathbb\{{?R\}}?"
    rf"|\\R)\s*)?(?:\\mid(?![A-Za-z])|[|:])(.+)\\\}}",
    re.DOTALL,
)
_TOGETHER = re.compile(r"(?<![A-Za-z])and(?![A-Za-z])", re.IGNORECASE)
EITHER = re.compile(r"(?<![A-Za-z])or(?![A-Za-z])", re.IGNORECASE)
MOST_STATEMENTS = 32  # each compared with each


def number(text: str) -> Fraction | None:
    """The exact value of a number, a fraction or a repeating decimal; None for any other."""
    text = parts.bare(text)
    repeating = _REPEATING.fullmatch(text.replace(" ", ""))
    if repeating:
        sign, whole, fixed, cycle = repeating.groups()
        size = Fraction(int(whole or 0)) + Fraction(int(fixed or 0), 10 ** len(fixed))
        size += Fraction(int(cycle), (10 ** len(cycle) - 1) * 10 ** len(fixed))
        return -size if sign else size
    if "," in text and not parts.GROUPED.fullmatch(text.strip()):
        return None
    fraction = re.fullmatch(r"([-+]?)\s*\\frac\{\s*([^{}]+?)\s*\}\{\s*([^{}]+?)\s*\}", text)
    if fraction:
        above = final_number.exact_number(fraction[2])
        below = final_number.exact_number(fraction[3])
        if above is None or not below:
            return None
        return above / below * (-1 if fraction[1] == "-" else 1)
    return final_number.exact_number(text)


def statements_of(text: str) -> list[str]:
    r"""The parts of several answers; "x = \pm 3" and "x = 3, -3" are "x = 3" and "x = -3"."""
    said = alternatives_of(text) if len(cut_at(text, ",")) > 1 or AND.search(text) else [text]
    sides = sides_of(said[0]) if said else []
    if len(sides) == 3 and sides[1] in ("=", "\\in") and NAME.fullmatch(sides[0].replace(" ", "")):
        values = alternatives_of(sides[2]) + said[1:]
        if len(values) > 1 and not any(parts.RELATION.search(part) for part in said[1:]):
            return [f"{sides[0]} = {value}" for value in values]
    return said


def point_of(said: list[str], other: str) -> str | None:
    """(2,3) of "y = 3" and "x = 2" where the other answer is a point: "(2,3)" or "(x,y) = (2,3)".

    None of everything else.

    A point without names has its coordinates in the order of the alphabet, if the letters follow
    each other there: of m and b nobody knows.
    """
    sides = sides_of(other)
    names = None
    if len(sides) == 3 and sides[1] == "=" and NAME.fullmatch(sides[0].replace(" ", "")):
        names = re.findall("[A-Za-z]", sides[0])
    known = len(sides) == 1 or names is not None
    if not known or len(said) < 2 or (parts.tuple_of(sides[-1]) or "?")[0] != "()":
        return None
    equations = [sides for part in said if (sides := sides_of(part))[1:2] == ["="]]
    values = {squeezed(sides[0]): sides[-1] for sides in equations}
    if not len(values) == len(said) or not all(re.fullmatch("[A-Za-z]", name) for name in values):
        return None
    if names is None:
        names = sorted(values)
        if any(ord(after) - ord(before) != 1 for before, after in itertools.pairwise(names)):
            return None
    if sorted(names) == sorted(values):
        return f"({', '.join(values[name] for name in names)})"
    return None


def without_index(name: str) -> str:
    """Drops a one-digit index from a name: x_1 is x."""
    return re.sub(r"_\{?[0-9]\}?$", "", name)


def turned(sides: list[str]) -> list[str]:
    """Reverses a chain of sides and signs: a < b is b > a."""
    signs = {"<": ">", ">": "<", "\\le": "\\ge", "\\ge": "\\le"}
    chain = enumerate(reversed(sides))
    return [signs.get(side, side) if place % 2 else side for place, side in chain]


def readings(given: str) -> list[str]:
    r"""Returns the readings of a given answer that may contain \approx.

    That is "x = 3" of "x \approx 3", and "3\sqrt2" and "4.24" of "3\sqrt2 \approx 4.24". Nothing of
    what contradicts itself. A rounded value must be a decimal: an integer is taken to be exact.
    """
    sides = sides_of(given)
    if "\\approx" not in sides:
        return [given]
    if len(cut_at(given, ",")) > 1 or AND.search(given):
        pieces = re.split(rf"({AND.pattern}|,)", given, flags=AND.flags)
        return ["".join(map(_exact_piece, pieces))]
    place, value = sides.index("\\approx"), sides[-1]
    if not sides[0]:
        return [value]
    if place == 1 and (is_label(sides[0]) or variables_of(without_unit(sides[0])[0])):
        return [f"{sides[0]} = {value}"]
    exact, name = " ".join(sides[:place]), " ".join(sides[: place - 1])
    rounded = _rounds_to(sides[place - 1], value)
    if rounded is False:
        return []
    return [exact, f"{name} {value}"] if rounded and "." in value else [exact]


def readings_of_truth(truth: str, stated: bool) -> list[str]:
    """Returns the readings of the right answer, where an equals sign may stand before a rounded
    value and both sides count.

    Args:
        truth: the right answer.
        stated: whether the given answer is a statement, which the right one is then compared with
            as one.
    """
    sides = sides_of(truth)
    several = len(cut_at(truth, ",")) > 1 or AND.search(truth)
    if len(sides) >= 3 and sides[-2] == "=" and not several and not variables_of(sides[-3]):
        sides[-2] = "\\approx" if _rounds_to(sides[-3], sides[-1]) else "="
    if "\\approx" not in sides or several:
        return readings(truth)
    place, value = sides.index("\\approx"), sides[-1]
    if place == 1 and (is_label(sides[0]) or variables_of(without_unit(sides[0])[0])):
        return [f"{sides[0]} = {value}"] if stated or is_label(sides[0]) else [value]
    return [" ".join(sides[:place]), f"{' '.join(sides[: place - 1])} {value}"]


def _exact_piece(piece: str) -> str:
    r"""Of one of several answers: "x = 3" of "x \approx 3"."""
    sides = sides_of(piece)
    place = sides.index("\\approx") if "\\approx" in sides else 0
    if place == 1 and is_label(sides[0]):
        return piece.replace("\\approx", "=")
    return " ".join(sides[:place]) if place else piece


def _rounds_to(exact: str, rounded: str) -> bool | None:
    """True if a decimal is a number rounded or cut off; None if that cannot be decided."""
    (exact, _), (rounded, _) = without_unit(exact), without_unit(rounded)
    near, places = number(rounded), len(rounded.partition(".")[2])
    return None if near is None else math_values.rounds_to(exact, near, places)


def region_of(text: str) -> tuple[str, str]:
    """("x", "S") of "x \\in S"; ("", text) of everything else."""
    sides = sides_of(text)
    if len(sides) == 3 and sides[1] == "\\in" and NAME.fullmatch(sides[0].replace(" ", "")):
        return squeezed(sides[0]), sides[2]
    return "", text


def worked_out(text: str) -> str:
    r"""A plainer form of \mathbb{R} with or without points, determinants, transposes, multiples."""
    if words(text) == "no solution":
        return "\\emptyset"
    base, *removed = cut_at(text, "\\setminus")
    if squeezed(base) in (*REALS, "(-\\infty,\\infty)"):
        points = parts.in_braces(removed[0].strip()) if len(removed) == 1 else None
        if not removed:
            return "(-\\infty,\\infty)"
        return (points and _all_but(alternatives_of(points))) or text
    return _condition(parts.evaluated(text))


def _all_but(points: list[str]) -> str | None:
    """The real numbers but for some, as intervals; None if their order is unknown."""
    if len(points) > MOST_STATEMENTS:
        return None
    if len(points) > 1:
        values = [math_values.real_number(point) for point in points]
        if None in values:
            return None
        points = [points[place] for place in sorted(range(len(points)), key=values.__getitem__)]
    ends = ["-\\infty", *points, "\\infty"]
    return "\\cup ".join(f"({low},{high})" for low, high in itertools.pairwise(ends))


def _condition(text: str) -> str:
    r"""The condition of a set of real numbers: 2 < x of \{x \mid 2 < x\}; else the text."""
    found = _BUILDER.fullmatch(text) if parts.in_braces(text) is not None else None
    return found[2].strip() if found and squeezed(found[1]) in squeezed(found[2]) else text


def names_of(said: list[str]) -> set[str]:
    """The names that are sides of relations."""
    return {squeezed(side) for part in said for side in sides_of(part)[::2] if NAME.fullmatch(side)}


def variables_of(text: str) -> set[str]:
    """Letters that may be variables: not those of commands but Greek ones, nor e and i."""
    return set(_VARIABLE.findall(_COMMAND.sub(" ", text))) - {"e", "i"}


def is_label(text: str) -> bool:
    r"""Returns True if a side of an equation names a value: x, f(2), |AB|, P(A), \text{area}."""
    named = NAME.fullmatch(text.replace(" ", "")) or _LABEL.fullmatch(text)
    return bool(named) or words(text) is not None


def as_interval(inequalities: list[str], text: str) -> str | None:
    """(2, \\infty) of "x > 2", [1, 3) of "1 <= x < 3" and of "x >= 1 and x < 3", a union of
    several; None where it is something else.

    Args:
        inequalities: said of one name.
        text: what they are the parts of, which says how they go together.
    """
    names, bounds, chains = set(), [], [sides_of(part) for part in inequalities]
    if chains and all(sides[1::2] == ["\\ne"] and NAME.fullmatch(sides[0]) for sides in chains):
        names = {squeezed(sides[0]) for sides in chains}
        return _all_but([sides[2] for sides in chains]) if len(names) == 1 else None
    for sides in chains:
        falls = len(sides) == 5 and set(sides[1::2]) <= {">", "\\ge"}
        if falls or len(sides) == 3 and not NAME.fullmatch(sides[0]):
            sides = turned(sides)
        if len(sides) == 3:
            if sides[1] in ("<", "\\le"):
                sides = ["-\\infty", "<", *sides]
            else:
                sides = [*turned(sides), "<", "\\infty"]
        if len(sides) != 5 or not set(sides[1::2]) <= {"<", "\\le"} or not NAME.fullmatch(sides[2]):
            return None
        names.add(squeezed(sides[2]))
        low, high = "(" if sides[1] == "<" else "[", ")" if sides[3] == "<" else "]"
        bounds.append((low + sides[0], sides[4] + high))
    if len(names) != 1:
        return None
    said = [f"{low},{high}" for low, high in bounds]
    bounds.sort(key=lambda pair: pair[0] == "(-\\infty")
    if len(bounds) == 2 and bounds[0][1] == "\\infty)" and bounds[1][0] == "(-\\infty":
        (low, _), (_, high) = bounds
        above, below = number(low[1:]), number(high[:-1])
        overlap = None not in (above, below) and above < below and not EITHER.search(text)
        if overlap or _TOGETHER.search(text):
            return f"{low},{high}"
    return None if len(said) > 1 and _TOGETHER.search(text) else "\\cup ".join(said)
