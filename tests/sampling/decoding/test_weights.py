"""Weights that threads share."""

import gc
import threading
from types import SimpleNamespace

import pytest

from grre_jax.sampling.decoding import weights
from grre_jax.sampling.decoding.weights import Latest, Weights


class Leaf:
    """An array of a model, which weak references can refer to."""


@pytest.fixture
def models(monkeypatch):
    """Two models of one structure whose preparation is only a name."""
    monkeypatch.setattr(weights.nnx, "split", lambda model: ("graph", model.leaves))
    monkeypatch.setattr(weights.jax.tree, "leaves", lambda leaves: leaves)
    monkeypatch.setattr(
        weights,
        "prepared",
        lambda model: Weights("graph", "block", model.leaves, [model.name], model.name),
    )
    return [SimpleNamespace(name=name, leaves=[Leaf(), Leaf()]) for name in "ab"]


def test_two_threads_with_two_models_each_get_their_own(models):
    latest, wrong = Latest(), []

    def ask(model):
        for _ in range(3000):
            found = latest.of(model)
            if (found.head, found.layers) != (model.name, [model.name]):
                wrong.append(model.name)

    threads = [threading.Thread(target=ask, args=(model,)) for model in models]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_only_the_arrays_of_the_kept_model_drop_it(models):
    first, second = models
    latest = Latest()
    latest.of(first)
    latest.of(second)
    for model, kept in ((first, True), (second, False)):
        model.leaves.clear()
        gc.collect()
        assert (latest._entry is not None) == kept
