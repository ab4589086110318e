import numpy as np
import pytest

from grre_jax.reporting import overview_figure, run_colours
from grre_jax.reporting.figures import PALETTE, run_style, shown_panels
from grre_jax.reporting.metrics import read_metrics


def axis_of(figure, title):
    (axis,) = [axis for axis in figure.axes if axis.get_title(loc="left") == title]
    return axis


def labels(axis):
    return [text.get_text() for text in axis.texts]


def train(*values, **scalars):
    return [
        {"step": step, "kind": "train", "reward": value, **scalars}
        for step, value in enumerate(values, start=1)
    ]


def test_accuracy_has_its_interval_and_greedy_accuracy_is_dashed(make_run):
    metrics = read_metrics(make_run("run"))
    rows = metrics["eval"]
    rows[-1]["greedy_accuracy"] = 0.25
    axis = axis_of(overview_figure({"run": metrics}), "Accuracy, held-out")
    sampled, greedy = axis.lines
    np.testing.assert_allclose(sampled.get_ydata(), [row["accuracy"] for row in rows])
    assert greedy.get_linestyle() == "--" and greedy.get_color() == sampled.get_color()
    bounds = axis.collections[0].get_paths()[0].vertices[:, 1]
    assert bounds.min() == pytest.approx(min(row["accuracy_low"] for row in rows))
    assert bounds.max() == pytest.approx(max(row["accuracy_high"] for row in rows))
    assert labels(axis) == [f"{rows[-1]['accuracy']:.1%}", "25.0%"]


def test_runs_are_overlaid_with_a_legend(make_run):
    bare = read_metrics(make_run("b", without=("entropy",)))
    figure = overview_figure({"wide": read_metrics(make_run("a")), "_narrow$x$": bare})
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["wide", "_narrow$x$"]
    colours = list(run_colours(["a", "b"]).values())
    assert colours == list(PALETTE[:2])
    for title, count in (("Reward", 2), ("Entropy", 1)):
        lines = axis_of(figure, title).lines
        assert {line.get_color() for line in lines} == set(colours[:count])
    styles = [run_style(i) for i in range(21)]  # no two look the same, or like greedy decoding
    assert len({tuple(style.values()) for style in styles}) == 21
    assert "--" not in {style["linestyle"] for style in styles}


def test_not_finite_steps_are_marked_and_do_not_spoil_the_line(make_run):
    metrics = read_metrics(make_run("run", not_finite=(20, 21)))
    axis = axis_of(overview_figure({"run": metrics}), "Entropy")
    crosses, *lines = axis.lines
    assert crosses.get_marker() == "x" and crosses.get_xdata().tolist() == [20, 21]
    assert all(np.isfinite(line.get_ydata()).all() for line in lines)


@pytest.mark.parametrize(
    "value, count, points", [(-3.0, 1, 1), (float("nan"), 40, 40), (-3.0, 12_000, 1200)]
)
def test_any_curve_is_drawn(value, count, points):
    """Long ones in means of neighbours."""
    figure = overview_figure({"run": {"train": train(*[value] * count, clip_fraction=0.0)}})
    figure.draw_without_rendering()
    for axis in figure.axes:
        assert np.isfinite(axis.get_ylim()).all()
        assert value != value or {len(line.get_xdata()) for line in axis.lines} <= {points}


def test_of_curves_that_end_together_one_is_labelled():
    runs = {str(end): {"train": train(end)} for end in (1.0, 0.99, 0.2)}
    assert labels(axis_of(overview_figure(runs), "Reward")) == ["1", "0.2"]


def test_the_panels_are_those_that_the_runs_can_fill():
    binary = {"eval": [{"step": 0, "accuracy": 0.5, "reward": 0.5}]}
    shaped = {
        "train": train(-1.0, component_a=1.0),
        "eval": [{"step": 0, "reward": -0.5, "component_c": 1.0}],
    }

    def shown(*runs):
        panels = shown_panels(dict(enumerate(runs)))
        return " ".join(f"{panel.kind}.{panel.key}" for panel in panels)

    assert shown(binary) == "eval.accuracy"
    both = "train.reward eval.accuracy eval.reward train.component_a eval.component_c"
    assert shown(binary, shaped) == both
