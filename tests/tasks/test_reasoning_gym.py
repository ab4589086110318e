"""reasoning-gym's data sets as tasks."""

import pytest

from grre_jax import tasks
from grre_jax.errors import DataError, UsageError
from grre_jax.tasks.judging import Failure, verdict_of

pytest.importorskip("reasoning_gym")


@pytest.fixture(scope="module")
def chain():
    return tasks.build("reasoning_gym", dataset="chain_sum", size=60, config={"max_digits": 2})


def test_the_stream_goes_past_what_is_held_out(chain):
    held_out = {question.prompt for question in chain.evaluation(60)}
    drawn = [chain.question(place) for place in range(120)]
    assert 0 < len(held_out) < 20 and held_out.isdisjoint(question.prompt for question in drawn)
    again = tasks.build("reasoning_gym", dataset="chain_sum", size=60, config={"max_digits": 2}, seed=5)
    assert {question.prompt for question in again.evaluation(60)} == held_out and [again.question(p) for p in range(9)] != drawn[:9]
    assert chain.evaluation(1) == chain.evaluation(60)[:1] and chain.training_source == "reasoning_gym/chain_sum/train"


def test_scores(chain):
    question = chain.question(0)
    assert chain.verify(question, f"so <answer>{question.answer}</answer>") == tasks.Verdict(1.0, {"score": 1.0, "correct": 1.0})
    assert chain.verify(question, "x" * 20_000).reward == 0
    other = tasks.build("reasoning_gym", dataset="chain_sum", size=60, config={"min_digits": 5, "max_digits": 6})
    failed = verdict_of(other, question, question.answer)
    assert isinstance(failed, Failure) and "with these options" in failed.reason


def test_what_is_refused():
    with pytest.raises(UsageError, match=r"no data set 'chain_sums' \(did you mean 'chain_sum'"):
        tasks.build("reasoning_gym", dataset="chain_sums")
    with pytest.raises(UsageError, match="chain_sum refuses the options"):
        tasks.build("reasoning_gym", config={"digits": 2})
    with pytest.raises(UsageError, match="has no {question}"):
        tasks.build("reasoning_gym", template="x")


def test_a_data_set_without_questions_enough(chain, monkeypatch):
    monkeypatch.setattr("grre_jax.tasks.reasoning_gym._is_held_out", lambda entry: True)
    with pytest.raises(DataError, match="nothing but held-out questions"):
        chain.question(0)
