import json

import numpy as np
import pytest

from grre_jax.reporting.metrics import json_safe, read_metrics
from grre_jax.reporting.run_report import summarise, summary_cells


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
    }
    assert {name: summary[name] for name in expected} == pytest.approx(expected)
    assert summary["accuracy"][-1]["low"] == last["accuracy_low"]
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
    assert summarise("run", "", metrics)["accuracy"][-1]["value"] == 0.5
