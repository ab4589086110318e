"""What a step trains on: every place once by one version, replay drawn inside its window, and
nothing new with the defaults.
"""

import numpy as np
from hypothesis import given, strategies as st

from grre_jax.training.data.plan import Regime, Schedule

sampled_by = st.one_of(
    st.just({"offline": True}),
    st.fixed_dictionaries({"sync_interval": st.integers(1, 7), "sync_offset": st.integers(0, 9)}),
    st.fixed_dictionaries({"staleness": st.integers(0, 9)}),
)


@st.composite
def schedules(draw):
    groups = draw(st.integers(1, 12))
    replayed = draw(st.integers(0, groups - 1))
    fields = draw(sampled_by) | {
        "reuse": draw(st.integers(1, 4)),
        "replay_ratio": replayed / groups,
    }
    if replayed:
        least = -(-replayed // (groups - replayed))
        fields["replay_window"] = draw(st.sampled_from([0, *range(least, least + 5)]))
    return Schedule(Regime(**fields), groups, draw(st.integers(0, 2**32)))


@given(schedules(), st.integers(0, 60))
def test_a_step_has_its_groups_and_replays_earlier_batches_of_the_window(schedule, step):
    plan = schedule(step)
    window = schedule.regime.replay_window or plan.batch
    assert plan.batch == step // schedule.regime.reuse
    assert len(plan.samples) == schedule.prompts_per_step
    assert plan.ages.tolist() == [step - version for _, version in plan.samples]
    assert len(plan.replayed) == (schedule.replayed_per_step if plan.batch else 0)
    assert [place for place, _ in plan.samples] == [*plan.fresh, *plan.replayed]
    assert len(set(plan.replayed)) == len(plan.replayed)  # without replacement
    for place, version in plan.samples[len(plan.fresh) :]:
        batch = schedule.batch_of(place)
        assert place in schedule.positions(batch)
        assert plan.batch - window <= batch < plan.batch
        assert version == schedule.regime.version(batch * schedule.regime.reuse)
    assert plan == schedule(step)


@given(schedules(), st.integers(0, 60), st.integers(0, 12))
def test_replay_leaves_out_what_is_too_old(schedule, step, limit):
    limited = Schedule(schedule.regime, schedule.prompts_per_step, schedule.seed, limit)
    plan = limited(step)
    regime = schedule.regime
    batches = range(max(0, plan.batch - (regime.replay_window or plan.batch)), plan.batch)
    young = {
        place
        for batch in batches
        if regime.version(batch * regime.reuse) >= step - limit
        for place in schedule.positions(batch)
    }
    assert set(plan.replayed) <= young
    assert len(plan.replayed) == min(len(young), schedule.replayed_per_step)


def test_replay_is_addressed_by_seed_and_step_and_favours_nobody():
    def replayed(seed, step):
        return Schedule(Regime(replay_ratio=0.5), 8, seed)(step).replayed

    assert replayed(3, 9) == replayed(3, 9) != replayed(4, 9)
    # Of the 12 earlier groups of step 2, each is drawn with probability 4 / 12: the count over 600
    # seeds has standard deviation 11.5.
    counts = np.zeros(12)
    for seed in range(600):
        counts[list(replayed(seed, 2))] += 1
    assert counts.sum() == 600 * 4 and np.abs(counts - 200).max() < 50


@given(schedules(), st.integers(0, 40), st.integers(0, 40))
def test_a_run_and_a_resumed_one_sample_exactly_what_their_steps_train_on(schedule, steps, since):
    """Every place once, by one version; a resumed run those that its steps still train on first."""

    def sampled(since):
        return [
            (place, version)
            for version in range(steps + 1)
            for place in schedule.sampled(version, steps, since)
        ]

    places = [place for place, _ in sampled(0)]
    assert places == list(range(len(places)))
    pairs = {(*pair, step) for step in range(steps) for pair in schedule(step).samples}
    assert {(place, version) for place, version, _ in pairs} == set(sampled(0))
    assert all(version <= step for _, version, step in pairs)
    since = min(since, steps)
    fresh = {place for step in range(since, steps) for place in schedule(step).fresh}
    assert {place for place, _ in sampled(since)} == fresh
