"""A step's metrics come out one step later, under their own step."""

import time

import jax.numpy as jnp
import pytest

from grre_jax.training.pending import PendingMetrics


class Log:
    def __init__(self):
        self.rows = []

    def write(self, kind, step, scalars):
        self.rows.append((kind, step, dict(scalars)))


def metrics(loss, tokens=10):
    return {"loss": jnp.float32(loss), "response_tokens": jnp.int32(tokens)}


def test_rows_come_one_step_late_and_none_is_lost():
    log = Log()
    pending = PendingMetrics(log, time.monotonic())
    assert pending.swap(1, metrics(0.5), 0.0) == {} and log.rows == []
    shown = pending.swap(2, metrics(0.25, tokens=30), 1.0)
    assert shown["loss"] == 0.5 and shown["tokens"] == 10 and shown["tokens_per_second"] > 0 and shown["staleness"] == 0.0
    assert [(kind, step) for kind, step, _ in log.rows] == [("train", 1)]
    assert pending.swap(2, None, 0.0)["staleness"] == 1.0
    assert pending.swap(2, None, 0.0) == {}
    assert [(kind, step, row["loss"]) for kind, step, row in log.rows] == [("train", 1, 0.5), ("train", 2, 0.25)]
    assert [type(v) for v in log.rows[1][2].values()].count(float) == len(log.rows[1][2]) - 1
    assert all("response_tokens" not in row for _, _, row in log.rows)


def test_unknown_staleness_is_left_out_and_the_kind_is_kept():
    log = Log()
    pending = PendingMetrics(log, time.monotonic(), kind="warm_start")
    pending.swap(1, metrics(1.0), float("nan"))
    assert "staleness" not in pending.swap(2, None, 0.0)
    assert log.rows[0][0] == "warm_start"


def test_speed_is_taken_from_one_row_to_the_next(monkeypatch):
    clock = iter([12.0, 16.0])
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    pending = PendingMetrics(Log(), 10.0)
    pending.swap(1, metrics(0, tokens=100), 0.0)
    assert pending.swap(2, metrics(0, tokens=200), 0.0)["tokens_per_second"] == pytest.approx(100 / 2)
    assert pending.swap(3, None, 0.0)["tokens_per_second"] == pytest.approx(200 / 4)
