"""Which answers reasoning-gym's scorers can be given: some run what they are given, as Python or as sympy does, and a model writes anything."""

import ast
import cmath
import functools
import inspect
import operator
import re
import string
from collections.abc import Set
from typing import Any

_LONGEST_EXPRESSION = 2_000  # characters of one that is evaluated
_LARGEST_NUMBER = 10**40  # written in it
_LARGE_FLOAT = re.compile(r"[0-9.][eE][+\-]?[0-9]{3}")
_LARGEST_POWER = 100  # of powers of powers the product

# What an answer consists of in the data sets of 0.1.25 whose scorers run texts (eval, sympy.parse_expr), found by reading them all, or take long over a few characters.
# First patterns. The first four are of lists that neither name, call nor compute anything; in the others numbers are small, and none is NaN, which is near to all.
_CHARACTERS = {
    "binary_matrix": r"[0-9\s,\[\]]*",
    "spiral_matrix": r"[0-9\s,\[\]]*",
    "n_queens": r"[Q_\s,'\"\[\]]*",
    "string_insertion": r"[A-E\s,'\"\[\]]*",
    "number_sorting": r"[0-9\s,.'\"+\-eE\[\]]*",
    "complex_arithmetic": r"[0-9\s.+\-eEijIJ()]*",
    "coin_flip": r"[0-9\s,./+\-]*(?:[eE][+\-]?[0-9]{1,3})?",
    "rubiks_cube": r"(?:[123]?\D)*[123]?",  # repetitions of a move
    "rush_hour": r"(?:\d?\D)*\d?",  # steps of a move
    "propositional_logic": r"[\s\S]{0,300}",
}
# Then expressions (sympy.parse_expr): the names of variables and of functions that may stand in them besides numbers and + - * / ** ( ).
_LETTERS = frozenset(string.ascii_letters)
_FUNCTIONS = {name: getattr(cmath, name) for name in "sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh exp log sqrt".split()}
_FUNCTIONS |= {"ln": cmath.log, "sec": lambda z: 1 / cmath.cos(z), "csc": lambda z: 1 / cmath.sin(z), "cot": lambda z: 1 / cmath.tan(z)}
_LOGARITHMS = frozenset({"log", "ln"})  # not within exp: sympy makes a power of numbers of both
_NAMES: dict[str, tuple[Set[str], Set[str]]] = {
    "countdown": (frozenset(), frozenset()),
    "puzzle24": (frozenset(), frozenset()),
    "polynomial_multiplication": (_LETTERS, frozenset()),
    "simple_integration": (_LETTERS | {"pi"}, _FUNCTIONS.keys()),
    "intermediate_integration": (_LETTERS | {"pi"}, _FUNCTIONS.keys()),
}
# These name such functions for texts of their own alone.
_OWN_TEXTS = frozenset({"basic_arithmetic", "bitwise_arithmetic", "codeio"})
_EVALUATORS = re.compile(r"\b(?:eval|exec|literal_eval|parse_expr|sympify|lambdify)\s*\(")  # of data sets that nobody has read
_PLAIN_LIST = r"[0-9\s,.\[\]]*"
_OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv, ast.Pow: operator.pow}
_CONSTANTS = {"E": cmath.e, "pi": cmath.pi, "I": 1j}
_ANY_CONSTANT = 0.7  # the value of what an integral is not over, C for one
_POINTS = (0.4 + 0.3j, 1.1 - 0.6j, 0.05 - 0.2j)  # off the axes, where functions have their cuts
_TURNS = tuple(cmath.exp(2j * cmath.pi * turn / 8) for turn in range(8))
_RADIUS = 0.01


def may_be_scored(answer: str, entry: dict[str, Any], name: str, dataset: type) -> bool:
    """Whether a scorer can be given an answer: it is the data set's own, or none that could run code or take long there.

    Args:
      answer: what a model gave.
      entry: the question, as the package made it.
      name: of the data set that made it.
      dataset: its class.
    """
    if answer == str(entry["answer"]).strip():
        return True
    if name in _CHARACTERS:
        return re.fullmatch(_CHARACTERS[name], answer) is not None
    if name in _NAMES:
        tree, integrand = _expression(answer, *_NAMES[name]), entry["metadata"].get("integrand")
        if tree is None or integrand is None:
            return tree is not None
        # Sympy may take minutes to simplify a wrong answer: only what numbers say is right comes to that.
        return _is_antiderivative(tree, _expression(integrand, *_NAMES[name]), entry["metadata"]["variable"])
    if name in _OWN_TEXTS or not _evaluates(dataset):
        return True
    return re.fullmatch(_PLAIN_LIST, answer) is not None or _expression(answer, _LETTERS, frozenset()) is not None


@functools.cache
def _evaluates(dataset: type) -> bool:
    """Whether a data set's code names a function that runs texts."""
    try:
        sources = [inspect.getsource(inspect.getmodule(of)) for of in (dataset, dataset.score_answer)]
    except (OSError, TypeError):  # there is no source to be read
        return True
    return any(_EVALUATORS.search(source) for source in sources)


def _expression(text: str, names: Set[str], functions: Set[str]) -> ast.expr | None:
    """The syntax tree of an expression of numbers, these names and functions of one argument, + - * / and powers of bounded size; None of anything else."""
    if len(text) > _LONGEST_EXPRESSION or not re.fullmatch(r"[A-Za-z0-9\s+\-*/().]*", text) or _LARGE_FLOAT.search(text):
        return None
    try:
        tree = ast.parse(text.strip(), mode="eval").body
        return tree if _is_harmless(tree, names, functions, _LARGEST_POWER) else None
    except (SyntaxError, ValueError, OverflowError, MemoryError, RecursionError):
        return None


def _is_harmless(node: ast.expr, names: Set[str], functions: Set[str], largest: float) -> bool:
    """Whether a tree is what `_expression` takes, the product of powers of powers in it at most `largest`."""
    match node:
        case ast.Constant(value=value):
            return type(value) in (int, float) and abs(value) <= _LARGEST_NUMBER
        case ast.Name(id=name):
            return name in names
        case ast.UnaryOp(op=ast.UAdd() | ast.USub(), operand=inner):
            return _is_harmless(inner, names, functions, largest)
        case ast.Call(func=ast.Name(id=name), args=[inner], keywords=[]):
            return name in functions and _is_harmless(inner, names, functions - _LOGARITHMS if name == "exp" else functions, largest)
        case ast.BinOp(left=ast.Name(id="E"), op=ast.Pow(), right=right):
            return "E" in names and _is_harmless(right, names, functions - _LOGARITHMS, largest)
        case ast.BinOp(left=left, op=ast.Pow(), right=right):
            power = abs(_number(right))
            return power <= largest and _is_harmless(left, names, functions, largest / max(power, 1))
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub() | ast.Mult() | ast.Div(), right=right):
            return _is_harmless(left, names, functions, largest) and _is_harmless(right, names, functions, largest)
    return False


def _number(node: ast.expr) -> float:
    """The value of a power that is written as a number, or as a fraction. Raises ValueError for anything else."""
    match node:
        case ast.Constant(value=int() | float() as value):
            return float(value)
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            return -_number(inner)
        case ast.BinOp(left=left, op=ast.Div(), right=ast.Constant(value=int(below))) if below:
            return _number(left) / below
    raise ValueError("no number")


def _is_antiderivative(tree: ast.expr, integrand: ast.expr | None, variable: str) -> bool:
    """Whether the slope of an expression is the integrand in numbers at one of three points at least; True where no tree of the integrand is had."""
    if integrand is None:
        return True
    for point in _POINTS:
        try:  # Cauchy's integral for the derivative, over a small circle
            slope = sum(_value(tree, variable, point + _RADIUS * turn) / turn for turn in _TURNS) / (len(_TURNS) * _RADIUS)
            wanted = _value(integrand, variable, point)
        except (ArithmeticError, ValueError, RecursionError):
            continue
        if abs(slope - wanted) <= 1e-6 * max(1, abs(wanted)):
            return True
    return False


def _value(node: ast.expr, variable: str, at: complex) -> complex:
    """Of what `_expression` gave, in complex numbers. Raises ArithmeticError or ValueError where there is none."""
    match node:
        case ast.Constant(value=value):
            return complex(value)
        case ast.Name(id=name):
            return at if name == variable else _CONSTANTS.get(name, _ANY_CONSTANT)
        case ast.UnaryOp(op=sign, operand=inner):
            return -_value(inner, variable, at) if isinstance(sign, ast.USub) else _value(inner, variable, at)
        case ast.Call(func=ast.Name(id=name), args=[inner]):
            return _FUNCTIONS[name](_value(inner, variable, at))
        case ast.BinOp(left=left, op=sign, right=right):
            return _OPERATORS[type(sign)](_value(left, variable, at), _value(right, variable, at))
    raise ValueError("no expression")
