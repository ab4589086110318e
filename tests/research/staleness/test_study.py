"""The benchmark's scores, tables and heat maps, on made-up curves."""

import numpy as np
import pytest

from research.entrants import ENTRIES
from research.in_graph.batch import Scale
from research.runs import Ledger
from research.staleness import report as staleness_report, study as staleness_study
from research.staleness.study import Grid

GRID = Grid(Scale(), ENTRIES[:2], ("sync 1, offset 0", "offline"), (0, 1, 2, 3, 4))


def curve(end, top=0.9):
    greedy = np.array([0.4, *np.linspace(0.4, top, 12), *[end] * 12])
    return {"greedy_accuracy": list(greedy), "accuracy": list(greedy - 0.1)}


@pytest.fixture
def ledger(tmp_path):
    """GRPO collapses offline whatever the seed; REINFORCE ends at 0.8 plus 0.01 a seed."""
    ledger = Ledger(tmp_path / "runs.jsonl")
    for label, regime in GRID.cells:
        for seed in GRID.seeds:
            down = label == "GRPO" and regime == "offline"
            ledger.results[GRID.run(label, regime, seed).key] = curve(
                0.1 if down else 0.8 + 0.01 * seed
            )
    return ledger


def test_the_ranking_is_over_seeds(ledger, tmp_path):
    found = staleness_study.results(GRID, ledger, ["a machine"])
    assert [row["algorithm"] for row in found["ranking"]] == ["REINFORCE", "GRPO"]
    assert (
        found["ranking"][0]["mean"] == pytest.approx(0.82)
        and found["ranking"][0]["low"] < 0.82 < found["ranking"][0]["high"]
    )
    assert found["ranking"][1]["mean"] == pytest.approx((0.82 + 0.1) / 2)
    # Seeds pair: with every one REINFORCE is (0.8 + 0.01 seed - 0.1) / 2 ahead, and the mean of it
    # is its lead.
    behind = [row["behind"] for row in found["ranking"]]
    assert behind[0]["low"] == behind[0]["high"] == 0.0
    assert (
        behind[1]["mean"] == pytest.approx(0.36)
        and 0.34 < behind[1]["low"] < 0.36 < behind[1]["high"] < 0.38
    )
    staleness_report.write(tmp_path, found)
    assert (tmp_path / "staleness.png").read_bytes()[:4] == b"\x89PNG"
