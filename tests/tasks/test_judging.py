"""What a verifier may do, and what it costs: the completion's reward."""

import logging
from fractions import Fraction

import numpy as np
import pytest

from grre_jax.tasks import Question, Verdict
from grre_jax.tasks.judging import Failure, InProcess, Report, count_failures, verdict_of

QUESTION = Question("q7", "1+1=", "2")


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


@pytest.mark.parametrize(
    "number", [1, True, np.float32(0.5), np.array(0.5), Fraction(1, 2), -3.0e38]
)
def test_what_is_a_number(number):
    verdict = verdict_of(Answers(a=Verdict(number, {"part": number})), QUESTION, "a")
    assert type(verdict.reward) is float
    assert verdict == Verdict(float(np.asarray(number, float).item()), {"part": verdict.reward})


NOT_NUMBERS = (float("nan"), 1e39, "1", 1j, np.ones(1))
INVALID = [
    *((Verdict(value), "reward: ") for value in NOT_NUMBERS),
    *((Verdict(1.0, {"part": value}), "component 'part': ") for value in NOT_NUMBERS),
    *((value, "verify: ") for value in (1.0, (1.0, {}))),
    *((Verdict(1.0, value), "components: ") for value in (-1, {3: 1.0}, [1.0])),
    (Verdict(1.0, {"correct": 0.5}), "correct: "),
    (Verdict(1.0, correct="yes"), "component 'correct': "),
    (Verdict(1.0, {"correct": 1.0}, correct=False), "correct: "),
]


@pytest.mark.parametrize("verdict, field", INVALID)
def test_what_is_no_verdict(verdict, field):
    found = verdict_of(Answers(a=verdict), QUESTION, "a")
    assert found.kind == "invalid" and found.reason.startswith(f"{field}expected ")


@pytest.mark.parametrize(
    "error, reason",
    [
        (ValueError("first\nsecond"), "ValueError: first"),
        (SystemExit(3), "SystemExit: 3"),
        (MemoryError(), "MemoryError"),
        (RecursionError("deep"), "RecursionError: deep"),
    ],
)
def test_what_is_raised_is_told_in_a_line(error, reason):
    assert verdict_of(Answers(a=error), QUESTION, "a") == Failure("error", reason)


def test_a_person_can_still_interrupt():
    with pytest.raises(KeyboardInterrupt):
        verdict_of(Answers(a=KeyboardInterrupt()), QUESTION, "a")


@pytest.mark.parametrize("answer", [None, Verdict(None), Verdict(None, {"part": 1.0})])
def test_a_verifier_may_give_no_verdict(answer):
    assert verdict_of(Answers(a=answer), QUESTION, "a").kind == "none"


def test_a_failure_costs_one_reward_and_is_counted():
    nan = pytest.approx(np.nan, nan_ok=True)
    task = Answers(
        good=Verdict(1, {"a": 2, "b": 3}), bad=ValueError("no"), odd=Verdict(float("nan"))
    )
    first, second = InProcess(task)(
        [(QUESTION, ["good", "bad", "odd", "good"]), (QUESTION, ["good"])]
    )
    assert first.rewards.tolist() == [1, nan, nan, 1] and first.rewards.dtype == np.float32
    assert {name: row.tolist() for name, row in first.components.items()} == {
        "a": [2, nan, nan, 2],
        "b": [3, nan, nan, 3],
    }
    assert first.failures == ["", "error", "invalid", ""]
    assert first.extra == {"verify_failures": first.failures, "verify_reasons": first.reasons}
    assert [bool(reason) for reason in first.reasons] == [False, True, True, False]
    assert second.failures == [""] and second.extra == {}
    assert count_failures([first.extra, second.extra, first.extra]) == {
        "verify_failures": 4,
        "verify_failures_error": 2,
        "verify_failures_invalid": 2,
    }
    assert count_failures([second.extra, {}]) == {}


def test_failures_may_be_given_a_reward():
    task = Answers(good=Verdict(1, {"a": 2}), bad=ValueError("no"))
    (judged,) = InProcess(task, failed_reward=-1.0)([(QUESTION, ["good", "bad"])])
    assert judged.rewards.tolist() == [1, -1] and judged.components["a"].tolist() == [2, 0]
    assert judged.failures == ["", "error"] and judged.extra["failed_reward"] == -1.0


def test_the_components_of_a_group_are_those_of_most_of_its_verdicts():
    nan = pytest.approx(np.nan, nan_ok=True)
    two, other = Verdict(1.0, {"b": 1.0, "a": 2.0}), Verdict(1.0, {"a": 2.0})
    judged = Report("t").judged(
        QUESTION, [other, two, Verdict(1.0, {"a": 5.0, "b": 6.0}), Failure("crash", "")]
    )
    assert judged.failures == ["invalid", "", "", "crash"]
    assert judged.rewards.tolist() == [nan, 1, 1, nan]
    assert list(judged.components) == ["b", "a"]
    assert judged.components["a"].tolist() == [nan, 2, 5, nan]
    tied = Report("t").judged(QUESTION, [Failure("error", ""), other, two])
    assert tied.failures == ["error", "", "invalid"] and list(tied.components) == ["a"]
    none = Report("t").judged(QUESTION, [Failure("error", "")] * 2)
    assert none.rewards.tolist() == [nan, nan] and none.components == {}


def test_each_kind_of_failure_is_told_once_with_its_question(caplog):
    report = Report("mine")
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            report.judged(
                QUESTION,
                [
                    Failure("timeout", "no verdict within 3 s"),
                    Failure("crash", "signal 11"),
                    Failure("timeout", ""),
                ],
            )
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 2
    assert "q7" in told[0] and "timeout" in told[0] and "crash: signal 11" in told[1]


def test_correctness_is_kept_as_a_component():
    assert Verdict(-1.0, {"format": 1.0}, correct=True).components == {
        "format": 1.0,
        "correct": 1.0,
    }
    assert Verdict(-1.0, {"correct": 0}).correct is False and Verdict(0.5).correct is None
    assert Verdict(0.5, {"correct": 1.0}) == Verdict(0.5, correct=True)
    task = Answers(right=Verdict(2.0, correct=True), wrong=Verdict(-1, correct=np.bool_(False)))
    (judged,) = InProcess(task)([(QUESTION, ["right", "wrong"])])
    assert judged.rewards.tolist() == [2, -1] and judged.components["correct"].tolist() == [1, 0]
