"""A step's metrics come out one step later, under their own step."""

import time

import jax.numpy as jnp
import numpy as np
import pytest

from grre_jax.training.runtime.delayed_metrics import DelayedMetrics, Diverged, age_scalars
from grre_jax.training.runtime.stopwatch import Stopwatch


class Log:
    def __init__(self):
        self.rows = []

    def write(self, kind, step, scalars):
        self.rows.append((kind, step, dict(scalars)))


def metrics(loss, tokens=10):
    return {"loss": jnp.float32(loss), "response_tokens": jnp.int32(tokens)}


def test_rows_come_one_step_late_and_none_is_lost():
    log = Log()
    pending = DelayedMetrics(log, time.monotonic())
    assert pending.swap(1, metrics(0.5), {"staleness": 0.0}) == {} and log.rows == []
    shown = pending.swap(2, metrics(0.25, tokens=30), {"staleness": 1.0})
    assert (shown["loss"], shown["tokens"], shown["staleness"]) == (0.5, 10, 0.0)
    assert shown["tokens_per_second"] > 0
    assert [(kind, step) for kind, step, _ in log.rows] == [("train", 1)]
    assert pending.swap(2, None)["staleness"] == 1.0
    assert pending.swap(2, None) == {}
    first, last = log.rows
    assert first[:2] == ("train", 1) and last[:2] == ("train", 2) and last[2]["loss"] == 0.25
    assert [type(value) for value in last[2].values()].count(float) == len(last[2]) - 1
    assert "response_tokens" not in last[2]


@pytest.mark.parametrize(
    "ages, scalars",
    [
        ([0, 0, 2, 2], {"staleness": 1.0, "staleness_0": 2, "staleness_2": 2}),
        ([7, np.nan], {"staleness": 7.0, "staleness_7": 1}),
        ([np.nan], {}),
    ],
)
def test_ages_become_a_mean_and_a_histogram_of_those_that_are_known(ages, scalars):
    assert age_scalars(np.array(ages, float)) == scalars


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_step_whose_gradient_is_not_finite_is_logged_and_ends_the_run(value):
    log = Log()
    pending = DelayedMetrics(log, time.monotonic())
    pending.swap(1, metrics(0.5) | {"grad_norm": jnp.float32(1.0)})
    pending.swap(2, metrics(0.5) | {"grad_norm": jnp.float32(value)})
    with pytest.raises(Diverged, match=f"train step 2: .*{value}"):
        pending.swap(3, metrics(0.5))
    assert [step for _, step, _ in log.rows] == [1, 2]


def test_impossible_behaviour_log_probs_are_told_once_with_share_step_and_fix():
    log, told = Log(), []
    pending = DelayedMetrics(log, time.monotonic(), warn=told.append)
    for step, share in enumerate([0.0, 0.01, 0.875, 1.0], start=1):
        pending.swap(step, metrics(0.5) | {"ratio_out_of_bounds": jnp.float32(share)})
    pending.swap(4, None)
    assert len(told) == 1 and "step 3" in told[0]
    assert [row["ratio_out_of_bounds"] for _, _, row in log.rows] == pytest.approx(
        [0.0, 0.01, 0.875, 1.0]
    )


def test_a_row_has_the_seconds_of_each_work_and_training_has_the_rest(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    watch, log = Stopwatch(), Log()
    pending = DelayedMetrics(log, 100.0, watch=watch)

    def work(name, seconds):
        with watch(name):
            now[0] += seconds

    work("sampling", 4.0)
    work("verification", 1.0)
    pending.swap(1, metrics(0.5))
    work("sampling", 2.0)
    now[0] += 3.0
    row = pending.swap(2, metrics(0.5))
    seconds = {name: value for name, value in row.items() if name.startswith("seconds_")}
    work = {"sampling": 6.0, "verification": 1.0, "training": 3.0}
    assert seconds == {f"seconds_{name}": value for name, value in work.items()}
    now[0] += 5.0
    row = pending.swap(2, None)
    assert row["seconds_training"] == 5.0 and "seconds_sampling" not in row
