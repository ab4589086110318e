import itertools

import pytest

from grre_jax import rollouts
from grre_jax.errors import DataError, UsageError


@pytest.fixture
def source(folder):
    return rollouts.GroupSource(rollouts.read(folder))


def ids(groups):
    return [group.group_id for group in groups]


def test_a_source_is_the_readers_groups(source, folder):
    assert len(source) == 12 and ids(source[i] for i in range(12)) == [f"g{i}" for i in range(12)]
    assert ids([rollouts.GroupSource(rollouts.read(folder), [3, 1])[0]]) == ["g3"]


def test_groups_without_signal_are_dropped(source):
    kept = source.with_signal()
    assert 0 < len(kept) < len(source)
    assert all(kept[i].has_signal for i in range(len(kept)))
    assert sum(source[i].has_signal for i in range(12)) == len(kept)


def test_question_ranges_share_no_question(tmp_path, make_group):
    groups = [make_group(i % 5, question_id=f"q{i % 5}") for i in range(13)]
    rollouts.write(tmp_path, groups, writer="w")
    source = rollouts.GroupSource(rollouts.read(tmp_path))
    first, rest = source.questions(0, 2), source.questions(2)
    assert {group.question_id for group in first} == {"q0", "q1"} and {group.question_id for group in rest} == {"q2", "q3", "q4"}
    assert len(first) + len(rest) == 13
    assert len(source.questions(1, 3).with_signal()) <= len(source.questions(1, 3))


def test_an_empty_selection_is_named_with_its_folder(tmp_path, folder, source, make_group):
    with pytest.raises(DataError, match=f"{tmp_path / 'empty'} holds no groups; sample some"):
        (tmp_path / "empty").mkdir()
        rollouts.GroupSource(rollouts.read(tmp_path / "empty"))
    with pytest.raises(DataError, match=f"{folder} holds no questions 50 to the last of its 12"):
        source.questions(50)
    with pytest.raises(DataError, match="No group of"):
        rollouts.GroupSource(source.reader, [])
    rollouts.write(tmp_path / "flat", [make_group(1, rewards=[1, 1, 1, 1])], writer="w")
    with pytest.raises(DataError, match="no groups whose completions differ in reward"):
        rollouts.GroupSource(rollouts.read(tmp_path / "flat")).with_signal()
    for start, stop in ((-1, 3), (3, 3)):
        with pytest.raises(UsageError, match="Question range"):
            source.questions(start, stop)


def test_a_step_trains_on_the_same_groups_whenever_it_is_asked_for(source, folder):
    order = rollouts.training_order(source, seed=5, groups_per_step=4)
    steps = [ids(order[step]) for step in range(9)]
    again = rollouts.training_order(rollouts.GroupSource(rollouts.read(folder)), seed=5, groups_per_step=4)
    assert [ids(again[step]) for step in reversed(range(9))] == steps[::-1]
    assert ids(rollouts.training_order(source, seed=6, groups_per_step=4)[0]) != steps[0]


def test_every_epoch_is_another_permutation(source):
    order = rollouts.training_order(source, seed=0, groups_per_step=5)
    flat = list(itertools.chain.from_iterable(ids(order[step]) for step in range(12)))
    epochs = [flat[start : start + 12] for start in range(0, 60, 12)]
    assert all(sorted(epoch) == sorted(epochs[0]) and len(set(epoch)) == 12 for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 5 and order.steps_per_epoch == 12 / 5


@pytest.mark.parametrize("prefetch", [0, 3])
def test_iteration_starts_at_any_step(source, prefetch):
    order = rollouts.training_order(source, seed=1, groups_per_step=3)
    assert list(order.batches(7, 12, prefetch=prefetch)) == [order[step] for step in range(7, 12)]
    assert [ids(step) for step in itertools.islice(order.batches(3, prefetch=prefetch, threads=2), 6)] == [
        ids(order[step]) for step in range(3, 9)
    ]


def test_damage_is_reported_through_the_prefetching_threads(source, folder, flip):
    path = folder / source.reader.datasets[0].name / source.reader.datasets[0].data_file
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(rollouts.CorruptShard, match="bytes where the manifest says"):
        list(rollouts.training_order(source, seed=1, groups_per_step=12).batches(0, 1))


def test_bad_orders_are_refused(source):
    with pytest.raises(UsageError, match="groups_per_step is 0"):
        rollouts.training_order(source, seed=0, groups_per_step=0)
    with pytest.raises(UsageError, match="seed -1"):
        rollouts.training_order(source, seed=-1, groups_per_step=1)
    with pytest.raises(IndexError):
        rollouts.training_order(source, seed=0, groups_per_step=1)[-1]
