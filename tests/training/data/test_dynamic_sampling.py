"""Dynamic sampling follows from the folder alone: the group of each settled position, and what is
still to be sampled.
"""

from hypothesis import given, strategies as st

from grre_jax.rollouts import CorruptShard
from grre_jax.training.data import plan


class Folder:
    """A reader of nothing but whether there is a signal at (position, version)."""

    def __init__(self):
        self.signals, self.groups, self.reader = {}, [], self

    def find(self, position, policy_version):
        if (position, policy_version) not in self.signals:
            return None
        self.groups.append((position, policy_version))
        return len(self.groups) - 1

    def has_reward_variance(self, index):
        return self.signals[self.groups[index]]


@given(
    st.lists(
        st.tuples(st.integers(0, 2**27 - 1), st.integers(0, 3)),
        max_size=6,
        unique_by=lambda place: place[0],
    ),
    st.integers(0, 4),
    st.randoms(use_true_random=False),
)
def test_sampling_what_is_missing_ends_with_the_first_signal_of_each_place(places, rounds, random):
    folder = Folder()
    samples = plan.Samples(folder, None, 0, rounds)

    def missing():
        found = [(samples._scheduled(*place)[1], place[1]) for place in places]
        return [(position, version) for position, version in found if position is not None]

    while todo := missing():
        assert not folder.signals.keys() & todo  # nothing is sampled twice
        # A killed run has sampled a part: the folder says which.
        for place in todo[: random.randint(1, len(todo))]:
            folder.signals[place] = random.random() < 0.3
    for place, version in places:
        refills = [plan.refill_position(place, a) for a in range(rounds + 1)]
        sampled = [folder.signals[p, version] for p in refills if (p, version) in folder.signals]
        assert sampled[:-1] == [False] * (len(sampled) - 1)  # no refill after a signal
        index, _ = samples._scheduled(place, version)
        if True in sampled or not rounds:
            position = refills[sampled.index(True) if rounds else 0]
            assert folder.groups[index] == (position, version)
        else:
            assert index is None and len(sampled) == rounds + 1


def test_a_policy_whose_samples_are_damaged_is_needed():
    """Whether they are to be sampled again is decided by rewards that cannot be read."""

    class Damaged(Folder):
        def has_reward_variance(self, index):
            raise CorruptShard("shard", "damaged", index)

    folder = Damaged()
    schedule = plan.Schedule(plan.Regime(), 2)
    folder.signals = {(position, 0): True for position in schedule.sampled(0, 4)}
    assert plan.Samples(folder, schedule, 4, rounds=1).needs(0)
