r"""Whether two expressions are the same function, decided by their values at points that nobody can guess a false match for.

math-verify's parser (latex2sympy2_extended) reads the LaTeX; the tree is then evaluated to 40 digits at four fixed points of both signs and compared
to 25. Nothing is simplified, expanded or solved, which is what can take minutes: the work is one walk over a small tree, done again at each point.

What may be read is bounded before the parser sees it: 120 characters, six levels of brackets, four functions, 30 digits a numeral, no other commands than those of
`_COMMANDS`. An expression outside of that has no value here (`NotComparable`), and so has one that leaves the numbers: infinite, or with a power above
10,000.
"""

import functools
import hashlib
import re
from typing import Any

from grre_jax.errors import UsageError

_MOST_CHARACTERS = 120
_MOST_DEPTH = 6
_MOST_POWERS = 10  # and subscripts
_MOST_FUNCTIONS = 4  # sines, logarithms, ...: without parentheses the parser tries how far each reaches
_MOST_BARS = 4  # which open and which close is for the parser to try out
_MOST_DIGITS = 30
_MOST_EXPONENT = 10_000
_MOST_FACTORIAL = 1_000
_POINTS = 4
_DIGITS, _COMPARED = 40, 25  # decimal digits that are computed and compared
_COMMANDS = frozenset(
    "frac sqrt cdot times div pi sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh ln log exp binom "
    "lfloor rfloor lceil rceil alpha beta gamma delta epsilon theta lambda mu nu phi rho sigma tau omega varphi Delta Omega circ".split()
)
_FUNCTION = re.compile(r"\\(?:arc)?(?:sin|cos|tan|cot|sec|csc|ln|log|exp)")
_COMMAND = re.compile(r"\\([A-Za-z]+)")
_FUNCTION_NAMES = "sin cos tan cot sec csc asin acos atan sinh cosh tanh exp floor ceiling".split()


class NotComparable(ValueError):
    """An expression that is not read or has no finite value here."""


def prepare() -> None:
    """Loads the parser, which takes a second or two the first time.

    Raises:
      UsageError: math-verify is not installed.
    """
    try:
        _values("1+x")
    except ImportError as error:
        raise UsageError(
            f"Mathematical answers are read by math-verify, which cannot be imported ({error}): pip install 'grre-jax[rewards]'."
        ) from error


def same_value(first: str, second: str) -> bool:
    """Whether two normalised LaTeX expressions have the same values everywhere. Raises NotComparable where one of them is beyond what is read."""
    pairs = zip(_values(first), _values(second), strict=True)
    return all(_close(a, b) for a, b in pairs)


def proportional(first: str, second: str, positive: bool = False) -> bool:
    """Whether one expression is the other times a constant that is not 0 (and is above 0 if `positive`). Raises NotComparable as `same_value`."""
    ones, others = _values(first), _values(second)
    if any(_close(value, 0) for value in (*ones, *others)):
        return False
    ratios = [a / b for a, b in zip(ones, others, strict=True)]
    return all(_close(ratio, ratios[0]) for ratio in ratios) and (not positive or (ratios[0].imag == 0 and ratios[0].real > 0))


def _close(a: Any, b: Any) -> bool:
    from mpmath import mpf, workdps

    with workdps(_DIGITS):
        # What cancels to 0 leaves the last digits behind.
        return bool(abs(a - b) <= mpf(10) ** -_COMPARED * max(abs(a), abs(b)) + mpf(10) ** (5 - _DIGITS))


def _values(latex: str) -> tuple[Any, ...]:
    found = _values_or_reason(latex)
    if isinstance(found, str):
        raise NotComparable(found)
    return found


@functools.lru_cache(maxsize=4096)
def _values_or_reason(latex: str) -> tuple[Any, ...] | str:
    """The values at the points, or why there are none; both are kept, since the parts of a list are compared many times."""
    from mpmath import isfinite, mpmathify, workdps

    try:
        tree = _parsed(latex)
        with workdps(_DIGITS):
            values = tuple(+mpmathify(_value(tree, point)) for point in range(_POINTS))
    except NotComparable as error:
        return str(error)
    except (ArithmeticError, ValueError, TypeError, RecursionError, MemoryError) as error:
        return f"{latex[:80]!r} has no finite value: {error}"
    return values if all(isfinite(value) for value in values) else f"{latex[:80]!r} has no finite value"


def _parsed(latex: str) -> Any:
    _check_bounds(latex)
    from latex2sympy2_extended import latex2sympy
    from latex2sympy2_extended.latex2sympy2 import ConversionConfig
    from sympy import Expr

    latex = latex.replace(r"^\circ", r"\cdot\frac{\pi}{180}")
    try:
        tree = latex2sympy(latex, normalization_config=None, conversion_config=ConversionConfig(lowercase_symbols=False))
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # the grammar's own exceptions have no common class
        raise NotComparable(f"{latex[:80]!r} is not read: {type(error).__name__}") from None
    if not isinstance(tree, Expr):
        raise NotComparable(f"{latex[:80]!r} is a {type(tree).__name__}, not an expression")
    return tree


def _check_bounds(latex: str) -> None:
    depth = deepest = 0
    for character in latex:
        depth += (character in "{([") - (character in "})]")
        deepest = max(deepest, depth)
    unknown = set(_COMMAND.findall(latex)) - _COMMANDS
    if (
        not latex.strip()
        or len(latex) > _MOST_CHARACTERS
        or depth
        or deepest > _MOST_DEPTH
        or latex.count("|") > _MOST_BARS
        or len(_FUNCTION.findall(latex)) > _MOST_FUNCTIONS
        or latex.count("^") + latex.count("_") > _MOST_POWERS
        or re.search(r"[0-9]\s*_", latex)  # a base, which the parser would drop
        or unknown
        or any(ord(character) > 126 for character in latex)
        or re.search(rf"[0-9]{{{_MOST_DIGITS + 1}}}", latex)
        or (("!" in latex or "binom" in latex) and ("^" in latex or re.search("[0-9]{4}", latex) or latex.count("!") > 3))
    ):
        raise NotComparable(f"{latex[:80]!r} is beyond what is read")


def _value(node: Any, point: int) -> Any:
    """The value of a tree where each symbol has the value that its name has at a point."""
    import mpmath
    import sympy

    if node.is_Symbol:
        return _symbol(node.name, point)
    if node.is_Rational:
        return mpmath.mpf(int(node.p)) / int(node.q)
    if node.is_Float:
        return mpmath.mpf(str(node)) if len(str(node)) < _MOST_DIGITS else mpmath.mpf(node)
    constants = {sympy.pi: mpmath.pi, sympy.E: mpmath.e, sympy.I: mpmath.mpc(0, 1)}
    if node in constants:
        return +constants[node]
    arguments = [_value(argument, point) for argument in node.args]
    name = type(node).__name__
    if node.is_Add:
        return mpmath.fsum(arguments)
    if node.is_Mul:
        return mpmath.fprod(arguments)
    if node.is_Pow:
        return _power(*arguments)
    if name == "log":
        return mpmath.log(*arguments)
    if name == "Abs":
        return abs(arguments[0])
    if name == "UnevaluatedExpr":
        return arguments[0]
    if name == "factorial" and abs(arguments[0]) <= _MOST_FACTORIAL:
        return mpmath.factorial(arguments[0])
    if name == "binomial" and all(abs(argument) <= _MOST_FACTORIAL for argument in arguments):
        return mpmath.binomial(*arguments)
    if name in _FUNCTION_NAMES:
        if any(abs(argument) > _MOST_EXPONENT for argument in arguments):
            raise ValueError(f"{name} of {arguments[0]}")
        return getattr(mpmath, {"ceiling": "ceil"}.get(name, name))(*arguments)
    if node.is_Function and not hasattr(mpmath, name) and len(arguments) <= 3:  # f(x): a name as any other
        return _symbol(name, point) + sum(_symbol(f"{name}/{place}", point) * argument for place, argument in enumerate(arguments))
    raise ValueError(f"{name} has no value here")


def _power(base: Any, exponent: Any) -> Any:
    if abs(exponent) > _MOST_EXPONENT or abs(base) > 10.0**300:
        raise ValueError("a power out of bounds")
    return base**exponent


def _symbol(name: str, point: int) -> Any:
    """Between 0.3 and 1.9 or the negative of it, by a hash of the name and the point."""
    from mpmath import mpc, mpf

    if name == "i":
        return mpc(0, 1)
    bits = int.from_bytes(hashlib.sha256(f"{name}@{point}".encode()).digest()[:16], "big")
    size = mpf("0.3") + mpf("1.6") * (bits >> 1) / mpf(2) ** 127
    return -size if (bits + point) & 1 else size
