"""Expressions that select groups, such as `reward_mean > 0.2 and length_max < 512`.

Python parses and evaluates an expression, once every node of its syntax tree is known to be a
comparison, arithmetic on numbers, `and`, `or`, `not`, `in`, a name of SCALARS or a call of
FUNCTIONS. No attribute, subscript or other call passes, and no arithmetic on texts or lists, which
could fill the memory, so an expression from anywhere is safe.
"""

import ast
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from jaxtyping import Float

from grre_jax.errors import UsageError
from grre_jax.rollouts.schema import Group

LONGEST = 2000  # characters; Python's parser recurses

# Name, meaning, value of a group.
SCALARS: tuple[tuple[str, str, Callable[[Group], Any]], ...] = (
    ("group_id", "identifier of the group", lambda g: g.group_id),
    ("task", "name of the task", lambda g: g.task),
    ("question_id", "identifier of the question", lambda g: g.question_id),
    ("prompt", "the prompt's text", lambda g: g.prompt),
    ("answer", "the true answer", lambda g: g.answer),
    ("engine", "sampler of the completions", lambda g: g.engine),
    ("position", "position in the prompt stream", lambda g: g.position),
    ("attempt", "number of the sampling at that position, from 0", lambda g: g.attempt),
    ("completions", "number of completions", lambda g: g.num_completions),
    ("failures", "completions without a verdict", lambda g: np.isnan(g.rewards).sum()),
    ("reward_mean", "mean reward of those with one", lambda g: _rewards(g).mean(dtype=np.float64)),
    ("reward_min", "lowest reward", lambda g: _rewards(g).min()),
    ("reward_max", "highest reward", lambda g: _rewards(g).max()),
    (
        "reward_std",
        "standard deviation of rewards",
        lambda g: _rewards(g).std(dtype=np.float64),
    ),
    ("has_accuracy", "true if the correctness of completions is known", lambda g: _judged(g)),
    ("accuracy", "share of correct completions, if it is known", lambda g: _accuracy(g)),
    ("has_reward_variance", "true if the rewards differ", lambda g: g.has_reward_variance),
    ("tokens", "tokens of all completions", lambda g: len(g.tokens)),
    ("prompt_tokens", "tokens of the prompt", lambda g: len(g.prompt_tokens)),
    ("length_min", "tokens of the shortest completion", lambda g: g.lengths.min()),
    ("length_mean", "mean tokens of a completion", lambda g: g.lengths.mean()),
    ("length_max", "tokens of the longest completion", lambda g: g.lengths.max()),
    ("version_min", "oldest policy version, -1 when unknown", lambda g: g.policy_version.min()),
    ("version_max", "newest policy version, -1 when unknown", lambda g: g.policy_version.max()),
    ("stopped", "share of completions that ended with EOS", lambda g: _stopped(g)),
    ("expert", "share of completions that are demonstrations", lambda g: g.is_expert.mean()),
    ("has_logprobs", "true if behaviour log-probs are known", lambda g: _has_logprobs(g)),
    ("temperature", "sampling temperature", lambda g: g.temperature),
    ("top_k", "top-k truncation, 0 for none", lambda g: g.top_k),
    ("top_p", "top-p truncation, 1 for none", lambda g: g.top_p),
    ("min_p", "min-p truncation, 0 for none", lambda g: g.min_p),
    ("seed", "seed of the draws", lambda g: g.seed),
)
FUNCTIONS: Mapping[str, Callable[..., Any]] = {"abs": abs, "len": len, "min": min, "max": max}

_VALUES = {name: value for name, _, value in SCALARS}
_TEXTS = ("group_id", "task", "question_id", "prompt", "answer", "engine")
_COMPARISONS = (ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.Eq, ast.NotEq, ast.In, ast.NotIn)
_ARITHMETIC = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod)


def predicate(text: str) -> Callable[[Group], bool]:
    """Returns the function that evaluates an expression for a group.

    Args:
        text: the expression.

    Raises:
        UsageError: it is not an expression, or uses more than SCALARS and FUNCTIONS; the message
            names the part. The function raises it for values that do not fit together (`prompt >
            3`, a division by zero), with the name of the group.
    """
    if len(text) > LONGEST:
        raise UsageError(f"The expression has {len(text):,} characters; {LONGEST:,} are the most.")
    try:
        tree = ast.parse(text.strip(), mode="eval")
        _check(tree.body)
        code = compile(tree, "<expression>", "eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise UsageError(
            f"{text!r} is not an expression"
            f" ({error.msg if isinstance(error, SyntaxError) else error});"
            " write one like reward_mean > 0.2 and length_max < 512."
        ) from error
    known = {"__builtins__": {}, **FUNCTIONS}

    def holds(group: Group) -> bool:
        try:
            return bool(eval(code, known, _Values(group)))
        except (TypeError, ZeroDivisionError, OverflowError, ValueError) as error:
            raise UsageError(
                f"Expression {text!r} cannot be computed for group {group.group_id!r} ({error});"
                " change the expression."
            ) from error

    return holds


class _Values(dict):
    """Values of a group by name, computed when the expression asks for them."""

    def __init__(self, group: Group) -> None:
        self._group = group

    def __missing__(self, name: str) -> Any:
        value = _VALUES[name](self._group)
        return value.item() if isinstance(value, np.generic) else value


def _check(node: ast.AST) -> bool:
    """Refuses what an expression may not use; returns True for what may be a text or a list."""
    match node:
        case ast.Constant(value=bool() | int() | float()):
            return False
        case ast.Constant(value=str()):
            return True
        case ast.Name(id=name) if name in _VALUES:
            return name in _TEXTS
        case ast.Name(id=name):
            raise UsageError(f"An expression cannot use {name!r}; it may use {', '.join(_VALUES)}.")
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in FUNCTIONS:
            return any([_check(arg) for arg in args]) and name in ("min", "max")
        case ast.Tuple(elts=items) | ast.List(elts=items):
            return any([True, *map(_check, items)])
        case ast.BoolOp(values=values):
            return any([_check(value) for value in values])
        case ast.Compare(left=left, ops=ops, comparators=others) if all(
            isinstance(op, _COMPARISONS) for op in ops
        ):
            for operand in (left, *others):
                _check(operand)
            return False
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            _check(operand)
            return False
        case ast.UnaryOp(op=ast.USub(), operand=operand) if not _check(operand):
            return False
        case ast.BinOp(left=left, op=op, right=right) if isinstance(op, _ARITHMETIC):
            if not any([_check(left), _check(right)]):
                return False
    raise UsageError(
        f"An expression cannot contain {ast.unparse(node)!r}; it may compare, compute with numbers"
        f" (+ - * / // %), use and, or, not, in, and call {', '.join(FUNCTIONS)}."
    )


def _rewards(group: Group) -> Float[np.ndarray, " judged"]:
    """Returns the rewards of completions with a verdict; NaN alone, which no comparison holds of,
    without any.
    """
    return group.judged_rewards if group.judged.any() else np.array([np.nan], np.float32)


def _judged(group: Group) -> bool:
    return group.correct is not None and bool(group.judged.any())


def _accuracy(group: Group) -> float:
    if not _judged(group):
        raise ValueError("its correctness is unknown: write has_accuracy and accuracy ...")
    return group.correct[group.judged].mean()


def _stopped(group: Group) -> float:
    return group.finish_reasons.count("stop") / group.num_completions


def _has_logprobs(group: Group) -> bool:
    return group.behavior_logprobs is not None
