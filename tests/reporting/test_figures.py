import struct

import numpy as np
import pytest

from grre_jax.errors import DataError
from grre_jax.reporting.figures import (
    draw_curves,
    overview_figure,
    panel_figure,
    smooth,
)
from grre_jax.reporting.metrics import read_metrics
from grre_jax.reporting.panels import PALETTE, PANELS, run_style

NAMES = ["overview"] + [panel.name for panel in PANELS]


def png_size(path):
    data = path.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    return struct.unpack(">II", data[16:24])


def texts(figure):
    found = [text.get_text() for text in figure.texts] + [
        text.get_text() for legend in figure.legends for text in legend.get_texts()
    ]
    return found + [text.get_text() for axis in figure.axes for text in axis.texts]


def lines_of(axis, colour):
    return [line for line in axis.lines if line.get_color() == colour]


def test_overview_and_every_panel_are_written(make_run, tmp_path):
    metrics = read_metrics(make_run("run"))
    paths = draw_curves({"run": metrics}, tmp_path / "plots", subtitle="80 steps")
    assert [path.stem for path in paths] == NAMES
    assert png_size(paths[0])[0] == 1920 and all(png_size(path)[0] == 1024 for path in paths[1:])
    assert sorted(path.name for path in (tmp_path / "plots").iterdir()) == sorted(
        f"{name}.png" for name in NAMES
    )  # no partial files


def test_the_smooth_line_lies_over_the_raw_one(make_run):
    metrics = read_metrics(make_run("run"))
    figure = panel_figure({"run": metrics}, PANELS[0])
    raw, line = lines_of(figure.axes[0], PALETTE[0])[:2]
    np.testing.assert_allclose(raw.get_ydata(), [row["reward"] for row in metrics["train"]])
    assert raw.get_alpha() < 0.5 and line.get_alpha() is None
    assert np.diff(line.get_ydata()).std() < 0.3 * np.diff(raw.get_ydata()).std()


def test_accuracy_is_not_smoothed_and_has_its_interval(make_run):
    metrics = read_metrics(make_run("run"))
    figure = panel_figure({"run": metrics}, PANELS[1])
    (axis,) = figure.axes
    np.testing.assert_allclose(
        axis.lines[0].get_ydata(), [row["accuracy"] for row in metrics["eval"]]
    )
    (band,) = axis.collections
    bounds = band.get_paths()[0].vertices[:, 1]
    assert bounds.min() == pytest.approx(min(row["accuracy_low"] for row in metrics["eval"]))
    assert bounds.max() == pytest.approx(max(row["accuracy_high"] for row in metrics["eval"]))
    assert f"{metrics['eval'][-1]['accuracy']:.1%}" in texts(figure)
    assert axis.get_ylim()[0] >= 0 and axis.get_ylim()[1] <= 1.02


def test_greedy_accuracy_is_dashed_in_the_colour_of_its_run():
    """A run that began before it was recorded, and one that never had it, are drawn as they are."""

    def rows(*greedy):
        sampled = [{"step": 10 * i, "kind": "eval", "accuracy": 0.1 * i} for i in range(3)]
        more = zip(sampled[3 - len(greedy) :], greedy, strict=True)
        return {"eval": sampled[: 3 - len(greedy)] + [a | {"greedy_accuracy": b} for a, b in more]}

    runs = {"all": rows(0.7, 0.8, 0.9), "old": rows(), "resumed": rows(1.0)}
    figure = panel_figure(runs, PANELS[1])
    (axis,) = figure.axes
    dashed = [line for line in axis.lines if line.get_linestyle() == "--"]
    assert [line.get_color() for line in dashed] == [PALETTE[0], PALETTE[2]]
    assert [list(line.get_ydata()) for line in dashed] == [[0.7, 0.8, 0.9], [1.0]]
    for colour in PALETTE[:3]:
        assert list(lines_of(axis, colour)[0].get_ydata()) == [0.0, 0.1, 0.2]
    assert {"90.0%", "100.0%"} <= set(texts(figure)) and axis.get_ylim()[1] > 1
    assert "--" not in {run_style(index)["linestyle"] for index in range(40)}


def test_runs_are_overlaid_with_a_legend(make_run):
    runs = {
        "wide": read_metrics(make_run("a")),
        "_narrow$x$": read_metrics(make_run("b", seed=1, collapse=True)),
    }
    figure = overview_figure(runs)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["wide", "_narrow$x$"]
    for axis in figure.axes:
        assert lines_of(axis, PALETTE[0]) and lines_of(axis, PALETTE[1])


def test_runs_of_different_metrics_share_the_panels_both_have(make_run, tmp_path):
    runs = {
        "full": read_metrics(make_run("a")),
        "bare": read_metrics(make_run("b", without=("entropy", "accuracy"))),
    }
    figure = overview_figure(runs)
    entropy, reward = figure.axes[3], figure.axes[0]
    assert lines_of(entropy, PALETTE[0])
    assert not lines_of(entropy, PALETTE[1])
    assert lines_of(reward, PALETTE[1])
    assert (
        texts(figure).count("not recorded: bare") == 3
    )  # with the evaluations the KL to the start is missing too
    paths = draw_curves({"bare": runs["bare"]}, tmp_path / "plots")
    assert {"entropy", "accuracy"}.isdisjoint(path.stem for path in paths)
    assert texts(overview_figure({"bare": runs["bare"]})).count("not recorded") == 3


def test_not_finite_steps_are_marked_and_do_not_spoil_the_line(make_run):
    metrics = read_metrics(make_run("run", not_finite=(20, 21)))
    figure = panel_figure({"run": metrics}, PANELS[3])
    crosses = [line for line in figure.axes[0].lines if line.get_marker() == "x"]
    assert [line.get_xdata().tolist() for line in crosses] == [[20, 21]]
    assert all(
        np.isfinite(line.get_ydata()).all()
        for line in figure.axes[0].lines
        if line.get_alpha() is None
    )


@pytest.mark.parametrize("value", [0.0, 1.0, -3.0, float("nan")])
def test_degenerate_curves_are_drawn(value):
    for count in (1, 2, 40):
        rows = [
            {"step": step, "kind": "train", "reward": value, "clip_fraction": 0.0}
            for step in range(1, count + 1)
        ]
        accuracy = [{"step": 0, "kind": "eval", "accuracy": 1.0}]
        for panel in PANELS[:2]:
            figure = panel_figure({"run": {"train": rows, "eval": accuracy}}, panel)
            figure.draw_without_rendering()
            assert np.isfinite(figure.axes[0].get_ylim()).all()


def test_a_long_run_is_drawn_in_means_of_neighbours(tmp_path):
    rng = np.random.default_rng(0)
    rows = [
        {"step": step, "kind": "train", "reward": value}
        for step, value in enumerate(rng.uniform(size=12_000))
    ]
    figure = panel_figure({"run": {"train": rows}}, PANELS[0])
    (axis,) = figure.axes
    assert max(len(line.get_xdata()) for line in axis.lines) <= 1200
    figure.draw_without_rendering()
    assert "10k" in [tick.get_text() for tick in axis.get_xticklabels()]


def test_no_scalar_to_draw_is_said(tmp_path):
    with pytest.raises(DataError):
        draw_curves(
            {"empty": {"train": [{"step": 1, "kind": "train", "loss": 1.0}]}}, tmp_path / "plots"
        )
    assert not (tmp_path / "plots").exists()


def test_of_curves_that_end_together_one_is_labelled():
    rows = [[{"step": 1, "kind": "train", "reward": value}] for value in (1.0, 0.99, 1.0, 0.2)]
    runs = {str(number): {"train": row} for number, row in enumerate(rows)}
    (axis,) = panel_figure(runs, PANELS[0]).axes
    assert [text.get_text() for text in axis.texts] == ["1.00", "0.20"]


def test_the_smooth_line_keeps_a_straight_one_and_the_range_of_a_noisy_one():
    rng = np.random.default_rng(0)
    steps = np.arange(400)
    np.testing.assert_allclose(smooth(3 - 0.5 * steps), 3 - 0.5 * steps, atol=1e-6)
    truth = 1 - np.exp(-steps / 100)
    noisy = np.clip(truth + 0.1 * rng.normal(size=400), 0, 1)
    line = smooth(noisy)
    assert np.sqrt(np.mean((line - truth) ** 2)) < 0.035
    assert line.min() >= noisy.min() and line.max() <= noisy.max()
