"""Rows of a run's steps unfold to the very schedule."""

import collections

from hypothesis import given, settings, strategies as st

from grre_jax.explain.command import ages, stretches

from ..training.data.test_schedule import schedules


@settings(max_examples=50)
@given(schedules(), st.integers(1, 120))
def test_rows_hold_the_schedule_in_order(schedule, steps):
    plans = [schedule(step) for step in range(steps)]
    rows = stretches(plans)
    spans = [range(row["steps"][0], row["steps"][1] + 1) for row in rows]
    assert [step for span in spans for step in span] == list(range(steps))
    assert len({row["version"] for row in rows}) == len(rows)
    for row, span in zip(rows, spans, strict=True):
        part = plans[span.start : span.stop]
        assert {plan.version for plan in part} == {row["version"]}
        assert row["ages"] == (part[0].step - row["version"], part[-1].step - row["version"])
        assert row["batches"] == (part[0].batch, part[-1].batch)
        replayed = [len(plan.replayed) for plan in part]
        assert row["replayed"] == (min(replayed), max(replayed))
    counts = collections.Counter(int(age) for plan in plans for age in plan.ages)
    assert ages(plans) == counts
