"""From curves to verdicts, on made-up curves."""

import zlib

import numpy as np
import pytest

from grre_jax.studies import claims, claims_design, claims_report, claims_study, entrants, measures, statistics
from grre_jax.studies.claims import Claim, Comparison
from grre_jax.studies.runs import Entry, Ledger, Run


def curve(values):
    return {"accuracy": list(values), "kl": [0.0] * len(values), "length": [6.0] * len(values)}


def test_measures_read_a_curve():
    rising = curve(np.linspace(0.2, 1.0, 33))
    assert measures.early(rising) == pytest.approx(0.2 + 0.8 / 32 * 4.5)  # the mean of evaluations 1 to 8
    assert measures.final(rising) == pytest.approx(1.0 - 0.8 / 32 * 1.5)
    assert measures.drawdown(rising) == 0 and measures.collapsed(rising) == 0
    fallen = curve([0.4, 0.9, 0.9, 0.9, 0.9, 0.1, 0.1, 0.1, 0.6])
    assert measures.drawdown(fallen) == pytest.approx(8 / 9) and measures.collapsed(fallen) == 1
    assert measures.drawdown(curve([0.5, 0.5, 0.8, 0.5, 0.5, 0.5])) == pytest.approx(1 / 6)  # a lucky evaluation is no collapse


def test_an_interval_covers_as_often_as_it_says():
    draws = np.random.default_rng(1).normal(0.1, 0.05, (200, 8))
    found = [statistics.estimate(row) for row in draws]
    covered = np.mean([one.low <= 0.1 <= one.high for one in found])
    assert 0.92 < covered < 0.985
    assert found[0] == statistics.estimate(draws[0])
    with pytest.raises(ValueError, match="two seeds"):
        statistics.estimate(np.ones(1))


def test_the_visible_effect_is_found_four_times_in_five():
    random = np.random.default_rng(2)
    visible = statistics.VISIBLE * 0.05 / np.sqrt(10)
    found = [statistics.estimate(random.normal(visible, 0.05, 10)).low > 0 for _ in range(200)]
    assert 0.66 < np.mean(found) < 0.9


@pytest.mark.parametrize(
    ("relation", "low", "high", "expected"),
    [
        ("above", 0.06, 0.10, "holds"),
        ("above", 0.00, 0.04, "fails"),
        ("above", 0.00, 0.10, "open"),
        ("below", 0.00, 0.04, "holds"),
        ("below", 0.06, 0.10, "fails"),
        ("below", 0.00, 0.10, "open"),
        ("within", -0.04, 0.04, "holds"),
        ("within", 0.06, 0.10, "fails"),
        ("within", -0.10, -0.06, "fails"),
        ("within", 0.00, 0.10, "open"),
    ],
)
def test_outcomes_go_by_the_interval(relation, low, high, expected):
    comparison = Comparison("common", "sync 20", "mean", "a", relation, 0.05)
    assert claims.outcome(comparison, statistics.Estimate((low + high) / 2, low, high, 0.0, 5)) == expected


@pytest.mark.parametrize(
    ("outcomes", "expected"),
    [(["holds", "holds"], "reproduces"), (["holds", "fails", "open"], "does not"), (["holds", "open"], "inconclusive")],
)
def test_a_claim_is_a_conjunction(outcomes, expected):
    assert claims.verdict(outcomes) == expected


def test_differences_are_paired_over_seeds():
    claim = Claim("C0", "", (Comparison("common", "sync 20", "mean", "a", "above", 0.01, "b"),))
    common, noise = np.array([0.2, 0.9, 0.5, 0.1]), np.array([0.001, -0.001, 0.002, -0.002])
    values = {("common", "sync 20", "a", "mean"): common + 0.03 + noise, ("common", "sync 20", "b", "mean"): common}
    assert claims.judge(claim, values)["verdict"] == "reproduces"
    values["common", "sync 20", "a", "mean"] = values["common", "sync 20", "a", "mean"][::-1]
    assert claims.judge(claim, values)["verdict"] == "inconclusive"


@pytest.fixture
def full():
    return claims_design.full(3, 0, ())


def made_up(run: Run):
    """Curves in which clipping helps, and a rate of 1e-3 is best."""
    random = np.random.default_rng(zlib.crc32(run.cell.encode()))
    top = (0.6 if run.algorithm == entrants.REINFORCE else 0.9) - 0.2 * (run.learning_rate != 1e-3)
    return curve(np.linspace(0.35, top, 33) + 0.01 * random.normal(size=33))


def test_every_claim_is_judged_and_every_cell_shown(full, tmp_path):
    ledger = Ledger(tmp_path / "runs.jsonl")
    for run in full.first_runs():
        ledger.results[run.key] = made_up(run)
    chosen = full.chosen(ledger)
    assert {full.rates[chosen[cell]] for cell in full.cells() if cell[0] == "tuned"} == {1e-3}
    cells = full.judged_runs(chosen)
    for runs in cells.values():
        ledger.results |= {run.key: made_up(run) for run in runs}
    assert not {run.seed for runs in cells.values() for run in runs} & set(full.tuning)
    found = claims_study.results(full, cells, ledger)
    assert [claim["name"] for claim in found["claims"]] == [f"C{i}" for i in range(1, 8)]
    assert found["claims"][1]["verdict"] == "does not"  # no made-up run collapses, so REINFORCE does not either
    claims_report.write(tmp_path, full, cells, ledger, found)
    text = (tmp_path / "claims.md").read_text()
    assert all(entry.label in text for entry in entrants.ENTRIES) and "**0.001: " in text and "does not" in text
    assert all((tmp_path / name).read_bytes()[:4] == b"\x89PNG" for name in ("claims.png", "curves.png"))


def test_quick_judges_c2_by_the_comparisons_of_full(full):
    quick = claims_design.quick(3, 0, ())
    assert quick.judged[0].name == "C2" and quick.judged[0] == full.judged[1] and not quick.tuning
    assert all(len(quick.candidates(*cell, 0)) == 1 for cell in quick.cells())
    own = claims_design.quick(3, 0, (Entry("mine", "own.py:mine"),))
    assert {cell[1] for cell in own.cells() if cell[2] == "mine"} == set(claims.OFF_POLICY)
    assert {run.rpartition("; seed")[0] for run in (r.key for r in quick.first_runs())} <= {run.cell for run in full.first_runs()}
