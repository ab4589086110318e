"""A step's metrics come out one step later, under their own step."""

import time
from unittest.mock import Mock

import jax.numpy as jnp
import numpy as np
import pytest

from grre_jax.training.metrics import DelayedMetrics, Stopwatch, age_scalars


def metrics(loss, tokens=10):
    return {"loss": jnp.float32(loss), "response_tokens": jnp.int32(tokens)}


def test_rows_come_one_step_late_and_none_is_lost():
    log = Mock()
    pending = DelayedMetrics(log, time.monotonic())
    assert pending.swap(1, metrics(0.5), {"staleness": 0.0}) == {}
    shown = pending.swap(2, metrics(0.25, tokens=30), {"staleness": 1.0})
    assert (shown["loss"], shown["tokens"], shown["staleness"]) == (0.5, 10, 0.0)
    assert pending.swap(2, None)["staleness"] == 1.0
    assert pending.swap(2, None) == {}
    rows = [call.args for call in log.write.call_args_list]
    assert [row[:2] for row in rows] == [("train", 1), ("train", 2)]
    assert (rows[1][2]["loss"], rows[1][2]["tokens"]) == (0.25, 30)


def test_a_row_has_the_seconds_of_each_work_and_training_has_the_rest(monkeypatch):
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    watch = Stopwatch()
    pending = DelayedMetrics(Mock(), now, watch=watch)
    pending.swap(1, metrics(0.5))
    for name in ("sampling", "verification", "sampling"):
        with watch(name):
            now += 2.0
    now += 3.0
    found = pending.swap(2, metrics(0.5))
    names = ("sampling", "verification", "training")
    assert [found[f"seconds_{name}"] for name in names] == [4.0, 2.0, 3.0]
    assert found["tokens_per_second"] == pytest.approx(10 / 9)


def test_ages_become_a_mean_and_a_histogram_of_those_that_are_known():
    mean = {"staleness": 1.0, "staleness_0": 2, "staleness_2": 2}
    assert age_scalars(np.array([0, 0, 2, np.nan, 2])) == mean
    assert age_scalars(np.array([np.nan])) == {}


def test_impossible_behaviour_log_probs_are_logged_once(caplog):
    pending = DelayedMetrics(Mock(), time.monotonic())
    for step, share in enumerate([0.0, 0.01, 0.875, 1.0], start=1):
        pending.swap(step, metrics(0.5) | {"ratio_out_of_bounds": jnp.float32(share)})
    pending.swap(4, None)
    (record,) = caplog.records
    assert record.args == (3, 87.5)
