"""What a verifier may do, and what it costs: the completion's reward."""

from fractions import Fraction

import numpy as np
import pytest

from grre_jax.tasks import Question, Verdict
from grre_jax.tasks.judging import Failure, InProcess, Report, count_failures, verdict_of

QUESTION = Question("q7", "1+1=", "2")
NAN = pytest.approx(np.nan, nan_ok=True)
CRASH = Failure("crash", "signal 11")


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


INVALID = [
    *((Verdict(value), "reward: ") for value in (float("nan"), 1e39, "1", 1j, np.ones(1))),
    (Verdict(1.0, {"part": "1"}), "component 'part': "),
    (1.0, "verify: "),
    *((Verdict(1.0, value), "components: ") for value in (-1, {3: 1.0})),
    (Verdict(1.0, {"correct": 0.5}), "correct: "),
    (Verdict(1.0, correct="yes"), "component 'correct': "),
    (Verdict(1.0, {"correct": 1.0}, correct=False), "correct: "),
]


@pytest.mark.parametrize("verdict, field", INVALID)
def test_what_is_no_verdict(verdict, field):
    found = judged(verdict)
    assert found.kind == "invalid" and found.reason.startswith(f"{field}expected ")


def test_what_is_a_verdict():
    for number in (1, True, np.float32(0.5), Fraction(1, 2), -3.0e38):
        verdict = judged(Verdict(number, {"part": number}))
        assert type(verdict.reward) is float
        assert verdict == Verdict(float(number), {"part": float(number)})
    assert Verdict(-1.0, {"format": 1.0}, True).components == {"format": 1.0, "correct": 1.0}
    assert Verdict(-1.0, {"correct": 0}).correct is False and Verdict(0.5).correct is None
    assert judged(Verdict(-1, correct=np.bool_(False))) == Verdict(-1.0, correct=False)
    for answer in (None, Verdict(None), Verdict(None, {"part": 1.0})):
        assert judged(answer).kind == "none"


def test_what_is_raised_is_told_in_a_line_but_an_interrupt_ends_the_run():
    for error, reason in ((ValueError("1\n2"), "ValueError: 1"), (SystemExit(3), "SystemExit: 3")):
        assert judged(error) == Failure("error", reason)
    with pytest.raises(KeyboardInterrupt):
        judged(KeyboardInterrupt())


def test_a_failure_costs_one_reward_and_is_counted():
    task = Answers(good=Verdict(1, {"a": 2}), bad=ValueError("no"), odd=Verdict(float("nan")))
    asked = [(QUESTION, ["good", "bad", "odd", "good"]), (QUESTION, ["good"])]
    first, second = InProcess(task)(asked)
    assert first.rewards.tolist() == [1, NAN, NAN, 1] and first.rewards.dtype == np.float32
    assert first.components["a"].tolist() == [2, NAN, NAN, 2]
    assert first.failures == ["", "error", "invalid", ""]
    assert first.extra == {"verify_failures": first.failures, "verify_reasons": first.reasons}
    assert second.failures == [""] and second.extra == {}
    counts = {"verify_failures": 4, "verify_failures_error": 2, "verify_failures_invalid": 2}
    assert count_failures([first.extra, second.extra, first.extra]) == counts
    assert count_failures([second.extra]) == {}


def test_a_component_that_a_verdict_lacks_does_not_apply():
    outcomes = [CRASH, Verdict(1.0, {"a": 2.0}), Verdict(3.0, {"b": 1.0, "a": 4.0})]
    found = Report("t").judged(QUESTION, outcomes)
    assert found.failures == ["crash", "", ""] and found.rewards.tolist() == [NAN, 1, 3]
    rows = {name: row.tolist() for name, row in found.components.items()}
    assert rows == {"a": [NAN, 2, 4], "b": [NAN, NAN, 1]}


def test_each_kind_of_failure_is_told_once_with_its_question(caplog):
    report = Report("mine")
    for _ in range(2):
        report.judged(QUESTION, [Failure("timeout", "late"), CRASH, Failure("timeout", "")])
    first, second = (record.getMessage() for record in caplog.records)
    assert "q7" in first and "timeout: late" in first and "crash: signal 11" in second
