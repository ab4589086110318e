"""What counts as the answer, case by case; that hostile text costs nothing; and agreement with
GSM8K's own judgements.
"""

import json
from collections import Counter, defaultdict
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grre_jax.tasks.verifiers import final_number

EXPLICIT = [
    # GSM8K's own form
    ("so 9 * 2 = 18\n#### 18", "18", "hashes"),
    ("####18", "18", "hashes"),
    ("#### 1,234.50", "1234.5", "hashes"),
    ("#### -3", "-3", "hashes"),
    ("#### $18.00 per day", "18", "hashes"),
    ("#### 18 dollars for 2 days", "18", "hashes"),
    ("#### 3 + 5 = 8", "8", "hashes"),
    ("####\n18", "18", "hashes"),
    ("#### 18!", "18", "hashes"),
    ("#### 18 000 eggs", "18000", "hashes"),
    ("#### 20% of 90 = 18", "18", "hashes"),
    ("#### 18 eggs (3 x 6)", "18", "hashes"),
    ("#### 18/day", "18", "hashes"),
    ("#### Step 3: total\nso 18 eggs", "18", "number"),
    ("#### 3. Total\nShe makes 18.", "18", "number"),
    ("##### 7\nIt is 8", "8", "number"),
    # boxes
    (r"\boxed{18}", "18", "boxed"),
    (r"$\boxed{-18}$ as 3 > 2", "-18", "boxed"),
    (r"\boxed{\frac{1}{2}}", "1/2", "boxed"),
    (r"\boxed{\text{5 apples}}", "5", "boxed"),
    (r"\boxed{\text{Tom has } 5}", "5", "boxed"),
    (r"\boxed{12\text{ cm}^2}", "12", "boxed"),
    (r"\boxed{x = 5}", "5", "boxed"),
    (r"\boxed{3 + 5 = 8}", "8", "boxed"),
    (r"\boxed{2 \times 4 = 8 \text{ for } 3}", "8", "boxed"),
    (r"\boxed{1{,}234}", "1234", "boxed"),
    (r"\boxed{1\,234}", "1234", "boxed"),
    (r"\boxed{1,\!234}", "1234", "boxed"),
    (r"\boxed{- 5}", "-5", "boxed"),
    (r"\boxed{\$5.50}", "5.5", "boxed"),
    (r"\boxed{50\%}", "50", "boxed"),
    (r"\boxed {7}", "7", "boxed"),
    (r"\boxed 7", "7", "boxed"),
    (r"\fbox{7}", "7", "boxed"),
    (r"\boxed{\boxed{4}}", "4", "boxed"),
    (r"\boxed{{5}}", "5", "boxed"),
    (r"\boxed{\{5\}}", "5", "boxed"),
    (r"} \boxed{6}", "6", "boxed"),
    (r"\boxed{\cfrac12}", "1/2", "boxed"),
    (r"\boxed{90^\circ}", "90", "boxed"),
    (r"\boxed{18} and \boxed{18.0}", "18", "boxed"),
    (r"\boxed{2}, no, \boxed{3}. So we had 9 in all.", "3", "boxed"),
    (r"\boxed{3} and \boxed{unknown} 4", "3", "boxed"),
    (r"\boxed{5", "5", "number"),
    (r"\boxed{}", None, None),
    # phrases
    ("The answer is 5.", "5", "phrase"),
    ("The answer is 18 and that is final.", "18", "phrase"),
    ("The answer is 18, 3 more than 15.", "18", "phrase"),
    ("The answer is 5 dollars or 500 cents", "5", "phrase"),
    ("The answer is 1/2 or 50%", "1/2", "phrase"),
    ("The answer is 18.12 to 2 decimal places", "18.12", "phrase"),
    ("The answer is 12 20-cent coins", "12", "phrase"),
    ("The answer is that in 3 days, 18 eggs are laid.", "18", "phrase"),
    ("The answer is not 18 but 20.", "20", "number"),
    ("The answer is 5 because 2 + 2 = 4.", "5", "phrase"),
    ("Thus, the final answer is **$5**.", "5", "phrase"),
    ("THE ANSWER IS: 5", "5", "phrase"),
    ("The answer is $18/2 = 9$ dollars", "9", "phrase"),
    ("The answer is 3 + 5 = 8 apples.", "8", "phrase"),
    ("The answer is 5 x 3 = 15", "15", "phrase"),
    ("The answer is the sum of 3 and 5, which is 8. It took 2 steps.", "8", "phrase"),
    ("The answer is approximately 5, from 3 numbers", "5", "phrase"),
    ("The answer is (C) 7", "7", "phrase"),
    ("The answer, therefore, is 5 (not 6)", "5", "phrase"),
    ("The answer to the question is 12 and not 13", "12", "phrase"),
    ("My answer would be 12 dollars for 2", "12", "phrase"),
    ("The answer comes to 12, or 6 each", "12", "phrase"),
    ("The answer is:\n\n5\n\nfor 2 people", "5", "phrase"),
    ("The answer is \\[ 5 \\] for 2", "5", "phrase"),
    ("The answer is 1. No: the answer is 2. There were 3.", "2", "phrase"),
    ("The answer is 4. The answer is not 5, nor 6.", "4", "phrase"),
    ("The answer is unknown. 6 of them", "6", "phrase"),
    ("The answer is one", None, None),
    ("The answer to the last answer of 3 is 5, for 2", "5", "phrase"),
    # headings
    ("Answer: 5 apples for 2", "5", "heading"),
    ("**Answer:** 5 of 6", "5", "heading"),
    ("Answer:\n5\nof 6", "5", "heading"),
    ("A: 18 of 19", "18", "heading"),
    ("A: 1\nA: 2\n3", "2", "heading"),
    ("Answer: USD 5 for 3", "5", "heading"),
    ("Answer:\nJanet has 9 eggs. She makes 18", "18", "number"),
    ("Answer: She sells 16 - 3 - 4 = 9 eggs. She makes 9 * 2 = 18 dollars.", "18", "number"),
    ("Answer: 16 - 3 = 13. Then 13 * 2 = 26", "26", "number"),
    ("So it is 18.\n\nAnswer:", "18", "number"),
    ("Option A: 5, option B: 6", "6", "number"),
    # several forms: the last one that has a number
    ("#### 4\nThe answer is 5", "5", "phrase"),
    (r"The answer is 5, so \boxed{6}. #### 7", "7", "hashes"),
    (r"The final answer is $\boxed{\dfrac{3}{4}}$.", "3/4", "boxed"),
]

NUMBERS = [
    ("", None),
    ("no number", None),
    ("18", "18"),
    ("18.", "18"),
    ("18.00", "18"),
    ("I have 5 apples and 6 pears.", "6"),
    ("11," * 8 + "111 rupees", "11" * 8 + "111"),
    ("1\u202f234", "1234"),
    ("12\u2009345\u2009678.5", "12345678.5"),
    ("2024\u2009100", None),
    ("x = -3", "-3"),
    ("x = - 5", "-5"),
    ("- 5 apples", "5"),
    ("(-5)", "-5"),
    ("+5", "5"),
    ("\u22127", "-7"),
    ("-$5", "-5"),
    ("$-5", "-5"),
    ("-\\$5", "-5"),
    ("$1,234.50", "1234.5"),
    ("\u20ac 12", "12"),
    ("Rs.500", "500"),
    ("1,000,000 people", "1000000"),
    ("12,34,567 rupees", "1234567"),
    ("1, 2, 3", None),
    ("1,2", None),
    ("1,2345", None),
    ("2, 2.0", "2"),
    ("So 4, 5, 6", None),
    ("Then 5, 18", "18"),
    ("5 + 3 = 8\n8 + 10 = 18", "18"),
    ("1 " * 100, "1"),
    ("1 2 " * 100, None),
    (".5", "1/2"),
    ("-.5", "-1/2"),
    ("0.50", "1/2"),
    ("-0.0", "0"),
    ("1/2", "1/2"),
    ("-1/2", "-1/2"),
    ("1 1/2", "3/2"),
    ("-1 1/2", "-3/2"),
    ("1,000/4", "250"),
    ("5/0", None),
    ("\\frac{1}{2}", "1/2"),
    ("-\\frac12", "-1/2"),
    ("\\dfrac{-3}{4}", "-3/4"),
    ("\\tfrac{1,000}{3}", "1000/3"),
    ("3\\frac{1}{2}", "7/2"),
    ("\\frac{1}{0}", None),
    ("1e3", "1000"),
    ("1.5e-3", "0.0015"),
    ("2 \\times 10^{3}", "2000"),
    ("2 x 10^3", "2000"),
    ("50%", "50"),
    ("50 \\%", "50"),
    ("5kg", "5"),
    ("the 5th", "5"),
    ("H2O", None),
    ("x2", None),
    ("**18**", "18"),
    ("`18`", "18"),
    ("<<9*2=18>>18", "18"),
    ("1" * 400, "1" * 400),
    ("1" * 401, None),
    ("5 \ud800 \x00 6", "6"),
    ("\u0665", "5"),
    ("\u0667\u066b\u0665", "7.5"),
    ("\uff0d\uff11\uff18", "-18"),
    ("\U0001d7cf\U0001d7d0", "12"),
    ("\u00bd", "1/2"),
    ("3\u00bd", "7/2"),
    ("1 and \u215e", "15/8"),
    ("1.5\u00d710\u00b3", "1500"),
    ("1.5*10**3", "1500"),
    ("2\u00d710\u207b\u00b2", "1/50"),
    ("1'234\u2019567", "1234567"),
    ("2 and 1/2", "5/2"),
    ("3 million dollars", "3000000"),
    ("5 hundred thousand", "500000"),
    ("5 hundred brillion", "500"),
    ("5 thou\u017fand", "5"),
    ("\\frac1{-2}", "-1/2"),
    ("\\cfrac{-1}{-2}", "1/2"),
    ("7:00 pm", "7"),
    ("It is 18, not 19.", "18"),
    ("18 cm^2", "18"),
    ("18 cm\u00b2", "18"),
    ("half of 36 is 18", "18"),
    ("$30 + $6 or $36", "36"),
    ("0.5 or 1/2", "1/2"),
    ("Total - 18", "18"),
    ("- 18", "18"),
]

# Which of their numbers would be the answer is not said, or none of them is the answer; a part of
# them must not be rewarded.
NO_ANSWER = [
    "Final answer: $-5$ or 3",
    "answer = 12 or 13",
    "#### 18, 19, 20",
    "#### 18 19",
    "#### 18,5",
    "#### 18 to 19",
    "#### 18\u201319",
    "#### between 17 and 18",
    "#### 18 (or 19)",
    "#### 18 dollars and 50 cents",
    "#### 3 hours 30 minutes",
    "The answer is $18$ or $19$.",
    "The answer is either 18 or 19.",
    "The answer is the sum of 3 and 5.",
    "It is 17 or 18.",
    r"\boxed{18\text{ or }19}",
    r"\boxed{18 \; \text{or} \; 19}",
    r"\boxed{x = 5 \text{ or } x = 6}",
    r"\boxed{18} or \boxed{19}",
    "To answer this we need to know what is 5 + 3",
    "5-3",
    "16 - 3",
    "10-20",
    "2^3",
    "10:30",
    "She ate half of 36",
    "#### 16 - 3",
    "#### 2 and a half",
    "#### 12/25/2024",
    "#### \u221a16",
    "20% of 90",
    r"\boxed{2^3}",
    r"\boxed{x^2}",
    r"\boxed{\sqrt{16}}",
    r"\boxed{2\sqrt{3}}",
    r"\boxed{\pm 5}",
    r"\boxed{5!}",
    r"\boxed{2 \times 9}",
    r"\boxed{\frac{x}{2}}",
    r"\boxed{0.\overline{3}}",
    r"\boxed{3x}",
    r"\boxed{3(6)}",
    "The answer is not 18.",
    "The answer isn\u2019t 18.",
    "The answer is definitely not 18",
    "neither 17 nor 18",
    "#### not 18",
    r"\boxed{\neq 18}",
    "not 2, " * 50,
]


@pytest.mark.parametrize(("text", "value", "form"), EXPLICIT)
def test_explicit_answers(text, value, form):
    answer = final_number.extract_answer(text)
    assert (answer and answer.value, answer and answer.form) == (value and Fraction(value), form)


@pytest.mark.parametrize(("text", "value"), NUMBERS)
def test_last_numbers(text, value):
    answer = final_number.extract_answer(text)
    assert (answer and answer.value) == (value and Fraction(value))


@pytest.mark.parametrize("text", NO_ANSWER)
def test_several_numbers_calculations_and_denials_are_no_answer(text):
    assert final_number.extract_answer(text) is None


@pytest.mark.parametrize("text", ["18 or 19", "16 - 3", "2^3"])
def test_what_is_no_answer_at_the_end_leaves_nothing_of_what_came_before(text):
    assert final_number.extract_answer(f"#### 3\nThe answer is {text}.") is None


def test_millions_are_right_where_the_question_counts_in_them():
    assert final_number.final_number_is("#### 3 million", "3,000,000")
    assert not final_number.final_number_is("#### 3 million", "3")
    assert final_number.final_number_is("#### 3 million", "3", question="How many million dollars?")
    assert not final_number.final_number_is(
        "#### 3 million", "3", question="How many billion dollars?"
    )


@pytest.mark.parametrize(
    ("completion", "answer", "right"),
    [
        ("#### 18", "18", True),
        ("#### 1080", "1,080", True),
        ("#### 1,080.0", "1080", True),
        ("18.01", "18", False),
        ("-18", "18", False),
        ("0.5", "1/2", True),
        ("50%", "0.5", False),
        ("50%", "50", True),
        ("0.333", "1/3", False),
        ("-0.0", "0", True),
        ("", "0", False),
        ("18", "18 dollars", True),
        ("18", "$18", True),
    ],
)
def test_final_number_is(completion, answer, right):
    assert final_number.final_number_is(completion, answer) is right


@pytest.mark.parametrize("text", ["3 million", "2 and 1/2", "3 or 3", "3 cm", "3 4", ""])
def test_an_exact_number_has_no_words(text):
    assert final_number.exact_number(text) is None


def test_exact_numbers():
    written = {" - 5 ": "-5", "2 1/2": "5/2", "½": "1/2", "1'000": "1000", "２×10³": "2000"}
    assert {text: str(final_number.exact_number(text)) for text in written} == written


def test_a_right_answer_without_a_number_is_refused():
    with pytest.raises(ValueError, match="'ninety' holds no number"):
        final_number.final_number_is("90", "ninety")


@given(
    st.decimals(
        allow_nan=False, allow_infinity=False, min_value=-(10**12), max_value=10**12, places=3
    )
)
def test_every_decimal_is_read_back_in_every_form(number):
    value = Fraction(number)
    for written in (f"{number:f}", f"{number:,f}"):
        assert final_number.parse_number(written) == value
        for text in (
            f"#### {written}",
            rf"\boxed{{{written}}}",
            f"The answer is {written}.",
            f"A: {written}",
            f"so x = {written}",
        ):
            assert final_number.extract_answer(text).value == value


@given(st.integers(-999, 999), st.integers(1, 999))
def test_every_fraction_is_read_back(above, below):
    for written in (
        f"{above}/{below}",
        rf"\frac{{{above}}}{{{below}}}",
        rf"\boxed{{\dfrac{{{above}}}{{{below}}}}}",
    ):
        assert final_number.extract_answer(written).value == Fraction(above, below)


PIECES = [
    "\\boxed{",
    "{",
    "}",
    "\\",
    "#### ",
    "answer",
    " is ",
    ":",
    "\n",
    "A:",
    "=",
    "-",
    "$",
    ",",
    ".",
    "/",
    "1",
    "23",
    "e",
    "\\frac",
    "^",
    "x",
    " ",
    "%",
    " or ",
    "not ",
    " million",
    " hundred",
    " and ",
    "½",
    "×10³",
]


@settings(max_examples=500)
@given(st.lists(st.sampled_from(PIECES), max_size=30).map("".join) | st.text(max_size=60))
def test_no_text_is_too_odd(text):
    for found in (
        final_number.extract_answer(text),
        final_number.extract_answer(text + " #### 18"),
    ):
        assert found is None or isinstance(found.value, Fraction)
    assert found is not None
    final_number.parse_number(text)


HOSTILE = {
    "digits": "1",
    "boxes": "\\boxed{",
    "braces": "{",
    "backslashes": "\\",
    "fractions": "\\frac{",
    "answers": "answer ",
    "answers to": "answer to ",
    "answers without a number": "answer: ",
    "newlines": "\n",
    "lines A": "A:\n",
    "hashes": "#### ",
    "dashes": "-",
    "commas": "111,",
    "pairs and commas": "11,",
    "thin spaces": "111\u2009",
    "thoughts": "<think></think>",
    "slashes": "1/",
    "mixed numbers": "1 ",
    "equals": "= - ",
    "halves": "\u00bd",
    "Devanagari": "\u0967",
    "raised": "10\u00b3",
    "spaced thousands": "1 000 ",
    "clocks": "1:0",
    "denials": "not 1 ",
    "hedges": "#### 18 or 19\n",
    "boxed hedges": "\\boxed{1} or ",
    "lists": "answer is a 1, 2 or 3\n",
    "sentences": "the 3 cats = 4 + 5, \\boxed{x} #### a\n",
}


@pytest.mark.parametrize("piece", HOSTILE.values(), ids=HOSTILE)
def test_ten_megabytes_are_judged(piece):
    """Anything quadratic would take hours, which the suite's limit for one test ends."""
    text = piece * (10_000_000 // len(piece))
    final_number.extract_answer(text)
    final_number.parse_number(text)


def test_nesting_a_hundred_thousand_deep():
    assert final_number.extract_answer("\\boxed{" * 100_000 + "7" + "}" * 100_000).value == 7
    assert final_number.extract_answer("{" * 100_000 + "\\boxed{8}" + "}" * 100_000).value == 8


def test_the_end_counts_however_long_the_text():
    assert (
        final_number.extract_answer("the answer is 3. " + "word " * 2_000_000 + "\n#### 18").value
        == 18
    )


def test_every_gsm8k_solution_ends_in_its_own_answer(gsm8k_folder):
    for split, count in (("train", 7473), ("test", 1319)):
        records = [
            json.loads(line)
            for line in (gsm8k_folder / f"{split}.jsonl").read_text(encoding="utf-8").splitlines()
        ]
        assert len(records) == count
        wrong = [
            r["answer"]
            for r in records
            if not final_number.final_number_is(r["answer"], r["answer"].rpartition("####")[2])
        ]
        assert wrong == []


def test_agreement_with_the_judgements_of_four_models_solutions(gsm8k_folder, record_property):
    """GSM8K's authors published 4 x 1,319 solutions with their own judgement of each, by their
    own extraction.
    """
    tally, disagreements = Counter(), defaultdict(list)
    for line in (
        (gsm8k_folder / "example_model_solutions.jsonl").read_text(encoding="utf-8").splitlines()
    ):
        record = json.loads(line)
        truth = record["ground_truth"].rpartition("A:")[2]
        for model, attempt in record.items():
            if isinstance(attempt, dict):
                ours = final_number.final_number_is(attempt["solution"], truth)
                tally[attempt["is_correct"], ours] += 1
                if ours != attempt["is_correct"]:
                    kind = "we accept what they reject" if ours else "we reject what they accept"
                    disagreements[kind].append((model, truth, attempt["solution"][-60:]))
    record_property("tally", str(dict(tally)))
    assert dict(disagreements) == {}
    assert tally == {(True, True): 2001, (False, False): 3275}
