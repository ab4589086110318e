"""Dynamic sampling follows from the folder alone: the group of each settled position, and what is
still to be sampled.
"""

import pytest
from hypothesis import given, strategies as st

from grre_jax import rollouts
from grre_jax.errors import DataError
from grre_jax.training.data import plan


class Folder:
    """A reader of nothing but whether there is a signal at (position, version)."""

    folder = "rollouts"

    def __init__(self, signals):
        self.signals, self.groups, self.reader = signals, [], self

    def find(self, position, policy_version=None):
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
    st.integers(0, 40),
)
def test_sampling_what_is_missing_ends_with_the_first_signal_of_each_place(
    places, rounds, random, killed_after
):
    folder = Folder({})
    asked = 0
    while todo := plan.missing(folder, places, rounds):
        for version, positions in todo.items():
            assert len(positions) == len(set(positions))
            for position in positions:
                assert (position, version) not in folder.signals  # nothing is sampled twice
                folder.signals[position, version] = random.random() < 0.3
                asked += 1
                if asked == killed_after:  # the rest of this round is lost: the folder says so
                    break
    for place, version in places:
        refills = [plan.refill_position(place, a) for a in range(rounds + 1)]
        sampled = [folder.signals[p, version] for p in refills if (p, version) in folder.signals]
        assert sampled[:-1] == [False] * (len(sampled) - 1)  # no refill after a signal
        index = plan.chosen(folder, place, version, rounds)
        if True in sampled or not rounds:
            position = refills[sampled.index(True) if rounds else 0]
            assert folder.groups[index] == (position, version)
        else:
            assert index is None and len(sampled) == rounds + 1


def test_a_group_of_another_version_settles_nothing_and_a_damaged_one_stops(monkeypatch):
    folder = Folder({(5, 2): True})
    missing = plan.missing
    assert missing(folder, [(5, 1), (5, 2)], 3) == {1: [5]}
    with pytest.raises(DataError, match="policy version 1 at position 5"):
        plan.chosen(folder, 5, 1, 3)

    def damaged(self, index):
        raise rollouts.CorruptShard("damaged", "f")

    monkeypatch.setattr(Folder, "has_reward_variance", damaged)
    with pytest.raises(rollouts.CorruptShard):
        missing(folder, [(5, 2), (4, 0)], 1)
