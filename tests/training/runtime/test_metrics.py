"""A step's metrics come out one step later, under their own step."""

import time

import jax.numpy as jnp
import numpy as np
import pytest

from grre_jax.training.runtime.metrics import DelayedMetrics, Diverged, Stopwatch, age_scalars


class Log:
    def __init__(self):
        self.rows = []

    def write(self, kind, step, scalars):
        self.rows.append((kind, step, dict(scalars)))


def metrics(loss, tokens=10):
    return {"loss": jnp.float32(loss), "response_tokens": jnp.int32(tokens)}


def test_rows_come_one_step_late_and_none_is_lost(log):
    pending = DelayedMetrics(log, time.monotonic())
    assert pending.swap(1, metrics(0.5), {"staleness": 0.0}) == {} and log.rows == []
    shown = pending.swap(2, metrics(0.25, tokens=30), {"staleness": 1.0})
    assert (shown["loss"], shown["tokens"], shown["staleness"]) == (0.5, 10, 0.0)
    assert shown["tokens_per_second"] > 0
    assert [row[:2] for row in log.rows] == [("train", 1)]
    assert pending.swap(2, None)["staleness"] == 1.0
    assert pending.swap(2, None) == {}
    assert [row[:2] for row in log.rows] == [("train", 1), ("train", 2)]
    last = log.rows[1][2]
    assert last["loss"] == 0.25 and "response_tokens" not in last
    assert [type(value) for value in last.values()].count(float) == len(last) - 1


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_step_whose_gradient_is_not_finite_is_logged_and_ends_the_run(log, value):
    pending = DelayedMetrics(log, time.monotonic())
    for step, norm in ((1, 1.0), (2, value)):
        pending.swap(step, metrics(0.5) | {"grad_norm": jnp.float32(norm)})
    with pytest.raises(Diverged, match=f"train step 2: .*{value}"):
        pending.swap(3, metrics(0.5))
    assert [step for _, step, _ in log.rows] == [1, 2]


def test_a_row_has_the_seconds_of_each_work_and_training_has_the_rest(log, monkeypatch):
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    watch = Stopwatch()
    pending = DelayedMetrics(log, now, watch=watch)
    pending.swap(1, metrics(0.5))
    for name in ("sampling", "verification", "sampling"):
        with watch(name):
            now += 2.0
    now += 3.0
    first = pending.swap(2, metrics(0.5))
    now += 5.0
    second = pending.swap(2, None)
    seconds = [[row.get(f"seconds_{name}") for name in NAMES] for row in (first, second)]
    assert seconds == [[4.0, 2.0, 3.0], [None, None, 5.0]]


@pytest.fixture
def log():
    return Log()


def test_ages_become_a_mean_and_a_histogram_of_those_that_are_known():
    mean = {"staleness": 1.0, "staleness_0": 2, "staleness_2": 2}
    assert age_scalars(np.array([0, 0, 2, np.nan, 2])) == mean
    assert age_scalars(np.array([np.nan])) == {}


def test_impossible_behaviour_log_probs_are_logged_once(log, caplog):
    pending = DelayedMetrics(log, time.monotonic())
    for step, share in enumerate([0.0, 0.01, 0.875, 1.0], start=1):
        pending.swap(step, metrics(0.5) | {"ratio_out_of_bounds": jnp.float32(share)})
    pending.swap(4, None)
    (record,) = caplog.records
    assert record.args == (3, 87.5)


NAMES = ("sampling", "verification", "training")
