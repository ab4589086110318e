import numpy as np
import pytest

from grre_jax.reporting import overview_figure
from grre_jax.reporting.metrics import read_metrics


def test_accuracy_has_its_interval_and_greedy_accuracy_is_dashed(make_run):
    metrics = read_metrics(make_run("run"))
    rows = metrics["eval"]
    rows[-1]["greedy_accuracy"] = 0.25
    axes = overview_figure({"run": metrics}).axes
    (axis,) = [axis for axis in axes if axis.get_title(loc="left") == "eval: accuracy"]
    sampled, greedy = axis.lines
    np.testing.assert_allclose(sampled.get_ydata(), [row["accuracy"] for row in rows])
    assert greedy.get_linestyle() == "--"
    bounds = axis.collections[0].get_paths()[0].vertices[:, 1]
    assert bounds.min() == pytest.approx(min(row["accuracy_low"] for row in rows))
    assert bounds.max() == pytest.approx(max(row["accuracy_high"] for row in rows))
    assert greedy.get_ydata() == [0.25]


@pytest.mark.parametrize(("value", "count"), [(-3.0, 1), (float("nan"), 40), (-3.0, 12_000)])
def test_any_curve_is_drawn(value, count):
    rows = [{"step": step, "reward": value, "clip_fraction": 0.0} for step in range(count)]
    figure = overview_figure({"run": {"train": rows}})
    figure.draw_without_rendering()
    for axis in figure.axes:
        assert np.isfinite(axis.get_ylim()).all()
