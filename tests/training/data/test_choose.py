"""The groups that a step takes of the run's own samples, by position and version."""

import pytest

from grre_jax import rollouts
from grre_jax.errors import DataError
from grre_jax.training.data.batches import Chooser
from grre_jax.training.data.plan import Regime, Samples, Schedule, refill_position
from grre_jax.training.data.sources import Source

from ...groups import chosen_groups, text_group


def seal(folder, version, positions):
    groups = [
        text_group(f"{version}-{p}", position=p, policy_version=[version] * 2) for p in positions
    ]
    rollouts.write(folder, groups, writer="sampler", policy_version=version)


def chooser(folder, schedule, rounds=0, steps=8):
    return Chooser(Samples(Source(rollouts.read(folder)), schedule, steps, rounds))


def ids(choose, step):
    return [group.group_id for group in chosen_groups(choose(step))]


def ages(choose, step):
    return [pick.age for pick in choose(step)]


def test_own_samples_are_found_by_position_and_version(tmp_path):
    schedule = Schedule(Regime(sync_interval=2, replay_ratio=0.5, reuse=2), 4, seed=5)
    for version in range(6):
        if positions := schedule.sampled(version, 8):
            seal(tmp_path, version, positions)
    # The newer samples of version 7 are not of the version that the schedule names.
    seal(tmp_path, 7, range(8))
    choose = chooser(tmp_path, schedule)
    for step in (5, 0, 3):
        samples = schedule(step).samples
        assert ids(choose, step) == [f"g{version}-{p}" for p, version in samples]
        assert ages(choose, step) == [step - version for _, version in samples]
    assert len({*ages(choose, 5)}) > 1
    assert [choose.ready(step) for step in range(7)] == [True] * 6 + [False]
    fresh = list(schedule(6).fresh)
    assert choose.own.missing(6) == choose.own.unsampled(6) == fresh
    assert choose.own.needs(6) and not choose.own.needs(4)
    with pytest.raises(DataError, match=f"step 6 at position {fresh[0]}"):
        choose(6)


def test_dynamic_sampling_trains_on_the_first_refill_with_signal(tmp_path):
    # Position 0 has signal at once, 1 in its second refill, 2 in none of the two.
    for place, rounds in ((0, "1"), (1, "001"), (2, "000")):
        groups = [
            text_group(
                f"{place}-{n}",
                rewards=(1, 1 - int(signal)),
                position=refill_position(place, n),
                policy_version=[0, 0],
            )
            for n, signal in enumerate(rounds)
        ]
        rollouts.write(tmp_path, groups, writer="sampler", policy_version=0)
    choose = chooser(tmp_path, Schedule(Regime(), 3), rounds=2)
    assert ids(choose, 0) == ["g0-0", "g1-2"]
    assert choose.own.missing(0) == [] and not choose.ready(0)  # not read ahead
    with pytest.raises(DataError, match=str(refill_position(2, 3))):
        chooser(tmp_path, Schedule(Regime(), 3), rounds=3)(0)


def test_the_first_sealed_that_is_young_enough(tmp_path):
    """Step 3 takes positions 12 to 15 from versions 1 to 3."""
    seal(tmp_path, 0, [12, 13])
    schedule = Schedule(Regime(staleness=2, newest=True), 4)
    choose = chooser(tmp_path, schedule)
    assert choose.own.missing(3) == [12, 13, 14, 15] and not choose.ready(3)
    with pytest.raises(DataError, match="step 3 at position 12"):
        choose(3)
    for version, positions in ((2, [12, 14]), (3, [12, 13, 14]), (1, [15, 13]), (4, [15])):
        seal(tmp_path, version, positions)
    choose = chooser(tmp_path, schedule)
    assert choose.own.missing(3) == [] and choose.ready(3)
    taken = ["g2-12", "g3-13", "g2-14", "g1-15"]
    assert ids(choose, 3) == taken and ages(choose, 3) == [1, 0, 1, 2]
    seal(tmp_path, 2, [13, 15])
    # Later seals change nothing: a resumed learner takes the same.
    assert ids(chooser(tmp_path, schedule), 3) == taken
