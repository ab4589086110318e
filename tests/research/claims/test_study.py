"""From curves to differences and verdicts, on made-up curves and on the published runs."""

import dataclasses
import re
import subprocess
import sys
import zlib

import numpy as np
import pytest

from grre_jax.console import make_console
from research import curve_statistics, entrants, statistics
from research.claims import claims as designs, pages, report, study
from research.claims.analysis import Results, verdict
from research.claims.claims import CLAIMS, COMMON, OFFSET, SYNC
from research.in_graph.batch import Scale
from research.runs import Ledger
from tests.research.tiny import TINY


def curve(greedy, sampled=None):
    sampled = greedy if sampled is None else sampled
    return {"greedy_accuracy": list(greedy), "accuracy": list(sampled), "pass_at_8": [0.5, 0.5]}


def test_curve_statistics():
    rising = curve(np.linspace(0.2, 1.0, 33), np.full(33, 0.5))
    early = 0.2 + 0.8 / 32 * 4.5  # the mean of evaluations 1 to 8
    assert curve_statistics.early(rising, "greedy") == pytest.approx(early)
    assert curve_statistics.early(rising) == 0.5
    assert curve_statistics.final(rising, "greedy") == pytest.approx(1.0 - 0.8 / 32 * 1.5)
    assert curve_statistics.drawdown(rising, "greedy") == 0
    lucky = curve([*[0.5] * 10, 0.8, *[0.5] * 14])
    assert curve_statistics.drawdown(lucky) == pytest.approx(1 / 6)  # no collapse
    few = curve([0.119, 0.3, 0.71, 0.5, 0.2])  # too few to average: the loss shows
    assert curve_statistics.drawdown(few) == pytest.approx(1 - 0.2 / 0.71)


def test_intervals_are_those_of_the_t_test():
    from scipy import stats  # slow to import: here for one process of the suite alone

    values = np.random.default_rng(1).normal(0.1, 0.05, 8)
    found = statistics.estimate(values)
    interval = stats.ttest_1samp(values, 0).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high))
    for wrong in (np.ones(1), np.array([0.0, np.nan])):
        with pytest.raises(ValueError, match=r"seeds|finite"):
            statistics.estimate(wrong)


def made_up(run):
    """Curves with known effects: the wide range leads early; REINFORCE, its data not fresh,
    collapses at the common rate and not at half of it, where it ends lower; importance weights cost
    0.2 at offset 10.
    """
    random = np.random.default_rng([1, zlib.crc32(run.key.encode())])
    octave = np.log2(run.learning_rate / 2.5e-4)
    weights = run.algorithm == entrants.IS and run.regime.sync_offset == 10
    values = np.linspace(0.2, 0.9 - 0.1 * abs(octave) - 0.2 * weights, 13)
    values[1:4] += 0.15 * ("(.6, 2)" in run.algorithm)
    values = np.maximum.accumulate(values)
    falls = run.algorithm == entrants.REINFORCE and run.regime != designs.REGIMES["on-policy"]
    values[7:] -= 0.6 * values[7:] * (falls and octave >= 0)
    noisy = values + 0.004 * random.normal(size=13)
    return curve(noisy, 0.9 * noisy)


@pytest.fixture(scope="module")
def results():
    runs = designs.full(Scale(), 18, 300, ()).runs()
    return Results([{"run": dataclasses.asdict(run), "result": made_up(run)} for run in runs])


def test_known_effects_give_the_known_verdicts(results):
    """C1 holds at sync 20 and not at offset 10; every clipped algorithm is above REINFORCE; on-policy none is ahead."""
    by_name = {claim.name: claim for claim in CLAIMS}
    found = {
        (name, at): verdict(by_name[name], report.differences(by_name[name], results, at))
        for name in ("C1", "C2", "C3", "C5")
        for at in ("common", "own")
    }
    assert found["C1", "common"] == found["C5", "common"] == "mixed"
    assert found["C2", "common"] == found["C3", "common"] == "supported"
    assert found["C2", "own"] == "mixed"  # it ends lower and loses no more
    one = results.difference(SYNC, entrants.NARROW, entrants.REINFORCE, "final", "own")
    assert one.rates == ((2.5e-4,), (1.25e-4,)) and one.collapsed == (0, 0)
    assert one.values["greedy"].mean == pytest.approx(0.1 * 10.5 / 12, abs=0.01)
    one = results.difference(SYNC, entrants.NARROW, entrants.REINFORCE, "final", "common")
    assert one.rates == ((2.5e-4,), (2.5e-4,)) and one.collapsed == (0, 18) and one.seeds == 18


def test_no_run_takes_part_in_the_choice_of_its_rate(results):
    """One half of the seeds likes another rate: the other half is counted there."""
    label = entrants.REINFORCE
    changed = Results([])
    changed.cells = {cell: dict(runs) for cell, runs in results.cells.items()}
    seeds = changed.paired(OFFSET, (label,), "own")
    for seed in seeds[::2]:
        changed.cells[OFFSET, label, 5e-4][seed] = curve(np.ones(13))
    rates = changed.chosen(OFFSET, label, "own", seeds)
    assert {rates[seed] for seed in seeds[::2]} == {1.25e-4}
    assert {rates[seed] for seed in seeds[1::2]} == {5e-4}


def test_tables_of_the_pages_are_those_of_the_published_runs():
    for name in pages.PAGES:
        text = (pages.ROOT / name).read_text(encoding="utf-8")
        assert pages.fresh(text) == text


def test_an_outsider_computes_the_same_differences():
    """Of NumPy alone, both choices of rates and both accuracies."""
    script = pages.ROOT / "research" / "claims" / "by_hand.py"
    file = pages.ROOT / "research" / "results" / "claims" / "arithmetic" / "runs.jsonl"
    found = Results.read(file)
    for claim in CLAIMS:
        first, second = claim.pairs[-1]
        words = [sys.executable, str(script), str(file), first, second, claim.measure]
        lines = subprocess.run(words, capture_output=True, text=True, check=True).stdout
        printed = re.findall(r"[+-]\d\.\d{3} \([+-]\d\.\d{3} to [+-]\d\.\d{3}\)", lines)
        for regime in claim.regimes:
            for at in ("common", "own"):
                one = found.difference(regime, first, second, claim.measure, at)
                for value in one.values.values():
                    shown = f"{value.mean:+.3f} ({value.low:+.3f} to {value.high:+.3f})"
                    assert shown in printed, (claim.name, regime, at)


@pytest.mark.slow
def test_a_study_of_four_runs_end_to_end(tmp_path):
    """Two algorithms with two seeds: of the real runner's curves, and nothing is done again."""
    cells = tuple((SYNC, label, COMMON[SYNC]) for label in (entrants.REINFORCE, entrants.NARROW))
    design = designs.Design(TINY, cells, (300, 301), steps=4)
    folder = tmp_path / "study"
    given = (design, folder, 1, make_console(quiet=True), 1.0)
    found = study.complete(*given)
    lines = (folder / "runs.jsonl").read_text()
    assert len(lines.splitlines()) == 4
    one = found.difference(SYNC, entrants.NARROW, entrants.REINFORCE, "final", "common")
    ledger = Ledger(folder / "runs.jsonl")
    reinforce, narrow = (
        np.mean(
            [
                curve_statistics.final(ledger[design.run(cell, seed)], "greedy")
                for seed in (300, 301)
            ]
        )
        for cell in cells
    )
    assert one.values["greedy"].mean == pytest.approx(narrow - reinforce, abs=1e-4)
    study.complete(*given)
    assert (folder / "runs.jsonl").read_text() == lines
    assert (folder / "c2.png").read_bytes()[:4] == b"\x89PNG"
    assert f"| {entrants.NARROW} | 2.5e-4 |" in (folder / "claims.md").read_text()
