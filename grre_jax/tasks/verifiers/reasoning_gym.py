"""Guards around reasoning-gym's scorers: the answers that they can be given, and those that are
right.

Some scorers run what they are given, as Python or as sympy does, and a model writes anything:
`may_be_scored`. Most scorers pay part of the reward for a guess, and some pay all of it for a wrong
answer: `is_right`.
"""

import ast
import cmath
import functools
import inspect
import itertools
import json
import operator
import re
import string
from collections.abc import Callable, Set
from decimal import Decimal
from fractions import Fraction
from types import ModuleType
from typing import Any

from grre_jax.tasks.verifiers.final_number import final_number_is

_LONGEST_EXPRESSION = 2_000  # characters of one that is evaluated
_LARGEST_NUMBER = 10**40  # written in it
_LARGE_FLOAT = re.compile(r"[0-9.][eE][+\-]?[0-9]{3}")
_LARGEST_POWER = 100  # of powers of powers the product

# What an answer consists of in the data sets of 0.1.25 whose scorers run texts (eval,
# sympy.parse_expr), take long over a few characters, or read words as answers; found by reading
# them all. First patterns. The first four are of lists that neither name, call nor compute
# anything; in the others numbers are small, and none is NaN, which is near to all.
_CHARACTERS = {
    "binary_matrix": r"[0-9\s,\[\]]*",
    "spiral_matrix": r"[0-9\s,\[\]]*",
    "n_queens": r"[Q_\s,'\"\[\]]*",
    "string_insertion": r"[A-E\s,'\"\[\]]*",
    "number_sorting": r"[0-9\s,.'\"+\-eE\[\]]*",
    "complex_arithmetic": r"[0-9\s.+\-eEijIJ()]*",
    "coin_flip": r"[0-9\s,./+\-]*(?:[eE][+\-]?[0-9]{1,3})?",
    "rubiks_cube": r"(?:[123]?\D)*[123]?",  # repetitions of a move
    "propositional_logic": r"[\sA-Z()∨∧→↔¬]{0,300}",
    # These scorers read what they know out of any words: "5 weeks" as 5, "I cannot" as C A.
    # One digit: of more, a move takes long.
    "rush_hour": r"[A-Z][+\-][0-9](?:[\s,]+[A-Z][+\-][0-9])*",
    "quantum_lock": r"[A-Ca-c\s,→>\-]*",
    "time_intervals": r"[0-9\s:.,\-]*(?:days?[0-9\s:.,]*)?",
    "kakurasu": r"[01\s,\[\]]*",
    "survo": r"[0-9\s]*",
    "fraction_simplification": r"\D*[0-9]+\D+[0-9]+\D*",  # the scorer takes the first two numbers
}
# Then expressions (sympy.parse_expr): the names of variables and of functions that may stand in
# them besides numbers and + - * / ** ( ).
_LETTERS = frozenset(string.ascii_letters)
_FUNCTIONS = {
    name: getattr(cmath, name)
    for name in "sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh exp log sqrt".split()
}
_FUNCTIONS |= {
    "ln": cmath.log,
    "sec": lambda z: 1 / cmath.cos(z),
    "csc": lambda z: 1 / cmath.sin(z),
    "cot": lambda z: 1 / cmath.tan(z),
}
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
# Of data sets that nobody has read.
_EVALUATORS = re.compile(r"\b(?:eval|exec|literal_eval|parse_expr|sympify|lambdify)\s*\(")
_PLAIN_LIST = r"[0-9\s,.\[\]]*"
_OPERATORS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}
_CONSTANTS = {"E": cmath.e, "pi": cmath.pi, "I": 1j}
_ANY_CONSTANT = 0.7  # the value of what an integral is not over, C for one
_POINTS = (0.4 + 0.3j, 1.1 - 0.6j, 0.05 - 0.2j)  # off the axes, where functions have their cuts
_TURNS = tuple(cmath.exp(2j * cmath.pi * turn / 8) for turn in range(8))
_RADIUS = 0.01


def may_be_scored(answer: str, entry: dict[str, Any], name: str, dataset: type) -> bool:
    """Returns True if a scorer can be given an answer: the data set's own, or one that can neither
    run code nor take long there.

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
        # Sympy may take minutes to simplify a wrong answer: only what numbers say is right comes to
        # that.
        wanted, variable = _expression(integrand, *_NAMES[name]), entry["metadata"]["variable"]
        return _is_antiderivative(tree, wanted, variable)
    if name in _OWN_TEXTS or not _evaluates(dataset):
        return True
    plain = re.fullmatch(_PLAIN_LIST, answer) or _expression(answer, _LETTERS, frozenset())
    return plain is not None


@functools.cache
def _evaluates(dataset: type) -> bool:
    """Returns True if a data set's code names a function that runs texts."""
    try:
        of = (dataset, dataset.score_answer)
        sources = [inspect.getsource(inspect.getmodule(one)) for one in of]
    except (OSError, TypeError):  # there is no source to be read
        return True
    return any(_EVALUATORS.search(source) for source in sources)


def _expression(text: str, names: Set[str], functions: Set[str]) -> ast.expr | None:
    """Tree of numbers, names, functions, + - * / and small powers; None of anything else."""
    plain = re.fullmatch(r"[A-Za-z0-9\s+\-*/().]*", text)
    if len(text) > _LONGEST_EXPRESSION or not plain or _LARGE_FLOAT.search(text):
        return None
    try:
        tree = ast.parse(text.strip(), mode="eval").body
        return tree if _is_harmless(tree, names, functions, _LARGEST_POWER) else None
    except (SyntaxError, ValueError, OverflowError, MemoryError, RecursionError):
        return None


def _is_harmless(node: ast.expr, names: Set[str], functions: Set[str], largest: float) -> bool:
    """True if `_expression` takes a tree with at most this product of powers of powers."""
    match node:
        case ast.Constant(value=value):
            return type(value) in (int, float) and abs(value) <= _LARGEST_NUMBER
        case ast.Name(id=name):
            return name in names
        case ast.UnaryOp(op=ast.UAdd() | ast.USub(), operand=inner):
            return _is_harmless(inner, names, functions, largest)
        case ast.Call(func=ast.Name(id=name), args=[inner], keywords=[]):
            inside = functions - _LOGARITHMS if name == "exp" else functions
            return name in functions and _is_harmless(inner, names, inside, largest)
        case ast.BinOp(left=ast.Name(id="E"), op=ast.Pow(), right=right):
            return "E" in names and _is_harmless(right, names, functions - _LOGARITHMS, largest)
        case ast.BinOp(left=left, op=ast.Pow(), right=right):
            power = abs(_number(right))
            rest = largest / max(power, 1)
            return power <= largest and _is_harmless(left, names, functions, rest)
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub() | ast.Mult() | ast.Div(), right=right):
            return all(_is_harmless(side, names, functions, largest) for side in (left, right))
    return False


def _number(node: ast.expr) -> float:
    """The value of a power written as a number or fraction; ValueError for another."""
    match node:
        case ast.Constant(value=int() | float() as value):
            return float(value)
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            return -_number(inner)
        case ast.BinOp(left=left, op=ast.Div(), right=ast.Constant(value=int(below))) if below:
            return _number(left) / below
    raise ValueError("no number")


def _is_antiderivative(tree: ast.expr, integrand: ast.expr | None, variable: str) -> bool:
    """True if the derivative is the integrand at one of three points, or that is not read."""
    if integrand is None:
        return True
    for point in _POINTS:
        try:  # Cauchy's integral for the derivative, over a small circle
            around = (_value(tree, variable, point + _RADIUS * turn) / turn for turn in _TURNS)
            slope = sum(around) / (len(_TURNS) * _RADIUS)
            wanted = _value(integrand, variable, point)
        except (ArithmeticError, ValueError, RecursionError):
            continue
        if abs(slope - wanted) <= 1e-6 * max(1, abs(wanted)):
            return True
    return False


def _value(node: ast.expr, variable: str, at: complex) -> complex:
    """Of what `_expression` gave; ArithmeticError or ValueError where there is none."""
    match node:
        case ast.Constant(value=value):
            return complex(value)
        case ast.Name(id=name):
            return at if name == variable else _CONSTANTS.get(name, _ANY_CONSTANT)
        case ast.UnaryOp(op=sign, operand=inner):
            value = _value(inner, variable, at)
            return -value if isinstance(sign, ast.USub) else value
        case ast.Call(func=ast.Name(id=name), args=[inner]):
            return _FUNCTIONS[name](_value(inner, variable, at))
        case ast.BinOp(left=left, op=sign, right=right):
            return _OPERATORS[type(sign)](_value(left, variable, at), _value(right, variable, at))
    raise ValueError("no expression")


# What is right is in most data sets what their scorer pays in full. Part marks are no measure: an
# answer that never changes gets them for being a number, for a cell in four of a board, for a
# letter of the right answer.

# These two pay so much for legal moves that solve nothing. A solution longer than the shortest,
# which their questions do not ask for, gets more.
_ANY_SOLUTION = 0.05
_LONG_SOLUTIONS = frozenset({"tower_of_hanoi", "knight_swap"})
_ROUNDING = Decimal("1e-8")  # of a number: what rounding may change
# Where nothing is an answer. Elsewhere it is a fault of the package: base_conversion writes 0 so.
_MAY_BE_EMPTY = frozenset({"ab", "polynomial_equations", "string_manipulation"})
_NOTHING = frozenset({"", '""', "''"})


def is_right(answer: str, score: float, entry: dict[str, Any], name: str, dataset: type) -> bool:
    """Returns True if an answer is right.

    Args:
        answer: what a model gave, without white space around it, of which `may_be_scored` is true.
        score: what the data set's scorer gives for it.
        entry: the question, as the package made it.
        name: of the data set that made it.
        dataset: its class.
    """
    if entry["answer"] == "":
        return answer in _NOTHING and name in _MAY_BE_EMPTY
    if name not in _RULES:
        return score > _ANY_SOLUTION if name in _LONG_SOLUTIONS else score == 1
    try:
        return _RULES[name](answer, entry, inspect.getmodule(dataset))
    except (ArithmeticError, LookupError, TypeError, ValueError, RecursionError):
        return False  # it is not of the form that is asked for


def _is_probability(answer: str, entry: dict[str, Any], _: ModuleType) -> bool:
    """The scorer allows 0.0001, so that 0 is right for many flips; and 10 for 1."""
    wanted = Fraction(entry["answer"])
    return abs(Fraction(answer) - wanted) <= min(Fraction(1, 10_000), wanted / 1_000)


def _makes_the_target(answer: str, entry: dict[str, Any], _: ModuleType) -> bool:
    """puzzle24 takes any four numbers, 6+6+6+6 for instance, and rounds what they make down."""
    tree = _expression(answer, frozenset(), frozenset())
    used = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)]
    target = entry["metadata"].get("target", 24)
    return sorted(used) == sorted(entry["metadata"]["numbers"]) and _exactly(tree) == target


def _exactly(node: ast.expr) -> Fraction:
    """The value of numbers joined by + - * /. Raises ValueError for anything else, a power too."""
    match node:
        case ast.Constant(value=value):
            return Fraction(value)
        case ast.UnaryOp(op=sign, operand=inner):
            return -_exactly(inner) if isinstance(sign, ast.USub) else _exactly(inner)
        case ast.BinOp(
            left=left, op=ast.Add() | ast.Sub() | ast.Mult() | ast.Div() as sign, right=right
        ):
            return _OPERATORS[type(sign)](_exactly(left), _exactly(right))
    raise ValueError("not one of the four operations")


def _is_the_word(answer: str, entry: dict[str, Any], _: ModuleType) -> bool:
    """Returns True if two texts are the same except for case and spaces.

    game_of_life_halting takes any text for any other, figlet_font one that has ten letters right,
    and spell_backward may take one that goes on behind the right answer.
    """
    return "".join(answer.split()).casefold() == str(entry["answer"]).casefold()


def _is_the_board(answer: str, entry: dict[str, Any], _: ModuleType) -> bool:
    """The scorer does not look beyond the right board."""
    return json.loads(answer) == json.loads(entry["answer"])


def _is_the_sentence(answer: str, entry: dict[str, Any], _: ModuleType) -> bool:
    """The scorer looks at the first words alone, however many follow."""
    return answer.casefold().split() == entry["answer"].casefold().split()


def _are_the_words(answer: str, entry: dict[str, Any], _: ModuleType) -> bool:
    """Compares as `_is_the_sentence` does, for words between commas."""
    return [word.strip() for word in answer.split(",")] == entry["metadata"]["sorted_words"]


def _is_the_decimal(answer: str, entry: dict[str, Any], _: ModuleType) -> bool:
    """The scorer allows a thousandth where twelve digits are asked for: 0 is right for what is
    small.

    Allowed is one unit of the last digit, where that is one of many, which rounding on the way may
    change.
    """
    given, wanted = Decimal(answer), Decimal(entry["answer"])
    unit = Decimal(1).scaleb(wanted.as_tuple().exponent)
    return abs(given - wanted) <= (unit if unit <= abs(wanted) * _ROUNDING else 0)


def _is_sorted(answer: str, entry: dict[str, Any], _: ModuleType) -> bool:
    """The scorer takes numbers that are off by up to 1."""
    given = json.loads(answer.replace("'", '"'))
    wanted = [float(number) for number in ast.literal_eval(entry["answer"])]
    return isinstance(given, list) and [float(number) for number in given] == wanted


def _is_the_final_number(answer: str, entry: dict[str, Any], _: ModuleType) -> bool:
    """The scorer takes the first number of a text without its sign: 18 of "18 or 19"."""
    return final_number_is(answer, entry["answer"], question=entry["question"])


def _are_the_roots(answer: str, entry: dict[str, Any], _: ModuleType) -> bool:
    """The scorer passes over words and pays by distance; four places are asked for."""
    given, wanted = (
        sorted(float(root) for root in text.split(",")) for text in (answer, entry["answer"])
    )
    pairs = zip(given, wanted, strict=False)
    return len(given) == len(wanted) and all(abs(a - b) <= min(1.01e-4, abs(b)) for a, b in pairs)


def _drives_out(answer: str, entry: dict[str, Any], module: ModuleType) -> bool:
    """The scorer passes over impossible moves: one long list solves many boards."""
    board = module.Board(entry["metadata"]["board_config"])
    for letter, steps in re.findall(r"([A-Z])([+-][0-9])", answer):
        piece = board._pieces[ord(letter) - ord("A")]
        reached = piece.position + int(steps) * piece.stride
        board.move(letter, int(steps))
        if piece.position != reached:
            return False
    return board.solved


def _is_inferred(answer: str, entry: dict[str, Any], module: ModuleType) -> bool:
    """The scorer takes whatever follows: P ∨ Q for most questions, anything where premises
    contradict.

    Right is a statement, or several joined by ∧, that follows from the premises, if one of them at
    least follows from no premise alone.
    """
    said, parts = [module.Expression.from_string(answer)], []
    while said:
        part = said.pop()
        if part.operator is module.Operator.AND:
            said += [part.left, part.right]
        else:
            parts.append(part)
    premises = [module.Expression.from_string(premise) for premise in entry["metadata"]["premises"]]
    variables = entry["metadata"]["variables"]
    rows = itertools.product((False, True), repeat=len(variables))
    worlds = [dict(zip(variables, row, strict=True)) for row in rows]
    possible = [world for world in worlds if all(premise.evaluate(world) for premise in premises)]
    if not possible or not all(part.evaluate(world) for world in possible for part in parts):
        return False
    given = [[world for world in worlds if premise.evaluate(world)] for premise in premises]
    return any(
        not any(all(part.evaluate(world) for world in alone) for alone in given) for part in parts
    )


_RULES: dict[str, Callable[[str, dict[str, Any], ModuleType], bool]] = {
    "coin_flip": _is_probability,
    "decimal_arithmetic": _is_the_decimal,
    "countdown": _makes_the_target,
    "figlet_font": _is_the_word,
    "game_of_life": _is_the_board,
    "game_of_life_halting": _is_the_word,
    "gsm_symbolic": _is_the_final_number,
    "letter_jumble": _is_the_sentence,
    "number_sorting": _is_sorted,
    "polynomial_equations": _are_the_roots,
    "propositional_logic": _is_inferred,
    "puzzle24": _makes_the_target,
    "rush_hour": _drives_out,
    "spell_backward": _is_the_word,
    "word_sorting": _are_the_words,
}
