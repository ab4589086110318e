"""Read LaTeX as a SymPy expression, within bounds that keep the parser from running long."""

import functools
import re
from typing import Any

_MOST_CHARACTERS = 120
_MOST_DEPTH = 6
_MOST_POWERS = 10  # and subscripts
# Sines, logarithms, ...: without parentheses the parser tries how far each reaches.
_MOST_FUNCTIONS = 4
_MOST_BARS = 4  # which open and which close is for the parser to try out
GREEK = (
    "alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa lambda mu nu xi"
    " rho sigma tau upsilon phi varphi chi psi omega Gamma Delta Theta Lambda Xi Pi Sigma Phi Psi"
    " Omega ell"
).split()
_COMMANDS = frozenset(
    "frac sqrt cdot times div pi sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh ln log"
    " exp binom lfloor rfloor lceil rceil circ".split()
).union(GREEK)
# Letters that the parser takes for constants or functions, as the letters that stand for them: its
# I is the imaginary unit, which is i here, its \\gamma the gamma function or Euler's constant, and
# it has no e_1.
_STAND_INS = {
    "I": r"\Upsilon ",
    r"\gamma": r"\varsigma ",
    r"\Gamma": r"\varpi ",
    "e": r"\varrho ",
    "E": r"\hbar ",
}
_TAKEN = re.compile(r"\\[A-Za-z]+|[eE](?=\s*_)|I")
# Letters before an exponent: in braces they have one reading, which the parser finds by its fast
# way. Not e, nor what may be a function.
_BASE_LETTER = re.compile(
    rf"(?<![A-Za-z\\_])([A-Za-di-z]|\\(?:{'|'.join(GREEK)}|Upsilon|varsigma|varpi"
    rf"|hbar)(?![A-Za-z]))\s*(?=\^)"
)
_PI_TIMES = re.compile(r"(?<=\\pi)\s*(?=\()")  # which the parser takes for a function
_FUNCTION = re.compile(r"\\(?:arc)?(?:sin|cos|tan|cot|sec|csc|ln|log|exp)")
# X^x^x^x^x: LaTeX itself refuses powers of powers without braces, and the parser takes long over
# many.
_CHAIN = re.compile(r"(?:\^\s*[A-Za-z0-9]\s*){4}")
_COMMAND = re.compile(r"\\([A-Za-z]+)")
_MIXED = re.compile(r"([0-9]+) \\frac\{([0-9]+)\}\{([0-9]*[1-9][0-9]*)\}")
_APART = re.compile(r"[0-9.]+ [0-9.]")  # 3 4: neither a number nor a product


class NotComparable(ValueError):
    """An expression that is not read or has no finite value here."""


@functools.lru_cache(maxsize=4096)
def parsed(latex: str) -> Any:
    """Returns the SymPy expression of a LaTeX text.

    Raises:
        NotComparable: the text is beyond what is read.
    """
    _check_bounds(latex)
    reader = _reader()  # before the `try`: what it raises is of the installation
    from sympy import Expr

    latex = _TAKEN.sub(
        lambda found: _STAND_INS.get(found[0], found[0]),
        latex.replace(r"^\circ", r"\cdot\frac{\pi}{180}"),
    )
    latex = _PI_TIMES.sub(r"\\cdot ", latex)
    try:
        tree = reader().read(_BASE_LETTER.sub(r"{\1}", latex))
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # the grammar's own exceptions have no common class
        raise NotComparable(f"{latex[:80]!r} is not read: {type(error).__name__}") from None
    if not isinstance(tree, Expr):
        raise NotComparable(f"{latex[:80]!r} is a {type(tree).__name__}, not an expression")
    return tree


@functools.cache
def _reader() -> Any:
    """The parser; what stands side by side is multiplied, and nothing is computed."""
    from antlr4 import PredictionMode, Token
    from latex2sympy2_extended.latex2sympy2 import ConversionConfig, _Latex2Sympy
    from sympy import Rational, binomial

    class Reader(_Latex2Sympy):
        def __init__(self):
            super().__init__(config=ConversionConfig(lowercase_symbols=False))

        def read(self, latex: str) -> Any:
            """The tree of one expression.

            Lookahead without context is several times faster, and right unless it fails.
            """
            parser = self.create_parser(latex)
            parser._interp.predictionMode = PredictionMode.SLL
            try:
                found = parser.expr()
            except KeyboardInterrupt:
                raise
            except BaseException:  # the grammar's own exceptions have no common class
                return self.parse(latex)
            if parser.getTokenStream().LA(1) != Token.EOF:
                return self.parse(latex)
            return self.convert_expr(found)

        def convert_postfix_list(self, arr: Any, i: int = 0) -> Any:
            """A product; the parser's own adds any two numbers as in 3\\frac12, (2)(3) too."""
            written = " ".join(factor.getText() for factor in arr[i : i + 2])
            if _APART.match(written):
                raise NotComparable("numbers side by side")
            mixed = _MIXED.fullmatch(written)
            if mixed:
                whole, above, below = map(int, mixed.groups())
                factor = Rational(whole * below + above, below)
                i += 1
            else:
                factor = self.convert_postfix(arr[i])
            if i == len(arr) - 1:
                return factor
            return self.mul_flat(factor, self.convert_postfix_list(arr, i + 1))

        def convert_binom(self, binom: Any) -> Any:
            """Not computed, which takes sympy minutes for some."""
            above, below = (self.convert_expr(part) for part in (binom.upper, binom.lower))
            return binomial(above, below, evaluate=False)

    return Reader


def _check_bounds(latex: str) -> None:
    opened, deepest, paired = [], 0, True
    for character in latex:
        if character in "{([":
            opened.append({"{": "}", "(": ")", "[": "]"}[character])
            deepest = max(deepest, len(opened))
        elif character in "})]":
            paired = paired and bool(opened) and opened.pop() == character
    unknown = set(_COMMAND.findall(latex)) - _COMMANDS
    if (
        not latex.strip()
        or len(latex) > _MOST_CHARACTERS
        or opened
        or not paired
        or deepest > _MOST_DEPTH
        or latex.count("|") > _MOST_BARS
        or len(_FUNCTION.findall(latex)) > _MOST_FUNCTIONS
        or latex.count("^") + latex.count("_") > _MOST_POWERS
        or _CHAIN.search(latex)
        or re.search(r"[0-9]\s*_", latex)  # a base, which the parser would drop
        or unknown
        or any(ord(character) > 126 for character in latex)
        or latex.count("!") > 3
        or (("!" in latex or "binom" in latex) and re.search("[0-9]{4}", latex))
        # The double factorial, which the parser takes for the factorial of one.
        or re.search(r"!\s*!", latex)
        or "'" in latex  # a derivative, which the parser drops
    ):
        raise NotComparable(f"{latex[:80]!r} is beyond what is read")
