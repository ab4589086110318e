import io
import json

import numpy as np
import pytest
from rich.console import Console

from grre_jax.reporting.metrics import json_safe, read_metrics
from grre_jax.reporting.summary import print_evaluations, summarise, summary_cells


def test_readings_of_a_run(make_run):
    metrics = read_metrics(make_run("run", not_finite=(7,)))
    summary = summarise("run", "folder", metrics)
    rewards, last = [row["reward"] for row in metrics["train"]], metrics["eval"][-1]
    expected = {
        "steps": 80,
        "tokens": 8000,
        "not_finite_steps": 1,
        "reward_first": np.mean(rewards[:8]),
        "reward_last": np.mean(rewards[-8:]),
        "kl_to_start": 0.3,
        "wall_seconds": last["elapsed"],
    }
    assert {name: summary[name] for name in expected} == pytest.approx(expected)
    assert summary["accuracy"][-1].low == last["accuracy_low"]
    json.dumps(json_safe(summary), allow_nan=False)


def test_a_reward_that_is_not_an_accuracy():
    """An accuracy that one evaluation lacks is not that of the run."""
    first = {"step": 0, "kind": "eval", "reward": -0.5, "reward_low": -0.6, "reward_high": -0.4}
    last = first | {"step": 20, "reward": 1.5, "reward_low": 1.4, "reward_high": 1.6}
    metrics = {"eval": [first | {"accuracy": 0.0}, last]}
    summary = summarise("run", "", metrics)
    assert not summary["accuracy"]
    assert summary_cells(summary)["reward, last"] == "1.5 (1.4 to 1.6), step 20"
    last["accuracy"] = 0.5
    assert summarise("run", "", metrics)["accuracy"][-1].value == 0.5


def test_ages_add_up_and_a_step_taken_twice_counts_once():
    rows = [{"step": 1, "staleness_0": 4}, {"step": 2, "staleness_1": 4}]
    rows += [rows[1] | {"staleness_1": 3, "staleness_12": 1}]
    rows += [{"step": 3, "staleness": 1.5, "staleness_2_3": 1.0}]
    summary = summarise("", "", {"train": rows})
    assert list(summary["staleness"].items()) == [(0, 4), (1, 3), (12, 1)]
    assert summary_cells(summary)["staleness (updates)"] == "1.9 (0 to 12)"


def test_an_age_without_a_group_is_none():
    """Every row has the shares of tokens of age 0 and 1, under the names of groups of that age."""
    rows = [{"step": step, "staleness_0": 4, "staleness_1": 0.0} for step in (1, 2)]
    summary = summarise("", "", {"train": rows})
    assert summary["staleness"] == {0: 8}
    assert summary_cells(summary)["staleness (updates)"] == "0.0 (0 to 0)"


def test_two_policies_are_printed_side_by_side():
    share = {"value": 0.5, "low": 0.25, "high": 0.75}
    row = {"accuracy": 0.25, "accuracy_low": 0.2, "accuracy_high": 0.3, "pass_at_k": {"2": share}}
    row |= {"component_x": 0.5, "left_out": {"maj_at_k": "no answers"}}
    out = io.StringIO()
    policies = {"first": (0, row), "last": (1200, row | {"greedy_accuracy": 1.0})}
    print_evaluations(policies, Console(file=out, width=150))
    lines = [line.split("│")[1:-1] for line in out.getvalue().splitlines() if "│" in line]
    rows = {name.strip(): [cell.strip() for cell in cells] for name, *cells in lines}
    assert "first, step 0" in out.getvalue() and "last, step 1,200" in out.getvalue()
    assert rows["accuracy"] == ["25.0% (20.0% to 30.0%)"] * 2
    assert rows["pass@2"] == ["50.0% (25.0% to 75.0%)"] * 2
    assert rows["component x"] == ["0.5"] * 2 and rows["greedy accuracy"] == ["–", "100.0%"]
    assert out.getvalue().count("maj@k is left out: no answers") == 1
