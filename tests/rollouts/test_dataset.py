import itertools

import pytest

from grre_jax import rollouts
from grre_jax.errors import DataError, UsageError


def whole(folder):
    reader = rollouts.read(folder)
    return reader, range(len(reader))


@pytest.fixture
def source(folder):
    return whole(folder)


def ids(groups):
    return [group.group_id for group in groups]


def test_bad_orders_are_refused(source, folder):
    with pytest.raises(DataError, match=str(folder)):
        rollouts.TrainingOrder([source, (source[0], [])], seed=0, prompts_per_step=1)
    with pytest.raises(UsageError, match="seed -1"):
        rollouts.TrainingOrder([source], seed=-1, prompts_per_step=1)
    with pytest.raises(IndexError):
        rollouts.TrainingOrder([source], seed=0, prompts_per_step=1)[-1]


def test_a_step_trains_on_the_same_groups_whenever_it_is_asked_for(source, folder):
    order = rollouts.TrainingOrder([source], seed=5, prompts_per_step=5)
    steps = [ids(order[step]) for step in range(12)]
    again = rollouts.TrainingOrder([whole(folder)], seed=5, prompts_per_step=5)
    assert [ids(again[step]) for step in reversed(range(12))] == steps[::-1]
    assert [ids(step) for step in order.batches(7, 9)] == steps[7:9]
    assert [ids(step) for step in itertools.islice(order.batches(3), 6)] == steps[3:9]
    assert ids(rollouts.TrainingOrder([source], seed=6, prompts_per_step=5)[0]) != steps[0]
    flat = list(itertools.chain.from_iterable(steps))
    epochs = [flat[start : start + 12] for start in range(0, 60, 12)]
    assert {tuple(sorted(epoch)) for epoch in epochs} == {tuple(sorted(ids(source[0])))}
    assert len(set(map(tuple, epochs))) == 5


def test_no_source_repeats_the_epochs_of_another(source, folder):
    order = rollouts.TrainingOrder([source, whole(folder)], 0, 24, shares=[1, 1])
    epochs = [[], []]
    for step in range(6):
        for which in (0, 1):
            epochs[which].append([number for i, number in order.indices(step) if i == which])
    assert all(sorted(epoch) == list(range(12)) for epoch in epochs[0] + epochs[1])
    assert not any(epoch in epochs[0] for epoch in epochs[1])


def test_several_folders_have_their_shares_and_epochs_of_their_own(tmp_path, make_group):
    sizes = {"a": 4, "b": 6}
    for name, size in sizes.items():
        groups = [make_group(i, group_id=f"{name}{i}") for i in range(size)]
        rollouts.write(tmp_path / name, groups, writer="w")
    sources = [whole(tmp_path / name) for name in sizes]
    order = rollouts.TrainingOrder(sources, 9, 4, shares=[0.25, 0.5])
    flat = [i for step in range(15) for i in ids(order[step])]
    assert all(abs(sum(name[0] == "a" for name in flat[:n]) - n / 3) <= 1 for n in range(1, 61))
    for letter, size in sizes.items():
        own = [name for name in flat if name[0] == letter]
        starts = range(0, len(own) - size + 1, size)
        assert all(len(set(own[start : start + size])) == size for start in starts)
    again = rollouts.TrainingOrder(sources, 9, 4, shares=[0.25, 0.5])
    assert ids(again[14]) == flat[56:]
