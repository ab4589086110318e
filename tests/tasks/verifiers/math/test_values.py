"""Expressions as functions."""

import builtins
import string
from fractions import Fraction

import pytest

from grre_jax.errors import UsageError
from grre_jax.tasks.verifiers.math import reading, values

pytest.importorskip("math_verify")


def test_values_decide():
    assert values.same_value("(x+y)^2", "x^2+2xy+y^2")
    assert not values.same_value("(x+y)^2", "x^2+2xy-y^2")
    assert values.same_value("\\sqrt{2}\\sqrt{3}", "\\sqrt{6}")
    assert not values.same_value("\\sqrt{x^2}", "x")
    assert not values.same_value("10^{-30}", "10^{-31}")
    assert values.same_value("\\sin^2 1+\\cos^2 1-1", "0")
    assert not values.same_value("x", "x+10^{-20}")


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("2^{2024}", "2^{2024}-1"),
        ("2^{2024}x", "(2^{2024}-1)x"),
        ("\\sqrt{2^{2024}+1}", "2^{1012}"),
        ("x+10^{-200}", "x"),
        ("x^{2024}+1", "x^{2024}"),
        ("\\pi 2^{-2000}", "\\pi 2^{-2001}"),
        ("(\\sin 1+1)10^{-900}", "(\\sin 1+1)10^{-901}"),
        ("\\sqrt[4]{-16}", "-2"),
    ],
)
def test_sizes_apart_are_no_excuse(first, second):
    assert values.same_value(first, first)
    assert not values.same_value(first, second)
    assert not values.same_value(second, first)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("2^{2024}x", "2\\cdot 2^{2023}x"),
        ("\\sqrt{2^{2024}}", "2^{1012}"),
        ("x^{2024}+1", "1+x^{2024}"),
        ("2^{128}", "340282366920938463463374607431768211456"),
        ("\\sqrt{3+2\\sqrt{2}}-1", "\\sqrt{2}"),
        ("\\sqrt[3]{2+\\sqrt{5}}+\\sqrt[3]{2-\\sqrt{5}}", "1"),
        ("\\lfloor\\sqrt{9}\\rfloor", "3"),
        ("0.1+0.2", "0.3"),
    ],
)
def test_rounding_makes_no_difference(first, second):
    assert values.same_value(first, second) and values.same_value(second, first)


def test_what_rounding_may_have_made_is_no_value():
    for other in ("5", "6"):
        with pytest.raises(reading.NotComparable):
            values.same_value("5+(\\sin^2 1+\\cos^2 1-1)10^{9999}", other)


@pytest.mark.parametrize(
    ("product", "value"),
    [
        ("2(3)", "6"),
        ("(2)(3)", "6"),
        ("2{3}", "6"),
        ("2(\\frac{1}{2})", "1"),
        ("\\frac{4}{2}(3)", "6"),
        ("\\binom{5}{2}\\frac{1}{2}", "5"),
        ("3\\frac{1}{2}", "\\frac{7}{2}"),
        ("-3\\frac{1}{2}", "-\\frac{7}{2}"),
        ("3\\frac{1}{2}\\pi", "\\frac{7}{2}\\pi"),
        ("2^{5}\\cdot 3!", "192"),
        ("\\binom{n}{2}", "\\frac{n(n-1)}{2}"),
    ],
)
def test_side_by_side_is_a_product_but_for_mixed_numbers(product, value):
    assert values.same_value(product, value) and not values.same_value(product, value + "+1")


@pytest.mark.parametrize(("first", "second"), [("I", "i"), ("I_1", "I_2"), ("2I", "2i")])
def test_a_capital_i_is_a_letter(first, second):
    assert values.same_value(first, first) and not values.same_value(first, second)


def test_no_letter_is_a_constant_or_function_of_the_parser():
    """But e, i and \\pi."""
    letters = [*string.ascii_letters, *(f"\\{name}" for name in reading.GREEK)]
    letters = [letter for letter in letters if letter not in ("e", "i")]
    assert len(letters) > 80
    for letter, other in zip(letters, [*letters[1:], letters[0]], strict=True):
        for form in ("{}", "{}+1", "2{}", "{}(2)", "{}^2", "{}_1"):
            text = form.format(letter)
            assert values.same_value(text, text)
            assert values.real_number(text) is None, text
            assert not values.same_value(text, form.format(other)), text
    assert values.same_value("\\gamma+1-\\gamma", "1") and values.same_value("\\pi(16)", "16\\pi")


def test_real_numbers():
    assert values.real_number("\\frac{1}{2}") == 0.5 and values.real_number("i^2") == -1
    assert all(values.real_number(text) is None for text in ("x", "2i", "\\infty", "\\frac{1}{0}"))


def test_rounding():
    rounds_to = values.rounds_to
    assert rounds_to("3\\sqrt{2}", Fraction("4.24"), 2)
    assert rounds_to("-\\frac{2}{3}", Fraction("-0.67"), 2)
    assert rounds_to("\\frac{2}{3}", Fraction("0.66"), 2)
    assert rounds_to("\\pi", Fraction("3.14159265358979323846"), 20)
    assert not rounds_to("3\\sqrt{2}", Fraction("4.25"), 2)
    assert not rounds_to("\\frac{2}{3}", Fraction("-0.67"), 2)
    assert not rounds_to("\\pi", Fraction("3.14159265358979323848"), 20)
    assert rounds_to("x", Fraction(1), 0) is None


def test_coefficients_are_not_computed_where_that_takes_long():
    for text in ("\\binom{e}{999}", "\\binom{\\sqrt{2}}{999}", "\\binom{999}{500}^{9}"):
        assert values.same_value(text, text) and not values.same_value(text, "5")


def test_constant_factors():
    assert values.proportional("x+1", "2x+2") and values.proportional("x+1", "-x-1")
    assert not values.proportional("x+1", "-x-1", positive=True)
    assert not values.proportional("x+1", "x+2")
    assert not values.proportional("x-x", "x")
    # Any two numbers would be.
    assert not any(
        values.proportional(*pair) for pair in (("1", "2"), ("\\sqrt{2}", "\\pi"), ("x+1-x", "2"))
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1/0",
        "9^{9^{9}}",
        "\\int x",
        "((((((((x))))))))",
        "x" * 121,
        "|x|x|x|x|",
        "1" * 121,
        "\\frac{1}",
        "5_2",
        "x^x^x^x^x",
        "3 4",
        "2\\sin 3 4",
        "5!!",
        "5! !",
        "x'",
        "\\binom{99!}{99}",
        "6\\frac{2}{0}",
        "9999!",
        "\\infty",
        "ä",
    ],
)
def test_what_is_not_read(text):
    for _ in range(2):  # the refusal is remembered
        with pytest.raises(reading.NotComparable):
            values.same_value(text, "5")


def test_a_missing_package_is_named(monkeypatch):
    whole = builtins.__import__

    def without(name, *args, **options):
        if name.startswith("latex2sympy2_extended"):
            raise ImportError("no such package")
        return whole(name, *args, **options)

    values._values.cache_clear()
    reading.parsed.cache_clear()
    reading._reader.cache_clear()
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(UsageError, match=r"math-verify, .* pip install 'grre-jax\[rewards\]'"):
        values.prepare()


def test_a_few_powers_in_a_row_are_read():
    assert values.same_value("x^x^x^x", "x^x^x^x")
    assert values.same_value("x^2+x^3+x^4+x^5+x^6", "x^2(1+x+x^2+x^3+x^4)")


def test_functions_in_pieces_are_compared_beyond_the_points_near_0():
    letters = "abcdfghjklmnopqrstuvwxyzABCDEFGHJKLMNOPQRSTUVWXYZ"
    assert not any(
        values.same_value(letter, f"|{letter}|") for letter in (*letters, "x_2", "\\theta")
    )
    assert not any(
        values.same_value(f"|x{letter}|", f"x{letter}") for letter in letters if letter != "x"
    )
    assert values.same_value("|x-5|", "|5-x|") and not values.same_value("|x-5|", "5-x")
    assert values.proportional("y-|x-5|", "|5-x|-y") and not values.proportional("y-|x-5|", "y-5+x")
    # What has no value far away is compared near 0 alone.
    assert values.same_value("\\exp(\\exp(\\sqrt{2x}))", "\\exp(\\exp(\\sqrt{2}\\sqrt{x}))")


@pytest.mark.parametrize(
    "text",
    [
        "x^2+2x+1",
        "\\frac{-b+\\sqrt{b^{2}-4ac}}{2a}",
        "\\sin^2 x\\cos 2x",
        "e^{x}\\cos x",
        "a_1\\alpha^2-a_2",
        "f(x)^2",
        "3\\frac{1}{2}x!",
        "\\log_2 8x",
        "|x-5|\\lfloor y^3\\rfloor",
        "2^{n+1}-\\binom{n}{2}",
        "n(n+1)/2",
        "-x^{-1}",
        "(x",
        "x+",
        "1 2",
    ],
)
def test_the_fast_way_through_the_parser_reads_the_same(text):
    reader = reading._reader()

    def tree_of(way):
        try:
            return str(way(text))
        except Exception:
            return None

    assert tree_of(reader().read) == tree_of(reader().parse)
    braced = reading._BASE_LETTER.sub(r"{\1}", text)
    assert braced.count("^") == text.count("^")
    assert tree_of(lambda _: reader().read(braced)) == tree_of(reader().parse)
