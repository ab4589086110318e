import io
import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from scipy.stats import binomtest

from grre_jax.reporting.intervals import wilson_interval
from grre_jax.reporting.metrics import read_metrics
from grre_jax.reporting.summary import (
    largest_drawdown,
    print_summaries,
    shortened,
    sparkline,
    summarise,
    table_rows,
)


def evaluations(*pairs):
    return {"eval": [{"step": step, "kind": "eval", "accuracy": value} for step, value in pairs]}


@pytest.mark.parametrize(
    "successes, n, low, high",
    # R. G. Newcombe, Statistics in Medicine 17 (1998), table I, the score interval without
    # continuity correction
    [
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_wilson_interval_published_values(successes, n, low, high):
    assert wilson_interval(successes, n) == pytest.approx((low, high), abs=5e-5)


@pytest.mark.parametrize("successes, n", [(0, 1), (1, 1), (5, 10), (37, 512), (511, 512)])
def test_wilson_interval_equals_scipys(successes, n):
    expected = binomtest(successes, n).proportion_ci(method="wilson")
    found = wilson_interval(successes, n)
    assert found == pytest.approx((expected.low, expected.high), abs=1e-12)


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 10**6), st.integers(0, 10**6))
def test_wilson_interval_holds_the_share_within_bounds(a, b):
    successes, n = min(a, b), max(a, b)
    low, high = wilson_interval(successes, n)
    assert 0 <= low <= high <= 1
    if n:
        assert low <= successes / n <= high
        assert wilson_interval(n - successes, n) == pytest.approx((1 - high, 1 - low), abs=1e-9)


def test_wilson_interval_without_trials_and_out_of_range():
    assert wilson_interval(0, 0) == (0.0, 1.0)
    for arguments in ((3, 2), (-1, 2), (0, -1)):
        with pytest.raises(ValueError):
            wilson_interval(*arguments)


@pytest.mark.parametrize(
    "values, drawdown",
    [
        ([], None),
        ([0.5], 0.0),
        ([0.1, 0.9, 0.4, 0.95], 0.5),
        ([0.9, 0.8, 0.1], 0.8),
        ([0.1, float("nan"), 0.3], 0.0),
        ([float("nan")], None),
    ],
)
def test_largest_drawdown(values, drawdown):
    assert largest_drawdown(values) == (None if drawdown is None else pytest.approx(drawdown))


def test_accuracy_readings():
    summary = summarise("run", "folder", evaluations((0, 0.2), (10, 0.9), (20, 0.9), (30, 0.5)))
    assert (summary.accuracy_first.step, summary.accuracy_first.value) == (0, 0.2)
    assert (summary.accuracy_last.step, summary.accuracy_last.value) == (30, 0.5)
    assert (summary.accuracy_best.step, summary.accuracy_best.value) == (10, 0.9)
    assert summary.largest_drawdown == pytest.approx(0.4)
    assert math.isnan(summary.accuracy_last.low)
    assert summary.as_json()["accuracy_last"]["low"] is None


def test_first_quarter_is_the_mean_under_the_curve_whatever_the_spacing():
    sparse = summarise("a", "", evaluations((0, 0.0), (100, 1.0))).accuracy_first_quarter
    dense = summarise(
        "b", "", evaluations(*((step, step / 100) for step in range(101)))
    ).accuracy_first_quarter
    assert sparse == pytest.approx(0.125) and dense == pytest.approx(0.125)
    assert summarise("c", "", evaluations((5, 0.3))).accuracy_first_quarter == pytest.approx(0.3)
    assert summarise("d", "", {}).accuracy_first_quarter is None


def test_training_readings(make_run):
    metrics = read_metrics(make_run("run", not_finite=(7,)))
    summary = summarise("run", "folder", metrics)
    rewards = [row["reward"] for row in metrics["train"]]
    assert summary.steps == 80 and summary.tokens == 8000 and summary.not_finite_steps == 1
    assert summary.reward_first == pytest.approx(sum(rewards[:8]) / 8)
    assert summary.reward_last == pytest.approx(sum(rewards[-8:]) / 8)
    assert summary.kl_to_start == pytest.approx(0.3)
    assert summary.wall_seconds == metrics["eval"][-1]["elapsed"]
    assert summary.accuracy_last.low == metrics["eval"][-1]["accuracy_low"]
    json.dumps(summary.as_json(), allow_nan=False)


def test_a_run_that_recorded_nothing_else_has_its_steps():
    summary = summarise(
        "run",
        "folder",
        {
            "train": [
                {"step": 3, "kind": "train", "time": 10.0},
                {"step": 4, "kind": "train", "time": 12.5},
            ]
        },
    )
    assert summary.steps == 4
    assert summary.wall_seconds == 2.5
    assert summary.tokens is None
    assert summary.reward_last is None


def test_sparkline():
    assert sparkline([0, 1]) == "▁█" and sparkline([]) == "" and sparkline([0.5]) == "▁"
    assert len(sparkline(range(1000))) == 16
    assert sparkline(range(1000))[0] == "▁"
    assert sparkline(range(1000))[-1] == "█"
    assert sparkline([0.0, 1.0, 2.0], bounds=(0.0, 1.0)) == "▁██"


@given(st.text(max_size=60), st.integers(5, 40))
def test_shortened_names_fit(name, longest):
    short = shortened(name, longest)
    assert short == name if len(name) <= longest else len(short) == longest
    assert name.endswith(short[-1:])


def printed(summaries, width=120, encoding="utf-8"):
    buffer = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    print_summaries(summaries, Console(file=buffer, width=width))
    buffer.seek(0)
    return buffer.read()


def test_the_table_shows_each_number_once_a_run(make_run):
    summaries = [
        summarise(name, name, read_metrics(make_run(name, seed=i, collapse=bool(i))))
        for i, name in enumerate(("one", "two"))
    ]
    text = printed(summaries)
    assert "● one" in text and "● two" in text
    for label in (
        "accuracy, first",
        "accuracy, last",
        "accuracy, best",
        "first quarter",
        "largest drawdown",
        "KL to the start",
        "tokens trained on",
        "time",
    ):
        assert text.partition("one: ")[0].count(label) == 1
    assert f"{summaries[1].accuracy_last.value:.1%}" in text
    assert f"{100 * summaries[1].largest_drawdown:.1f} points" in text
    assert "NaN" not in text  # no run had one


def test_many_runs_come_in_several_tables_and_none_is_cut(make_run):
    metrics = read_metrics(make_run("run", not_finite=(3,)))
    summaries = [summarise(f"a_run_with_a_name_{i}", "", metrics) for i in range(5)]
    text = printed(summaries, width=100)
    assert all(f"a_run_with_a_name_{i}" in text for i in range(5))
    assert text.count("accuracy, best") > 1 and max(map(len, text.splitlines())) <= 100
    assert "steps with NaN or infinity" in text


def test_the_table_is_ascii_where_the_console_is(make_run):
    summary = summarise("x" * 70, "", read_metrics(make_run("run", without=("accuracy",))))
    text = printed(
        [summary, summarise("other", "", read_metrics(make_run("other")))], encoding="ascii"
    )
    assert text.isascii() and "xx..xx" in text and "other" in text


def shaped(**more):
    """A run whose reward is no accuracy, and has two components."""
    train = [
        {"step": s, "kind": "train", "reward": -1.0 + s / 10, "component_format": s / 20}
        for s in range(1, 21)
    ]
    low, high = -0.6, -0.4
    first = {
        "step": 0,
        "kind": "eval",
        "reward": -0.5,
        "reward_low": low,
        "reward_high": high,
        "component_a/b": 0.5,
    }
    return {
        "train": train,
        "eval": [
            first,
            first | {"step": 20, "reward": 1.5, "reward_low": 1.4, "reward_high": 1.6} | more,
        ],
    }


def test_a_reward_that_is_no_accuracy_has_no_percent_sign():
    summary = summarise("run", "", shaped())
    assert summary.accuracy_last is None and summary.evaluation_reward_last.value == 1.5
    assert [(c.name, c.first, c.last, c.evaluation) for c in summary.components] == [
        ("format", pytest.approx(0.075), 0.975, None),
        ("a/b", None, None, 0.5),
    ]
    rows = {label: cells for label, cells in table_rows([summary], unicode=False) if any(cells)}
    assert rows["held-out reward, last"] == ["1.500 [dim](1.400 to 1.600)[/]"]
    assert not any(label.startswith("accuracy") for label in rows)
    assert rows["component format"] == ["0.075 to 0.975"]
    assert rows["component a/b"] == ["held-out 0.500"]
    assert not any("%" in cell for cells in rows.values() for cell in cells)


def test_an_accuracy_of_some_evaluations_alone_is_none_of_the_run():
    """Rewards that were 0 and 1 by chance in one evaluation, and are not in the next, are no
    accuracy in either.
    """
    metrics = shaped()
    metrics["eval"][0] |= {"accuracy": 0.0, "accuracy_low": 0.0, "accuracy_high": 0.1}
    assert summarise("run", "", metrics).accuracy_first is None
    metrics["eval"][1] |= {"accuracy": 0.5}
    summary = summarise("run", "", metrics)
    assert summary.accuracy_last.value == 0.5 and summary.evaluation_reward_last.value == 1.5


def test_greedy_accuracy_is_beside_the_sampled_one():
    metrics = evaluations((0, 0.2), (10, 0.5))
    bare = summarise("run", "", metrics)
    assert bare.greedy_accuracy_last is None  # a run of an older version: absent, not 0
    for row, greedy in zip(metrics["eval"], (0.7, 0.9), strict=True):
        row["greedy_accuracy"] = greedy
    both = summarise("run", "", metrics)
    assert (both.greedy_accuracy_first.value, both.greedy_accuracy_best.step) == (0.7, 10)
    rows = dict(table_rows([bare, both], unicode=False))
    assert rows["greedy accuracy, last"] == ["", "90.0%"]
    del metrics["eval"][0]["greedy_accuracy"]  # such a run, resumed by this version
    metrics["eval"][0]["reward"] = 0.2
    assert summarise("run", "", metrics).greedy_accuracy_first is None


def test_rewards_of_0_and_1_are_shown_once_as_accuracy():
    rows = evaluations((0, 0.2), (10, 0.5))["eval"]
    summary = summarise("run", "", {"eval": [row | {"reward": row["accuracy"]} for row in rows]})
    labels = [label for label, cells in table_rows([summary], unicode=False) if any(cells)]
    assert "accuracy, last" in labels and "held-out reward, last" not in labels
