"""Rows that tell of a run's steps: they unfold to the very schedule."""

import collections

from hypothesis import given, settings
from hypothesis import strategies as st

from grre_jax.explain import timeline
from grre_jax.training.data.regime import Regime
from grre_jax.training.data.schedule import Schedule

regimes = st.one_of(
    st.builds(Regime, offline=st.just(True), reuse=st.integers(1, 3)),
    st.builds(
        Regime,
        st.integers(1, 9),
        st.integers(0, 9),
        reuse=st.integers(1, 4),
        replay_ratio=st.sampled_from([0.0, 0.5]),
    ),
    st.builds(Regime, staleness=st.integers(1, 9), reuse=st.integers(1, 4)),
)


@settings(max_examples=50)
@given(regimes, st.integers(1, 120))
def test_rows_hold_the_schedule_in_order(regime, steps):
    schedule = Schedule(regime, 4)
    rows = timeline.stretches(schedule, steps)
    covered = [step for row in rows for step in range(row.steps[0], row.steps[1] + 1)]
    assert covered == list(range(steps))
    assert len({row.version for row in rows}) == len(rows)
    for row in rows:
        plans = [schedule(step) for step in range(row.steps[0], row.steps[1] + 1)]
        assert {plan.version for plan in plans} == {row.version}
        ages = [plan.step - plan.version for plan in plans]
        assert row.ages == (min(ages), max(ages))
        assert row.batches == (plans[0].batch, plans[-1].batch)
        assert row.places == (plans[0].fresh[0], plans[-1].fresh[-1])
        replayed = [len(plan.replayed) for plan in plans]
        assert row.replayed == (min(replayed), max(replayed))


def test_ages_are_counted_over_all_groups():
    counts = timeline.ages(Schedule(Regime(sync_interval=2), 3), 5)
    assert counts == {"fresh": {0: 9, 1: 6}, "replayed": {}}
    schedule = Schedule(Regime(replay_ratio=0.5), 4, seed=1)
    counts = timeline.ages(schedule, 10)
    assert counts["fresh"] == {0: 4 + 9 * 2} and counts["replayed"].total() == 9 * 2
    expected = collections.Counter(int(age) for step in range(10) for age in schedule(step).ages)
    assert counts["fresh"] + counts["replayed"] == expected


@given(
    st.dictionaries(st.integers(0, 500), st.integers(1, 9)),
    st.dictionaries(st.integers(0, 500), st.integers(1, 9)),
)
def test_bins_hold_every_group_once(fresh, replayed):
    counts = {"fresh": collections.Counter(fresh), "replayed": collections.Counter(replayed)}
    rows = timeline.bins(counts)
    assert len(rows) <= 12
    ends = [end for low, high, _, _ in rows for end in (low, high)]
    assert ends == sorted(ends)
    for low, high, *groups in rows:
        for kind, number in zip(("fresh", "replayed"), groups, strict=True):
            assert number == sum(n for age, n in counts[kind].items() if low <= age <= high)
    total = sum(number for _, _, *groups in rows for number in groups)
    assert total == sum(fresh.values()) + sum(replayed.values())
