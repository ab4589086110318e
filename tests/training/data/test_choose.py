"""The groups that a step takes of the run's own samples, by position and version."""

import pytest

from grre_jax import rollouts
from grre_jax.errors import DataError
from grre_jax.training.data.choose import Chooser, Newest, Scheduled, read
from grre_jax.training.data.plan import Regime, Schedule, refill_position
from grre_jax.training.data.sources import Source

from ...groups import text_group


def seal(folder, version, positions):
    groups = [
        text_group(f"{version}-{p}", position=p, policy_version=[version] * 2) for p in positions
    ]
    rollouts.write(folder, groups, writer="sampler", policy_version=version)


def chooser(folder, schedule, rounds=0):
    return Chooser(Scheduled(Source(rollouts.read(folder)), schedule, rounds))


def ids(choose, step):
    return [group.group_id for group in read(choose(step))]


def test_own_samples_are_found_by_position_and_version(tmp_path):
    regime = Regime(sync_interval=2)
    for version, positions in ((0, range(0, 4)), (2, range(4, 8)), (7, range(0, 8))):
        seal(tmp_path, version, positions)
    choose = chooser(tmp_path, Schedule(regime, 2))
    # The newer samples of version 7 are not of the version that the regime names.
    chosen = [name for step in range(4) for name in ids(choose, step)]
    assert chosen == [f"g{0 if p < 4 else 2}-{p}" for p in range(8)]
    with pytest.raises(DataError, match="4 .*position 8"):
        choose(4)
    assert [choose.ready(step) for step in range(5)] == [True] * 4 + [False]
    assert choose.missing(3) == {} and choose.missing(4) == {4: [8, 9]}


def test_replayed_groups_are_those_of_the_versions_that_sampled_them(tmp_path):
    schedule = Schedule(Regime(sync_interval=2, replay_ratio=0.5, reuse=2), 4, seed=5)
    for version in range(8):
        if positions := schedule.sampled(version, 8):
            seal(tmp_path, version, positions)
    choose = chooser(tmp_path, schedule)
    for step in (7, 0, 3):
        choice, plan = choose(step), schedule(step)
        assert [g.group_id for g in read(choice)] == [f"g{v}-{p}" for p, v in plan.samples]
        assert [pick.version for pick in choice.picks] == [version for _, version in plan.samples]
        assert choice.ages.tolist() == [step - version for _, version in plan.samples]
    assert len(set(choose(7).ages)) > 1


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
    assert ids(choose, 0) == ["g0-0", "g1-2"] and choose(0).ages.tolist() == [0, 0]
    assert choose.missing(0) == {} and not choose.ready(0)  # not read ahead
    with pytest.raises(DataError, match=str(refill_position(2, 3))):
        chooser(tmp_path, Schedule(Regime(), 3), rounds=3)(0)


def test_the_first_sealed_that_is_young_enough(tmp_path):
    """Step 3 takes positions 12 to 15 from versions 1 to 3."""
    seal(tmp_path, 0, [12, 13])
    reader = rollouts.read(tmp_path)
    choose = Chooser(Newest(Source(reader), Schedule(Regime(staleness=2), 4), steps=8))
    assert choose.missing(3) == {1: [12, 13, 14, 15]} and not choose.ready(3)
    with pytest.raises(DataError, match="step 3 at position 12"):
        choose(3)
    for version, positions in ((2, [12, 14]), (3, [12, 13, 14]), (1, [15, 13]), (4, [15])):
        seal(tmp_path, version, positions)
    reader.refresh()
    assert choose.missing(3) == {} and choose.ready(3)
    choice = choose(3)
    assert ids(choose, 3) == ["g2-12", "g3-13", "g2-14", "g1-15"]
    assert choice.ages.tolist() == [1, 0, 1, 2]
    seal(tmp_path, 2, [13, 15])
    reader.refresh()
    assert choose(3) == choice  # later seals change nothing: a resumed learner takes the same
