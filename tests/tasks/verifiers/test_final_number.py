"""The final number; its cases are in cases.tsv."""

import json
from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given, strategies as st

from grre_jax.tasks import Question
from grre_jax.tasks.verifiers.final_number import final_number, first_number, verify_number


def _right(completion, truth):
    return verify_number(Question("q", "asked", truth), completion).correct


@given(st.decimals(-(10**12), 10**12, allow_nan=False, places=3))
def test_every_decimal_is_read_back_in_every_form(number):
    for written in (f"{number:f}", f"{number:,f}"):
        assert first_number(written) == Fraction(number)
        for form in ("#### {}", "\\boxed{{{}}}", "The answer is {}.", "A: {}", "so x = {}"):
            assert final_number(form.format(written)) == Fraction(number)


@given(st.integers(-999, 999), st.integers(1, 999))
def test_every_fraction_is_read_back(above, below):
    for form in ("{}/{}", "\\frac{{{}}}{{{}}}", "\\boxed{{\\dfrac{{{}}}{{{}}}}}"):
        assert final_number(form.format(above, below)) == Fraction(above, below)


@given(st.text(max_size=60))
def test_any_text_is_read(text):
    final_number(text)
    assert final_number(text.replace("<", "") + "\n#### 18") == 18


def test_a_right_answer_without_a_number_is_refused():
    with pytest.raises(ValueError, match="'ninety'"):
        _right("90", "ninety")


def test_a_numeral_that_is_too_long_is_not_a_number():
    assert final_number("#### " + "1" * 400) == int("1" * 400)
    assert final_number("#### " + "1" * 10_000) is None


def test_agreement_with_the_judgements_of_four_models_solutions(gsm8k_folder):
    """GSM8K's authors published 4 x 1,319 solutions with their own judgement of each."""
    file = gsm8k_folder / "example_model_solutions.jsonl"
    tally = Counter()
    for line in file.read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        truth = record["ground_truth"].rpartition("A:")[2]
        attempts = [value for value in record.values() if isinstance(value, dict)]
        tally.update((a["is_correct"], _right(a["solution"], truth)) for a in attempts)
    assert tally == {(True, True): 2001, (False, False): 3275}
