"""The order of comparison; the cases themselves are in verifier_cases.tsv."""

import pytest

from grre_jax.tasks import math_values
from grre_jax.tasks.math_equal import canonical, same_answer

pytest.importorskip("math_verify")


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [
        ("1/2", "\\frac{2}{4}", True),
        ("3\\pm\\sqrt2", "3-\\sqrt{2}, 3+\\sqrt{2}", True),
        ("(1,2)", "[1,2]", False),
        ("x<1, x>3", "(3,\\infty)\\cup(-\\infty,1)", True),
        ("a=1, b=2", "b=2, a=1", True),
        ("a=1, b=2", "a=2, b=1", False),
        ("2x=y", "y-2x=0", True),
        ("x<2y", "2y>x", True),
        ("x=\\pm3, y=\\pm2", "y=\\pm2, x=\\pm3", True),
        ("x=\\pm3, y=\\pm2", "x=\\pm2, y=\\pm3", False),
        ("x=3, x=-3", "y=3, y=-3", False),
        ("x=1, z+y=3", "w=1, z+y=3", False),
        ("x>1, x<3", "1<x<3", True),
        ("x<1 and x>3", "x<1 or x>3", False),
        ("x>1 and x>2", "x>1 or x>2", False),
        ("x>a", "(a,\\infty)", True),
        ("\\{\\{1\\}\\}", "\\{1\\}", False),
        ("3 1/2", "31/2", False),
        ("x=(1,2)=(3,4)", "(3,4)", False),
        ("x=\\frac{6!}{3!3!}=20", "20", True),
        ("x=" + "1=" * 9 + "1", "1", False),
        ("5\\text{ m}", "5\\text{ cm}", False),
        ("", "", False),
        ("x" * 301, " " + "x" * 301, True),
        ("{" * 30 + "5" + "}" * 30, "5", False),
    ],
)
def test_both_ways(a, b, same):
    assert same_answer(a, b) is same_answer(b, a) is same


@pytest.mark.parametrize("equation", ["x+y=7", "|AB|=7", "f^{-1}(3)=7", "P(A\\cap B)=7", "\\frac ab=7"])
def test_an_equation_may_give_a_number_and_a_number_is_no_equation(equation):
    assert same_answer(equation, "7") and not same_answer("7", equation)


def test_canonical():
    assert canonical("0.50") == canonical("\\frac{1}{2}") == "1/2" and canonical("x + 1") == canonical("$x+1$") == "x+1"


def test_members_that_are_written_alike_are_not_computed(monkeypatch):
    """Of a list of hard expressions that would take a second."""

    def computed(one, other):
        raise AssertionError(f"{one} and {other} were computed")

    monkeypatch.setattr(math_values, "same_value", computed)
    assert same_answer("x^{1/3}+2^{-999}, y^{1/5}, z^{1/7}", "z^{1/7}, x^{1/3}+2^{-999}, y^{1/5}")
