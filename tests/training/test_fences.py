"""Fences: one holder after another, whoever wakes late."""

import threading

import pytest

from grre_jax.rollouts.store_path import StorePath
from grre_jax.training.fences import Fences


@pytest.fixture
def fences(store):
    return Fences(StorePath(f"s3://{store.bucket}/run/learner.json"))


def test_each_is_made_once_and_lower_ones_go(fences, store):
    assert fences.newest() == 0
    assert fences.take(1, "a") and not fences.take(1, "b") and fences.newest() == 1
    assert fences.take(2, "b") and fences.newest() == 2
    assert [path.rsplit("/", 1)[1] for path in store.files.ls(f"{store.bucket}/run/learner.fence", detail=False)] == ["00000002"]


def test_of_many_at_once_one_wins(fences):
    won, together = [], threading.Barrier(4)

    def try_it(name):
        together.wait(timeout=30)
        if fences.take(7, name):
            won.append(name)

    threads = [threading.Thread(target=try_it, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert len(won) == 1


def test_a_store_that_does_not_answer_is_an_error(fences, store):
    store.plan = lambda *_: 403
    with pytest.raises(OSError):
        fences.newest()
    with pytest.raises(OSError):
        fences.take(1, "a")
