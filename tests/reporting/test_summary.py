import io
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from grre_jax.reporting.metrics import read_metrics, staleness_histogram
from grre_jax.reporting.summary import (
    largest_drawdown,
    print_summaries,
    shortened,
    summarise,
    table_rows,
)


def evaluations(*values, name="accuracy"):
    return [{"step": 10 * i, "kind": "eval", name: value} for i, value in enumerate(values)]


def train(*rows):
    return [{"step": i, "kind": "train", **row} for i, row in enumerate(rows, start=1)]


@pytest.mark.parametrize(
    "values, drawdown",
    [([], None), ([0.5], 0.0), ([0.1, 0.9, 0.4, 0.95], 0.5), ([0.9, 0.8, 0.1], 0.8)],
)
def test_largest_drawdown(values, drawdown):
    assert largest_drawdown(values) == (None if drawdown is None else pytest.approx(drawdown))


def test_readings_of_a_run(make_run):
    metrics = read_metrics(make_run("run", not_finite=(7,)))
    summary = summarise("run", "folder", metrics)
    rewards = [row["reward"] for row in metrics["train"]]
    assert (summary.steps, summary.tokens, summary.not_finite_steps) == (80, 8000, 1)
    assert summary.reward_first == pytest.approx(sum(rewards[:8]) / 8)
    assert summary.reward_last == pytest.approx(sum(rewards[-8:]) / 8)
    assert summary.kl_to_start == pytest.approx(0.3)
    assert summary.wall_seconds == metrics["eval"][-1]["elapsed"]
    assert summary.accuracy[-1].low == metrics["eval"][-1]["accuracy_low"]
    json.dumps(summary.as_json(), allow_nan=False)


def test_what_a_run_did_not_record_is_absent():
    summary = summarise("run", "folder", {"train": train({}), "eval": evaluations(0.2)})
    assert summary.steps == 1
    assert summary.tokens is None
    assert summary.reward_last is None
    assert not summary.staleness
    assert math.isnan(summary.accuracy[0].low)
    assert summary.as_json()["accuracy"][0]["low"] is None
    labels = [label for label, _ in table_rows([summary])]
    assert "steps" in labels
    assert "staleness (updates)" not in labels


@given(st.text(max_size=60), st.integers(5, 40))
def test_shortened_names_fit(name, longest):
    short = shortened(name, longest)
    assert short == name if len(name) <= longest else len(short) == longest
    assert name.endswith(short[-1:])


def test_runs_are_beside_each_other_and_none_is_cut(make_run):
    runs = [read_metrics(make_run(name, seed=i, not_finite=(3,))) for i, name in enumerate("ab")]
    summaries = [summarise(f"name_of_run_{i}", "", runs[i % 2]) for i in range(5)]
    console = Console(file=io.StringIO(), width=100)
    print_summaries(summaries, console)
    text = console.file.getvalue()
    assert all(f"● {summary.name}" in text for summary in summaries)
    assert max(map(len, text.splitlines())) <= 100
    assert text.count(f"{summaries[1].accuracy[-1].value:.1%}") >= 2
    (cells,) = [cells for label, cells in table_rows(summaries) if "NaN" in label]
    assert cells == ["1"] * 5


def test_a_reward_that_is_not_an_accuracy():
    """Rewards that are 0 and 1 by chance in one evaluation, and are not in the next, are not an
    accuracy in either.
    """
    steps = [{"reward": -1.0 + i / 10, "component_format": i / 20} for i in range(1, 21)]
    first = {"step": 0, "kind": "eval", "reward": -0.5, "component_a/b": 0.5}
    last = first | {"step": 20, "reward": 1.5, "reward_low": 1.4, "reward_high": 1.6}
    metrics = {"train": train(*steps), "eval": [first | {"accuracy": 0.0}, last]}
    summary = summarise("run", "", metrics)
    assert not summary.accuracy
    rows = dict(table_rows([summary]))
    assert rows["held-out reward, last"] == ["1.500 (1.400–1.600)"]
    assert rows["component format"] == ["0.075 to 0.975"]
    assert rows["component a/b"] == ["held-out 0.500"]
    assert not any("%" in cell for cells in rows.values() for cell in cells)
    metrics["eval"][1]["accuracy"] = 0.5
    assert summarise("run", "", metrics).accuracy[-1].value == 0.5


def test_greedy_accuracy_is_beside_the_sampled_one():
    rows = evaluations(0.2, 0.5)
    older = summarise("older", "", {"eval": rows})
    both = [row | {"greedy_accuracy": 0.7, "reward": row["accuracy"]} for row in rows]
    newer = summarise("newer", "", {"eval": both})
    cells = dict(table_rows([older, newer]))
    assert cells["greedy accuracy, last"] == ["–", "70.0%"]
    assert "held-out reward, last" not in cells  # rewards of 0 and 1 are shown once
    resumed = {"eval": [rows[0] | {"reward": 0.2}, both[1]]}
    assert not summarise("resumed", "", resumed).greedy_accuracy


def test_ages_add_up_and_a_step_taken_twice_counts_once():
    rows = train({"staleness_0": 4}, {"staleness_1": 4}, {"staleness": 1.5})
    rows.insert(2, rows[1] | {"staleness_1": 3, "staleness_12": 1})
    assert list(staleness_histogram({"train": rows}).items()) == [(0, 4), (1, 3), (12, 1)]
    more = train({f"staleness_{age}": 2 for age in range(20)})
    summaries = [summarise("", "", {"train": part}) for part in (rows, more)]
    (cells,) = [cells for label, cells in table_rows(summaries) if label.startswith("staleness")]
    assert cells == ["0: 50%, 1: 38%, 12: 12%", "9.5 (0–19)"]
