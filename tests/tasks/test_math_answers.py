"""Where an answer is said; whether it is right is in verifier_cases.tsv."""

import pytest

from grre_jax.tasks.math_answers import final_expression


@pytest.mark.parametrize(
    ("completion", "answer"),
    [
        ("\\boxed{1} then \\boxed{\\frac{1}{2}}", "\\frac{1}{2}"),
        ("\\boxed{1} and $\\boxed{2}$", "1, 2"),
        ("\\boxed{\\boxed{3}}", "\\boxed{3}"),
        ("\\boxed 4.", "4."),
        ("\\boxed{5", None),
        ("</think> \\boxed{1} <think>\\boxed{2}</think>", None),
        ("<think>so \\boxed{5}", None),
        ("<think>a</think> \\boxed{1} <think> \\boxed{2}", None),
        ("The answer is $x$ = 5.", "$x$ = 5"),
        ("So the answer is 5, not 6.", "5"),
        ("So the answer is 5 but not 6.", "5"),
        ("The answer is even because 2 divides it.", "even"),
        ("The answer is not 5.", "The answer is not 5."),
        ("The answer is $x+1$, as was to be shown.", "x+1"),
        ("**Answer:**\n\n7", "7"),
        ("The answer is 3.5 metres. Good.", "3.5 metres"),
        ("Let $a=1$.\nThen \\(b = 2\\).", "b = 2"),
        ("It follows that\n\\[\nx = 3\n\\]", "x = 3"),
        ("We have seen that it is 7 in all of these\ncases here", None),
        ("The answer is **5** apples.", "5 apples"),
        ("The answer is 2**3.", "2**3"),
        ("The answer is **$5$** or **$6$**.", "$5$ or $6$"),
        ("The answer is $5$, where $n=3$.", "5"),
        ("The answer is $50$%.", "$50$%"),
        ("The answer is $5$ for $n=3$.", "5"),
        ("The answer is $5$ cm or $6$ cm.", "$5$ cm or $6$ cm"),
        ("So we get $1$, $2$, and $3$.", "$1$, $2$, and $3$"),
        ("Since $x>0$, $x=5$.", "x=5"),
        ("It can't be $5$.", None),
        ("It is not $5$ but $6$.", "6"),
        ("\\boxed{3} \\qquad\\lor\\qquad \\boxed{5}", "3, 5"),
        ("$x_1=\\boxed{3}$, $x_2=\\boxed{5}$", "3, 5"),
        ("\\boxed{1}, so that \\boxed{2}", "2"),
        ("\\boxed{" + "1" * 1001 + "}", None),
    ],
)
def test_the_answer(completion, answer):
    assert final_expression(completion) == answer
