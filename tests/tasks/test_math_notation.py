"""One notation out of many."""

import pytest

from grre_jax.tasks.math_notation import normalised, squeezed, without_unit, words


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("\\dfrac12", "\\frac{1}{2}"),
        ("$\\left( 1 ,\\, 2 \\right)$", "( 1 , 2 )"),
        ("x²⁰", "x^{20}"),
        ("√(x+1)", "\\sqrt{x+1}"),
        ("２½", "2\\frac{1}{2}"),
        ("x**2", "x^2"),
        ("\\mathrm{cm}", "\\text{cm}"),
        ("\\begin{pmatrix}1\\\\ 2\\end{pmatrix}", "\\begin{pmatrix}1 \\\\ 2\\end{pmatrix}"),
        ("\\(5\\).", "5"),
        (".5", ".5"),
        ("", ""),
    ],
)
def test_normalised(written, meant):
    assert normalised(written) == meant


@pytest.mark.parametrize(
    ("text", "core", "unit"),
    [
        ("5 \\text{ cm}", "5", "cm"),
        ("5\\text{ centimeters}", "5", "cm"),
        ("5 \\text{cm}^2", "5", "cm^2"),
        ("5 \\text{ square feet}", "5", "ft^2"),
        ("90^\\circ", "90", "deg"),
        ("$5.00", "5.00", "dollars"),
        ("-$5", "-5", "dollars"),
        ("60 \\text{ miles per hour}", "60", "milesperhour"),
        ("5x", "5x", ""),
        ("x_1", "x_1", ""),
    ],
)
def test_units(text, core, unit):
    found = without_unit(text)
    assert found[0] == core and found[1] in (unit, {"milesperhour": "mph"}.get(unit))


def test_words_and_squeezing():
    assert words("\\text{(C)}") == "c" == words("C") and words("\\text{Evelyn}") == "evelyn" and words("2x") is None and words("xy") is None
    assert squeezed("x_{1} + \\text{ cm }") == "x_1+cm"
