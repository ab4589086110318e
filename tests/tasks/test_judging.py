"""What a verifier may do, and what it costs: the completion's reward."""

from fractions import Fraction

import numpy as np
import pytest

from grre_jax.tasks import Question, Verdict
from grre_jax.tasks.judging import Failure, InProcess, count_failures, verdict_of

QUESTION = Question("q7", "1+1=", "2")
NAN = pytest.approx(np.nan, nan_ok=True)


class Answers:
    """Verdicts by completion; an exception is raised, anything else returned."""

    name = "answers"

    def __init__(self, **answers):
        self.answers = answers

    def verify(self, question, completion):
        answer = self.answers[completion]
        if isinstance(answer, BaseException):
            raise answer
        return answer


def judged(answer):
    return verdict_of(Answers(a=answer), QUESTION, "a")


@pytest.mark.parametrize(
    ("verdict", "field"),
    [
        *((Verdict(value), "reward") for value in (float("nan"), 1e39, "1", np.ones(1))),
        (1.0, "verify"),
        (Verdict(1.0, {"part": "1"}), "component 'part'"),
        (Verdict(1.0, {"correct": 0.5}), "correct"),
        (Verdict(1.0, {"correct": 1.0}, correct=False), "correct"),
    ],
)
def test_what_is_no_verdict(verdict, field):
    found = judged(verdict)
    assert found.kind == "invalid" and found.reason.startswith(f"{field}: expected ")


def test_what_is_a_verdict():
    for number in (True, np.float32(0.5), Fraction(1, 2), -3.0e38):
        verdict = judged(Verdict(number, {"part": number}))
        assert type(verdict.reward) is float
        assert verdict == Verdict(float(number), {"part": float(number)})
    assert judged(Verdict(-1, correct=np.bool_(False))) == Verdict(-1.0, correct=False)
    for answer in (None, Verdict(None), Verdict(None, {"part": 1.0})):
        assert judged(answer).kind == "none"


def test_what_is_raised_is_told_in_a_line_but_an_interrupt_ends_the_run():
    for error, reason in ((ValueError("1\n2"), "ValueError: 1"), (SystemExit(3), "SystemExit: 3")):
        assert judged(error) == Failure("error", reason)
    with pytest.raises(KeyboardInterrupt):
        judged(KeyboardInterrupt())


def test_a_failure_costs_one_reward_and_is_counted():
    """A component that a verdict lacks does not apply."""
    other = Verdict(3, {"a": None, "b": 1})
    task = Answers(good=Verdict(1, {"a": 2}), bad=ValueError("no"), odd=1.0, other=other)
    first, second = InProcess(task)([(QUESTION, ["good", "bad", "odd", "other"]), (QUESTION, [])])
    assert first.rewards.tolist() == [1, NAN, NAN, 3]
    assert first.components["a"].tolist() == [2, NAN, NAN, NAN]
    assert first.components["b"].tolist() == [NAN, NAN, NAN, 1]
    assert first.failures == ["", "error", "invalid", ""]
    assert first.extra == {"verify_failures": first.failures, "verify_reasons": first.reasons}
    assert second.extra == {}
    counts = {"verify_failures": 4, "verify_failures_error": 2, "verify_failures_invalid": 2}
    assert count_failures([first.extra, second.extra, first.extra]) == counts
