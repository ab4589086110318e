"""Expressions as functions."""

import builtins

import pytest

from grre_jax.errors import UsageError
from grre_jax.tasks import math_values

pytest.importorskip("math_verify")


def test_values_decide():
    assert math_values.same_value("(x+y)^2", "x^2+2xy+y^2") and not math_values.same_value("(x+y)^2", "x^2+2xy-y^2")
    assert math_values.same_value("\\sqrt{2}\\sqrt{3}", "\\sqrt{6}") and not math_values.same_value("\\sqrt{x^2}", "x")
    assert not math_values.same_value("10^{-30}", "10^{-31}") and math_values.same_value("\\sin^2 1+\\cos^2 1-1", "0")
    assert not math_values.same_value("x", "x+10^{-20}")


def test_constant_factors():
    assert math_values.proportional("x+1", "2x+2") and math_values.proportional("x+1", "-x-1")
    assert (
        not math_values.proportional("x+1", "-x-1", positive=True)
        and not math_values.proportional("x+1", "x+2")
        and not math_values.proportional("x-x", "x")
    )


@pytest.mark.parametrize(
    "text",
    ["", "1/0", "9^{9^{9}}", "\\int x", "((((((((x))))))))", "x" * 121, "|x|x|x|x|", "1" * 31, "\\frac{1}", "5_2", "9999!", "\\infty", "ä"],
)
def test_what_is_not_read(text):
    for _ in range(2):  # the refusal is remembered
        with pytest.raises(math_values.NotComparable):
            math_values.same_value(text, "5")


def test_a_missing_package_is_named(monkeypatch):
    whole = builtins.__import__

    def without(name, *args, **options):
        if name.startswith("latex2sympy2_extended"):
            raise ImportError("no such package")
        return whole(name, *args, **options)

    math_values._values_or_reason.cache_clear()
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(UsageError, match=r"math-verify, .* pip install 'grre-jax\[rewards\]'"):
        math_values.prepare()
