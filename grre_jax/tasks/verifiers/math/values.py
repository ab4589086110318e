r"""Decides if two expressions are the same function, by their values at points for which a false
match cannot be guessed.

math-verify's parser (latex2sympy2_extended) reads the LaTeX, and `_reader` builds the tree of what
it found. Two trees of rational numbers alone are then computed exactly. All others are evaluated at
four fixed points of both signs, and at five more, up to thousands away, where it has absolute
values, floors or roots, to 300 digits, or to 1,500 where the terms of a sum without functions
differ too much in size for 300; with each value goes a bound on what rounding may have changed in
it, and values that differ by more are different. So the slack is relative to the numbers, and only
what cancels to 0 may leave anything behind. Nothing is simplified, expanded or solved, which is
what can take minutes: the work is one walk over a small tree, done again at each point. Roots of
odd degree of negative numbers are the real ones.

What may be read is bounded before the parser sees it: 120 characters, six levels of brackets, four
functions, no other commands than those of `_COMMANDS`. An expression outside of that has no value
here (`NotComparable`), and so has one that leaves the numbers: infinite, with a power above 10,000,
or a rational number of more than 100,000 bits.
"""

import functools
import hashlib
import math
import re
from collections.abc import Callable
from fractions import Fraction
from typing import Any

from grre_jax.errors import UsageError
from grre_jax.tasks.verifiers.math.reading import NotComparable, parsed

_MOST_EXPONENT = 10_000
_MOST_FACTORIAL = 1_000
_POINTS = 4
# Of expressions that may be several functions in pieces, as |x - 5|, which is 5 - x near 0: points,
# with how far they are. They were chosen so that of any two letters there are two points where both
# have the same sign and two where they do not.
_FAR_POINTS = {5: 2_000, 20: 40, 43: 6, 52: 2_000, 70: 40}
_FAR_DIGITS = 170
_PIECES = re.compile(r"\||\\[lr](?:floor|ceil)|\\sqrt|\\arc|\^\s*\{[^{}]*(?:[/.]|\\frac)")
_MOST_BITS = 100_000  # of a rational number's numerator or denominator
# Decimal digits that are computed; the second number where the first is too few.
_DIGITS = (300, 1_500)
_GUARD = 50  # of them, the last, which rounding may have changed
_MOST_NOISE = 100  # decimal places: a value that rounding may have changed by more is none
_FUNCTION_NAMES = "sin cos tan cot sec csc asin acos atan sinh cosh tanh exp floor ceiling".split()


def prepare() -> None:
    """Loads the parser, which takes a second or two the first time.

    Raises:
        UsageError: math-verify is not installed.
    """
    try:
        _values("1+x")
    except ImportError as error:
        raise UsageError(
            f"Mathematical answers are read by math-verify, which cannot be imported ({error}): pip"
            " install 'grre-jax[rewards]'."
        ) from error


def same_value(first: str, second: str) -> bool:
    """Returns True if two normalised LaTeX expressions have the same values everywhere.

    Args:
        first, second: what `notation.normalised` made of them.

    Raises:
        NotComparable: one of them is beyond what is read or has no finite value.
    """
    exact_first, exact_second = _exact_value(first), _exact_value(second)
    if exact_first is not None and exact_second is not None:
        return exact_first == exact_second
    from mpmath import workdps

    ones, others, digits = _both(first, second)
    with workdps(digits):
        near = _agree(ones, others)
        return near and _agree(*_both_far(first, second))


def _agree(ones: "_Values", others: "_Values") -> bool:
    pairs = zip(ones, others, strict=True)
    return all(bool(abs(a - b) <= noise + other) for (a, noise), (b, other) in pairs)


def real_number(text: str) -> Any:
    """The value of an expression without variables, as an mpmath number.

    Args:
        text: as for `same_value`.

    Returns:
        The number, or None where the expression is not read, has variables, or is not real.
    """
    try:
        values = _values(text, _DIGITS[0])
    except NotComparable:
        return None
    value, noise = values[0]
    return value.real if _is_constant(values) and abs(value.imag) <= noise else None


def rounds_to(text: str, rounded: Fraction, places: int) -> bool | None:
    """Returns True if an expression without variables, rounded or cut off to some decimal places,
    is a number.

    Args:
        text: as for `same_value`.
        rounded: the number.
        places: its decimal places.

    Returns:
        None where the expression has no real value here.
    """
    from mpmath import mpf, workdps

    value = real_number(text)
    if value is None:
        return None
    with workdps(_DIGITS[0]):
        steps = (abs(value) - mpf(abs(rounded.numerator)) / rounded.denominator) * mpf(10) ** places
        return bool(value * rounded.numerator >= 0 and -0.5 <= steps < 1)


def proportional(first: str, second: str, positive: bool = False) -> bool:
    """Returns True if one expression, not a constant, is the other times a constant that is not 0.

    Args:
        first, second: as for `same_value`.
        positive: whether the constant must be above 0.

    Raises:
        NotComparable: as `same_value`.
    """
    ones, others, digits = _both(first, second)
    if _is_constant(ones) or not _proportional(ones, others, digits, positive):
        return False  # any two numbers are proportional
    far_ones, far_others = _both_far(first, second)
    return not far_ones or _proportional(ones + far_ones, others + far_others, digits, positive)


def _is_constant(values: "_Values") -> bool:
    return all(bool(abs(value - values[0][0]) <= noise + values[0][1]) for value, noise in values)


def _proportional(ones: "_Values", others: "_Values", digits: int, positive: bool) -> bool:
    from mpmath import workdps

    if any(abs(value) <= noise for value, noise in (*ones, *others)):
        return False
    with workdps(digits):
        ratios = [a / b for (a, _), (b, _) in zip(ones, others, strict=True)]
        triples = zip(ratios, ones, others, strict=True)
        noises = [abs(r) * (n / abs(a) + m / abs(b)) for r, (a, n), (b, m) in triples]
        pairs = zip(ratios, noises, strict=True)
        same = all(abs(ratio - ratios[0]) <= noise + noises[0] for ratio, noise in pairs)
    above = abs(ratios[0].imag) <= noises[0] and ratios[0].real > 0
    return bool(same) and (not positive or bool(above))


class _TooFewDigits(NotComparable):
    """A sum whose terms differ in size by more than the digits that are computed."""


_Values = tuple[tuple[Any, Any], ...]  # at each point, with what rounding may have changed


def _both(first: str, second: str) -> tuple[_Values, _Values, int]:
    """The values of both, to the same number of digits, and that number. Raises NotComparable."""
    few, many = _DIGITS
    try:
        return _values(first, few), _values(second, few), few
    except _TooFewDigits:
        return _values(first, many), _values(second, many), many


def _both_far(first: str, second: str) -> tuple[_Values, _Values]:
    """Values of both at the far points where both have one; none if neither is in pieces."""
    ones, others = [], []
    if _PIECES.search(first) or _PIECES.search(second):
        for point in _FAR_POINTS:
            try:
                one, other = _values(first, _FAR_DIGITS, point), _values(second, _FAR_DIGITS, point)
            except NotComparable:
                continue
            ones += one
            others += other
    return tuple(ones), tuple(others)


def _kept(compute: Callable) -> Callable:
    """Keeps the values of a function of LaTeX, and the reasons why there are none, since the parts
    of a list are compared many times.
    """

    @functools.lru_cache(maxsize=4096)
    def found(latex: str, *others: Any) -> Any:
        try:
            return compute(latex, *others)
        except NotComparable as error:
            return type(error)(*error.args)
        except (ArithmeticError, ValueError, TypeError, RecursionError, MemoryError) as error:
            return NotComparable(f"{latex[:80]!r} has no finite value: {error}")

    def value(latex: str, *others: Any) -> Any:
        result = found(latex, *others)
        if isinstance(result, NotComparable):
            raise type(result)(*result.args)
        return result

    value.cache_clear = found.cache_clear
    return value


@_kept
def _values(latex: str, digits: int = _DIGITS[0], far_point: int | None = None) -> _Values:
    """The values at the points, or at a far one."""
    from mpmath import isfinite, mpf, workdps

    tree = parsed(latex)
    with workdps(digits):
        points = range(_POINTS) if far_point is None else (far_point,)
        values = tuple(_value(tree, point, digits) for point in points)
        least = mpf(10) ** -_MOST_NOISE
        sure = all(isfinite(x) and noise <= least * max(1, abs(x)) for x, noise in values)
    if not sure:
        raise NotComparable(f"{latex[:80]!r} has no finite value")
    return values


@_kept
def _exact_value(latex: str) -> Fraction | None:
    """The value of an expression of rationals, None of another."""
    return _exact(parsed(latex))


def _exact(node: Any) -> Fraction | None:
    """The value of a tree of rationals, None of another; ValueError beyond _MOST_BITS."""
    name = type(node).__name__
    if node.is_Rational:
        return Fraction(int(node.p), int(node.q))
    if node.is_Float:
        return Fraction(str(node))
    known = ("UnevaluatedExpr", "factorial", "binomial", "Abs")
    if not (node.is_Add or node.is_Mul or node.is_Pow or name in known):
        return None
    arguments = [_exact(argument) for argument in node.args]
    if any(argument is None for argument in arguments):
        return None
    if node.is_Add:
        return functools.reduce(lambda total, term: _bounded(total + term), arguments)
    if node.is_Mul:
        return functools.reduce(lambda product, factor: _bounded(product * factor), arguments)
    if name == "UnevaluatedExpr":
        return arguments[0]
    if name == "Abs":
        return abs(arguments[0])
    if node.is_Pow:
        base, exponent = arguments
        if exponent.denominator != 1:
            return None
        if abs(exponent) > _MOST_EXPONENT or _bits(base) * abs(exponent) > _MOST_BITS:
            raise ValueError("a power out of bounds")
        return base ** int(exponent)
    if any(n.denominator != 1 or not 0 <= n <= _MOST_FACTORIAL for n in arguments):
        return None
    return Fraction((math.factorial if name == "factorial" else math.comb)(*map(int, arguments)))


def _bits(number: Fraction) -> int:
    return max(number.numerator.bit_length(), number.denominator.bit_length())


def _bounded(number: Fraction) -> Fraction:
    if _bits(number) > _MOST_BITS:
        raise ValueError("a number out of bounds")
    return number


def _value(node: Any, point: int, digits: int) -> tuple[Any, Any]:
    """The value of a tree at a point, and a bound on what rounding changed in it."""
    import mpmath
    import sympy

    step = mpmath.mpf(10) ** (_GUARD - digits)  # relative, of each operation
    if node.is_Symbol:
        return _symbol(node.name, point), mpmath.mpf(0)
    if node.is_Rational or node.is_Float:
        number = Fraction(str(node)) if node.is_Float else Fraction(int(node.p), int(node.q))
        value = mpmath.mpf(number.numerator) / number.denominator
        return value, mpmath.mpf(0) if number.denominator == 1 else step * abs(value)
    constants = {sympy.pi: mpmath.pi, sympy.E: mpmath.e, sympy.I: mpmath.mpc(0, 1)}
    if node in constants:
        value = +constants[node]
        return value, step * abs(value)
    pairs = [_value(argument, point, digits) for argument in node.args]
    arguments, noises = [value for value, _ in pairs], [noise for _, noise in pairs]
    name = type(node).__name__
    if node.is_Add:
        sizes = [abs(argument) for argument in arguments if argument != 0]
        if sizes and min(sizes) < 10**_GUARD * step * max(sizes):
            raise _TooFewDigits("the terms of a sum differ too much in size")
        return mpmath.fsum(arguments), mpmath.fsum(noises) + step * max(sizes, default=0)
    if name in ("floor", "ceiling"):
        nearest = mpmath.nint(arguments[0].real)
        if abs(arguments[0] - nearest) <= noises[0]:  # a whole number but for rounding
            return nearest, mpmath.mpf(0)
    value = _applied(node, name, arguments, point, digits)
    if not any(noises):
        return value, step * abs(value)
    moved = _applied(node, name, [argument + noise for argument, noise in pairs], point, digits)
    return value, abs(moved - value) + step * abs(value)


def _applied(node: Any, name: str, arguments: list[Any], point: int, digits: int) -> Any:
    import mpmath
    from sympy.core.function import AppliedUndef

    if node.is_Mul:
        return mpmath.fprod(arguments)
    quick = name in ("Abs", "UnevaluatedExpr") or node.is_Pow and _exact(node.exp) is not None
    if digits > _DIGITS[0] and not quick:
        raise ValueError(f"{name} to so many digits")  # would take too long in a list of them
    if node.is_Pow:
        return _power(*arguments, node.exp)
    if name == "log":
        return mpmath.log(*arguments)
    if name == "Abs":
        return abs(arguments[0])
    if name == "UnevaluatedExpr":
        return arguments[0]
    small = all(abs(argument) <= _MOST_FACTORIAL for argument in arguments)
    if small and name in ("factorial", "binomial"):
        return getattr(mpmath, name)(*arguments)
    if name in _FUNCTION_NAMES:
        if any(abs(argument) > _MOST_EXPONENT for argument in arguments):
            raise ValueError(f"{name} of {mpmath.nstr(arguments[0])}")
        return getattr(mpmath, {"ceiling": "ceil"}.get(name, name))(*arguments)
    if isinstance(node, AppliedUndef) and len(arguments) <= 3:  # f(x): a name as any other
        return _symbol(name, point) + sum(
            _symbol(f"{name}/{place}", point) * argument for place, argument in enumerate(arguments)
        )
    raise ValueError(f"{name} has no value here")


def _power(base: Any, exponent: Any, written: Any) -> Any:
    """base**exponent; the real root of a negative base, if the exponent has an odd denominator."""
    if abs(exponent) > _MOST_EXPONENT or abs(base) > 10**1000:
        raise ValueError("a power out of bounds")
    fraction = _exact(written)
    odd = fraction is not None and fraction.denominator % 2 and fraction.denominator > 1
    if odd and base.imag == 0 and base.real < 0:
        return abs(base) ** exponent * (-1) ** (fraction.numerator % 2)
    return base**exponent


def _symbol(name: str, point: int) -> Any:
    """±0.3 to ±1.9, by a hash of the name and the point; so many times as much at a far one."""
    from mpmath import mpc, mpf

    if name == "i":
        return mpc(0, 1)
    bits = int.from_bytes(hashlib.sha256(f"{name}@{point}".encode()).digest()[:16], "big")
    size = mpf("0.3") + mpf("1.6") * (bits >> 1) / mpf(2) ** 127
    size *= _FAR_POINTS.get(point, 1)
    return -size if (bits + point) & 1 else size
