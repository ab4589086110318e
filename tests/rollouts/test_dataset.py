import itertools

import pytest

from grre_jax import rollouts
from grre_jax.errors import DataError


def whole(folder):
    reader = rollouts.read(folder)
    return reader, range(len(reader))


def ids(groups):
    return [group.group_id for group in groups]


def test_a_source_without_groups_is_refused(folder):
    reader, numbers = whole(folder)
    with pytest.raises(DataError, match=str(folder)):
        rollouts.TrainingOrder([(reader, numbers), (reader, [])], seed=0, prompts_per_step=1)


def test_a_step_trains_on_the_same_groups_whenever_it_is_asked_for(folder):
    order = rollouts.TrainingOrder([whole(folder)], seed=5, prompts_per_step=5)
    steps = [ids(order[step]) for step in range(12)]
    again = rollouts.TrainingOrder([whole(folder)], seed=5, prompts_per_step=5)
    assert [ids(again[step]) for step in reversed(range(12))] == steps[::-1]
    other = rollouts.TrainingOrder([whole(folder)], seed=6, prompts_per_step=5)
    assert ids(other[0]) != steps[0]
    flat = list(itertools.chain(*steps))
    epochs = {tuple(flat[start : start + 12]) for start in range(0, 60, 12)}
    assert len(epochs) == 5 and {len(set(epoch)) for epoch in epochs} == {12}


def test_no_source_repeats_the_epochs_of_another(folder):
    order = rollouts.TrainingOrder([whole(folder), whole(folder)], 0, 24, shares=[1, 1])
    epochs = [[], []]
    for step in range(6):
        for which in (0, 1):
            epochs[which].append([number for i, number in order.indices(step) if i == which])
    assert all(sorted(epoch) == list(range(12)) for epoch in epochs[0] + epochs[1])
    assert not any(epoch in epochs[0] for epoch in epochs[1])


def test_sources_have_their_shares(folder):
    sources = [whole(folder), whole(folder)]
    order = rollouts.TrainingOrder(sources, 9, 4, shares=[0.25, 0.5])
    drawn = [which for step in range(15) for which, _ in order.indices(step)]
    assert all(abs(drawn[:n].count(0) - n / 3) <= 1 for n in range(1, 61))
