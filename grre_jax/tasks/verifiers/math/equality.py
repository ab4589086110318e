r"""Is this answer the same as that one, as a mathematician would read them?

Notation does not count (`notation`): `\dfrac`, spaces, `\left`, dollar signs, `\text`,
Unicode. What is compared, in this order:

- **Numbers**, exactly: 1,234.50 = 1234.5, 1/2 = 0.5, -0.0 = 0, 1.5e3 = 1500, 3\frac12 = 3.5,
  0.\overline{3} = 1/3; and 0.333 is not 1/3.
- **Percent**: 50\% is 50 and is 0.5, whichever of the two writes the sign.
- **Units** and money: one that only one of the two has does not count; of two different ones of one
  kind (m and cm) one is converted, others make two different answers. Words that say more than a
  unit ("or more", "is wrong") are none.
- **Several answers** (commas, "and", "or", \pm, sets in braces): in any order, repetitions apart;
  but where only one of two lists has names, as "x = 1, y = 2", in its order. The commas of 135,000
  cm are of thousands.
- **Tuples, intervals, vectors, matrices, unions**: part by part; brackets count, but for the kind
  that is drawn around a matrix. A point may also be said as "x = 1, y = 2", and a union of
  intervals with "or". Transposes, multiples and determinants are worked out.
- **Ratios** up to a factor, but not times of day: 2:3 = 4:6, and 1:20 is not 2:40.
- **Words and choices**: \text{Evelyn}, (C); case and brackets apart. "(C) 12" is C, and 12.
- **Equations**: "x = 5" is 5 where the other gives no left-hand side; else both sides count, up to
  a constant factor, but "2x = 10" is not solved. Numbers are compared side by side: "1 = 2" is not
  "3 = 5". Of several sides that are numbers all must agree: "5 = 6" says nothing. Several values of
  one name are several answers. A given "x + y = 7" is 7 where the right answer is no equation.
  Inequalities the same; one variable's range may also be said as an interval: "and" is the
  intersection, "or" the union, and a comma what is not empty. A set of real numbers is what its
  condition says.
- **Approximations**: "x \approx 3.4" says x = 3.4; of "3\sqrt2 \approx 4.24" the exact side counts,
  or what it rounds to.
- **Expressions**: as functions (`math_values`).

The answer's length (300 characters), its parts (64; 32 equations or inequalities) and its brackets
(20 levels) are bounded; beyond that two answers are the same only if their texts are.
"""

import itertools
import re

from grre_jax.tasks.verifiers.math import parts, reading, statements
from grre_jax.tasks.verifiers.math import values as math_values
from grre_jax.tasks.verifiers.math.notation import normalised, squeezed, words
from grre_jax.tasks.verifiers.math.parts import alternatives_of, bare, in_braces, sides_of
from grre_jax.tasks.verifiers.math.statements import number, variables_of
from grre_jax.tasks.verifiers.math.units import conversion, units_differ, without_unit

_MOST_CHARACTERS = 300
_MOST_PARTS = 64
_MOST_DEPTH = 20
_MOST_SIDES = 17  # of a chain of equations, signs counted
_BASE = re.compile(r"([0-9A-F]+)_\{?([0-9]+)\}?")
_SHORT_WORDS = set("yes no odd even true false all none both never always".split())
# A choice with what it says, "(C) 12": the letter, the value.
_LABELLED = re.compile(
    r"(?:\\text\s*\{\s*\(?([A-J])\)[.:]?\s*\}\s*(?![*/^_=<>,+\s])|(?:\(([A-J])\)[.:]?"
    r"|([A-J])[).:])\s+(?![-*/^_=<>,+(\s]))(.+)",
    re.DOTALL,
)
_CHOICES = re.compile(r"\(?(?<![A-Za-z\\])[A-J](?![A-Za-z])\)?|(?<![A-Za-z])(?:and|or)(?![A-Za-z])")
# 1e-4, which may also be a difference
_FLOATING = re.compile(r"(-?[0-9]*\.?[0-9]+)[eE]([-+]?[0-9]+)")
_ANGLES = {("deg", "rad"): r"\frac{\pi}{180}", ("rad", "deg"): r"\frac{180}{\pi}"}
_CLOCK = re.compile(r"[0-9]{1,2}(?::[0-5][0-9]){1,2}")
_OR_BETWEEN = re.compile(r"(?<=[)\]])\s*(?:\\text\s*\{\s*or\s*\}|or(?![A-Za-z]))\s*(?=[(\[])")


def same_answer(given: str, truth: str) -> bool:
    """Returns True if an answer equals the right one by the module's rules. Never raises."""
    if not (_bounded(given) and _bounded(truth)):
        return squeezed(given) == squeezed(truth) != ""
    given, truth = normalised(given), normalised(truth)
    if not given or not truth:
        return False
    if squeezed(given) == squeezed(truth):
        return True
    given, truth = parts.ungrouped(given), parts.ungrouped(truth)
    stated = len(sides_of(given)) > 1
    pairs = itertools.product(
        statements.readings(given), statements.readings_of_truth(truth, stated)
    )
    return any(_same(one, other) for one, other in pairs)


def canonical(answer: str) -> str:
    """One text for answers written alike: a number's exact value, or one notation."""
    text = bare(normalised(answer)) if _bounded(answer) else answer
    value = number(text)
    return str(value) if value is not None else squeezed(text)


def _bounded(text: str) -> bool:
    return len(text) <= _MOST_CHARACTERS and parts.deepest(text) <= _MOST_DEPTH


def _same(a: str, b: str, depth: int = 0) -> bool:
    """Of two normalised texts, the given one first."""
    a, b = bare(a), bare(b)
    if not a or not b or depth > 6:
        return False
    if squeezed(a) == squeezed(b):
        return True
    a, b = (statements.worked_out(text) for text in (a, b))
    if squeezed(a) == squeezed(b):
        return True
    choice_a, choice_b = _LABELLED.fullmatch(a), _LABELLED.fullmatch(b)
    if choice_a or choice_b:
        return _same_choices(choice_a or a, choice_b or b, depth)
    if _words_same(a, b) or _numbers_same(a, b):
        return True
    if len(sides_of(a)) > 1 or len(sides_of(b)) > 1:
        return _relations_same(a, b, depth)
    return _structures_same(a, b, depth)


def _same_choices(a: re.Match | str, b: re.Match | str, depth: int) -> bool:
    """Of matches of a choice with its value; letter or value is enough for one of no more."""
    letter_a, letter_b = (
        found if isinstance(found, str) else found[1] or found[2] or found[3] for found in (a, b)
    )
    value_a, value_b = (found if isinstance(found, str) else found[4] for found in (a, b))
    letters = words(letter_a) == words(letter_b) is not None
    values = _same(value_a, value_b, depth + 1)
    if isinstance(a, re.Match) and isinstance(b, re.Match):
        return letters and values
    # A value that names further choices is none: (C) or (D).
    said = value_a if isinstance(a, re.Match) else value_b
    return (letters and not _CHOICES.search(said)) or values


def _structures_same(a: str, b: str, depth: int) -> bool:
    nested_a, nested_b = parts.nesting_of(a), parts.nesting_of(b)
    if nested_a != nested_b and max(nested_a, nested_b) > 1:
        return False
    if ("\\cup" in a) != ("\\cup" in b):  # of intervals "or" is the union
        a, b = (_OR_BETWEEN.sub(r"\\cup ", text) for text in (a, b))
    parts_a, parts_b = alternatives_of(a), alternatives_of(b)
    if len(parts_a) > 1 or len(parts_b) > 1 or in_braces(a) is not None or in_braces(b) is not None:
        return _same_sets(parts_a, parts_b, depth)
    for split in (parts.union_of, parts.matrix_of, parts.tuple_of):
        found_a, found_b = split(a), split(b)
        if found_a and found_b:
            (kind_a, inner_a), (kind_b, inner_b) = found_a, found_b
            same = _same_sets if split is parts.union_of else _same_lists
            return kind_a == kind_b and same(inner_a, inner_b, depth)
        if found_a or found_b:
            return False
    if re.search(r"\\(?:pm|mp)(?![A-Za-z])", a + " " + b):
        return False
    ratio_a, ratio_b = parts.cut_at(a, ":"), parts.cut_at(b, ":")
    if max(len(ratio_a), len(ratio_b)) > 2 or len(ratio_a) == len(ratio_b) == 2:
        return _same_ratios(ratio_a, ratio_b, depth)
    return _expressions_same(a, b)


def _expressions_same(a: str, b: str) -> bool:
    (core_a, unit_a), (core_b, unit_b) = without_unit(a), without_unit(b)
    if units_differ(unit_a, unit_b):
        factor = _ANGLES.get((unit_a, unit_b))
        if factor is None and (ratio := conversion(unit_a, unit_b)) is not None:
            factor = f"\\frac{{{ratio.numerator}}}{{{ratio.denominator}}}"
        if factor is None:
            return False
        a = core_a = f"({core_a})\\cdot {factor}"
        b = core_b
    powers_a, powers_b = (
        _FLOATING.sub(r"\1\\cdot 10^{\2}", core) if _FLOATING.fullmatch(core) else core
        for core in (core_a, core_b)
    )
    for one, other in dict.fromkeys(((core_a, core_b), (powers_a, powers_b), (a, b))):
        try:
            if math_values.same_value(one, other):
                return True
        except reading.NotComparable:
            continue
    return False


def _same_ratios(a: list[str], b: list[str], depth: int) -> bool:
    """Of the terms of two ratios: the same but for a factor, which times of day do not have."""
    if _same_lists(a, b, depth):
        return True
    times = (without_unit(":".join(terms))[0].replace(" ", "") for terms in (a, b))
    if len(a) != len(b) or all(map(_CLOCK.fullmatch, times)):
        return False
    ones, others = ([f"\\frac{{{term}}}{{{terms[-1]}}}" for term in terms] for terms in (a, b))
    try:
        return all(map(math_values.same_value, ones, others))
    except reading.NotComparable:
        return False


def _numbers_same(a: str, b: str) -> bool:
    (core_a, unit_a), (core_b, unit_b) = _measured(a), _measured(b)
    value_a, value_b = number(core_a), number(core_b)
    if value_a is None or value_b is None:
        return False
    if units_differ(unit_a, unit_b):
        factor = conversion(unit_a, unit_b)
        return factor is not None and value_a * factor == value_b
    if (unit_a == "%") != (unit_b == "%"):
        percent, other = (value_a, value_b) if unit_a == "%" else (value_b, value_a)
        # 0.5\% of something is not half of it: such a percentage is given as one where the right
        # answer is.
        same = other == percent and not (unit_a == "%" and abs(percent) < 1)
        return same or other == percent / 100
    return value_a == value_b


def _measured(text: str) -> tuple[str, str]:
    if text.endswith("\\%"):
        return text[:-2].strip(), "%"
    core, unit = without_unit(text)
    if not unit and (single := re.fullmatch(r"(.*[0-9])\s*\\text\{\s*([A-Za-z])\s*\}", text)):
        return single[1], single[2].lower()
    return core, unit


def _words_same(a: str, b: str) -> bool:
    words_a, words_b = _words(a, b), _words(b, a)
    if words_a is not None and words_a == words_b:
        return _are_words(a, b)
    base_a, base_b = _based(a), _based(b)
    digits_a, digits_b = (m[1] if m else t for m, t in ((base_a, a), (base_b, b)))
    return bool(base_a) != bool(base_b) and digits_a == digits_b


def _words(text: str, other: str) -> str | None:
    """Compares as `words` does, and knows more words.

    A small letter is a choice if the other answer is marked as one ((C)), and two letters ("no")
    are a word if the other answer marks words by \\text.
    """
    if re.fullmatch("[a-j]", text) and re.fullmatch(
        r"\(\s*[A-J]\s*\)|\\text\s*\{[\s(]*[A-J][\s)]*\}", other
    ):
        return text  # a choice
    short = "\\text" in other and re.fullmatch(r"[A-Za-z]{2}", text)
    return text.lower() if short else words(text)


def _are_words(a: str, b: str) -> bool:
    plain = [text for text in (a, b) if re.fullmatch(r"[A-Za-z][A-Za-z\-, ]+", text)]
    if len(plain) < 2 or a.lower() in _SHORT_WORDS or " " in (words(a) or ""):
        return True
    return min(len(a), len(b)) > 3 and a[1:] == b[1:]


def _based(text: str) -> re.Match | None:
    """1011_2 and the like: at least a digit, so that F_2 is none, and only digits of the base."""
    found = _BASE.fullmatch(text.replace(" ", ""))
    if not found or not re.search("[0-9]", found[1]) or len(found[2]) > 2:
        return None
    return found if all(int(digit, 16) < int(found[2]) for digit in found[1]) else None


def _relations_same(a: str, b: str, depth: int) -> bool:
    """Of a given answer and the right one, at least one of them with a relation."""
    many_a, many_b = statements.statements_of(a), statements.statements_of(b)
    interval_a, interval_b = statements.as_interval(many_a, a), statements.as_interval(many_b, b)
    if (interval_a is None) != (interval_b is None):
        ranges = ("(", "[", *statements.REALS)
        (name_a, region_a), (name_b, region_b) = statements.region_of(a), statements.region_of(b)
        if interval_a is not None and region_b.startswith(ranges):
            return name_b in ("", *statements.names_of(many_a)) and _same(
                interval_a, region_b, depth + 1
            )
        if interval_b is not None and region_a.startswith(ranges):
            return name_a in ("", *statements.names_of(many_b)) and _same(
                region_a, interval_b, depth + 1
            )
        if len(many_a) > 1 and len(many_b) > 1:  # of the same parts, one with "and"
            return False
    elif interval_a is not None and len(many_a) + len(many_b) > 2:
        return statements.names_of(many_a) == statements.names_of(many_b) and _same(
            interval_a, interval_b, depth + 1
        )
    if len(many_a) > 1 or len(many_b) > 1:
        point_a, point_b = (
            statements.point_of(many, other) if not statements.EITHER.search(text) else None
            for many, text, other in ((many_a, a, b), (many_b, b, a))
        )
        if point_a is not None or point_b is not None:
            return _same(point_a or sides_of(a)[-1], point_b or sides_of(b)[-1], depth + 1)
        many_a, many_b = (
            many if parts.RELATION.search(text) else alternatives_of(text)
            for text, many in ((a, many_a), (b, many_b))
        )
        return _statements_same(many_a, many_b, depth)
    sides_a, sides_b = sides_of(a), sides_of(b)
    if len(sides_a) == 1 or len(sides_b) == 1:
        right_a, right_b = _right_hand(a, of_expressions=len(sides_b) == 1), _right_hand(b)
        if len(sides_a) > 1 and right_a == a or len(sides_b) > 1 and right_b == b:
            return False
        return _same(right_a, right_b, depth + 1)
    return _same_relation(sides_a, sides_b, depth)


def _statements_same(a: list[str], b: list[str], depth: int) -> bool:
    """In any order: names count where both give them, but x_1 and x_2 are x."""
    if not 0 < len(a) <= statements.MOST_STATEMENTS or not 0 < len(b) <= statements.MOST_STATEMENTS:
        return False
    (names_a, values_a), (names_b, values_b) = _named(a), _named(b)
    if not all(parts.RELATION.search(part) for part in (*a, *b)):
        # Without names the order says which value is whose.
        if any(
            len({statements.without_index(name) for name in names}) > 1
            for names in (names_a, names_b)
        ):
            return _same_lists(values_a, values_b, depth)
        names_a = names_b = [""] * _MOST_PARTS
    elif (len(set(names_a)) == 1) != (len(set(names_b)) == 1):
        names_a, names_b = (
            [statements.without_index(name) for name in names] for names in (names_a, names_b)
        )
    pairs_a = list(zip(names_a, values_a, strict=False))
    pairs_b = list(zip(names_b, values_b, strict=False))
    same = [[m == n and _same(one, other, depth + 1) for n, other in pairs_b] for m, one in pairs_a]
    return all(map(any, same)) and all(map(any, zip(*same, strict=True)))


def _named(said: list[str]) -> tuple[list[str], list[str]]:
    """The subject of each statement ("" for none) and the value that it is given."""
    values = [_right_hand(one) for one in said]
    pairs = zip(values, said, strict=True)
    return ["" if value == one else squeezed(sides_of(one)[0]) for value, one in pairs], values


def _same_relation(a: list[str], b: list[str], depth: int) -> bool:
    """Of sides and signs in turn: ["x", "=", "5"]."""
    if len(a) != len(b):
        return False
    a, b = ([statements.SEGMENT.sub(r"\1", side) for side in sides] for sides in (a, b))
    for order in (a, statements.turned(a)):
        pairs = zip(order[::2], b[::2], strict=True)
        if order[1::2] == b[1::2] and all(_same(*pair, depth + 1) for pair in pairs):
            return True
    if len(a) != 3 or {a[1], b[1]} & {"\\in", "\\approx"}:
        return False
    facing = statements.turned(b) if a[1] != b[1] else b
    # Which 2x = 10 is not for x = 5.
    solved = statements.NAME.fullmatch(b[0].replace(" ", "")) and not variables_of(b[2])
    if a[1] != facing[1] or solved:
        return False
    one, other = (f"{sides[0]}-({sides[2]})" for sides in (a, facing))
    try:
        return math_values.proportional(one, other, positive=a[1] not in ("=", "\\ne"))
    except reading.NotComparable:
        return False


def _right_hand(text: str, of_expressions: bool = False) -> str:
    """Returns the right side of "x = 5", "f(x) = 5", "|AB| = 5" or "x \in S", and the result of "2
    + 3 = 5".

    Args:
        text: an answer; one that says nothing of the kind is returned as it is.
        of_expressions: also the value of "x + y = 7": not that of "x^2 = 2", which is no solution,
            nor of "x + y = 0", a way to write an equation.
    """
    sides = sides_of(text)
    if "=" in sides and _contradicts(sides):
        return text
    signs = set(sides[1::2])
    if signs and signs <= {"=", "\\in"}:
        if statements.is_label(sides[0]) or (signs == {"="} and not variables_of(sides[0])):
            return sides[-1]
    if of_expressions and signs == {"="} and len(sides) <= _MOST_SIDES and variables_of(sides[0]):
        if all(_expressions_same(one, other) for one, other in itertools.pairwise(sides[::2])):
            return sides[-1]  # "x^2-9 = (x-3)(x+3)" is true of every x
    if of_expressions and signs == {"="} and not variables_of(without_unit(sides[-1])[0]):
        return sides[-1] if len(variables_of(sides[0])) > 1 and number(sides[-1]) != 0 else text
    return text


def _contradicts(sides: list[str]) -> bool:
    """Returns True if two sides of an equation are different numbers: 5 = 6."""
    if len(sides) > _MOST_SIDES:
        return True
    plain = (side for side in sides[::2] if side and words(side) is None)
    constants = [side for side in plain if not variables_of(without_unit(side)[0])]
    pairs = itertools.pairwise(constants)
    return any(not _same(one, other, 5) and _comparable(one, other) for one, other in pairs)


def _comparable(a: str, b: str) -> bool:
    """True if two different constants are known to differ: both are read, in one unit."""
    (core_a, unit_a), (core_b, unit_b) = without_unit(a), without_unit(b)
    try:
        math_values.same_value(core_a, core_b)
    except reading.NotComparable:
        return None not in (parts.tuple_of(a), parts.tuple_of(b))
    return not units_differ(unit_a, unit_b)


def _same_sets(a: list[str], b: list[str], depth: int) -> bool:
    if len(a) > _MOST_PARTS or len(b) > _MOST_PARTS:
        return False
    # What is written alike needs no computing, which for a list of hard expressions would take a
    # second.
    said_a, said_b = {squeezed(part) for part in a}, {squeezed(part) for part in b}
    rest_a = [part for part in a if squeezed(part) not in said_b]
    rest_b = [part for part in b if squeezed(part) not in said_a]
    covered = all(any(_same(one, other, depth + 1) for other in b) for one in rest_a)
    return covered and all(any(_same(one, other, depth + 1) for one in a) for other in rest_b)


def _same_lists(a: list[str], b: list[str], depth: int) -> bool:
    return len(a) == len(b) <= _MOST_PARTS and all(
        _same(one, other, depth + 1) for one, other in zip(a, b, strict=True)
    )
