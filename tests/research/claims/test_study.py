"""From curves to verdicts, on made-up curves."""

import dataclasses
import json
import zlib

import numpy as np
import pytest
from scipy import stats

from grre_jax.console import make_console
from grre_jax.errors import UsageError
from research import curve_statistics, entrants, statistics
from research.claims import design as claims_design
from research.claims import report as claims_report
from research.claims import study as claims_study
from research.claims.claims import CLAIMS
from research.in_graph.batch import Scale
from research.runs import Ledger
from tests.research.tiny import TINY


def curve(greedy, sampled=None):
    sampled = greedy if sampled is None else sampled
    length = {"kl": [0.0] * len(greedy), "length": [6.0] * len(greedy)}
    return {"greedy_accuracy": list(greedy), "accuracy": list(sampled)} | length


# ---- statistics


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


def test_intervals_and_chances_are_those_of_the_t_test():
    values = np.random.default_rng(1).normal(0.1, 0.05, 8)
    found, test = statistics.estimate(values), stats.ttest_1samp(values, 0.05)
    interval = stats.ttest_1samp(values, 0).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high))
    above = stats.ttest_1samp(values, 0.05, alternative="greater").pvalue
    assert statistics.chance(values, 0.05) == pytest.approx(above)
    assert test.pvalue == pytest.approx(2 * min(above, 1 - above))
    equal = np.ones(8)  # no error to go by: the sign-flip test's smallest
    assert (statistics.chance(equal, 0.5), statistics.chance(equal, 1.0)) == (2**-8, 1.0)
    for wrong, message in ((np.ones(1), "two seeds"), (np.array([0.0, np.nan]), "finite")):
        with pytest.raises(ValueError, match=message):
            statistics.estimate(wrong)


# ---- comparisons and verdicts


@pytest.fixture(scope="module")
def full():
    return claims_design.full(Scale(), 6, 4, 300, (), [claim.name for claim in CLAIMS])


def made_up(run):
    """Curves with known effects: the wide range leads early; REINFORCE, its data not fresh,
    collapses from the third rate on, the wide range does on a finite set; every rate is an octave
    from the best, 2.5e-4, by 0.1; importance weights cost 0.2 at offset 10.
    """
    random = np.random.default_rng([1, zlib.crc32(run.key.encode())])
    octave = np.log2(run.learning_rate / 2.5e-4)
    weights = run.algorithm == entrants.IS and run.regime.sync_offset == 10
    values = np.linspace(0.2, 0.9 - 0.1 * abs(octave) - 0.2 * weights, 33)
    values[1:10] += 0.15 * ("(.6, 2)" in run.algorithm)
    values = np.maximum.accumulate(values)
    stale = run.regime != claims_design.REGIMES["on-policy"]
    falls = run.algorithm == entrants.REINFORCE and stale
    falls |= run.algorithm == entrants.WIDE and run.stored > 0
    values[25:] -= 0.6 * values[25:] * (falls and octave >= 0)
    noisy = values + 0.004 * random.normal(size=33)
    return curve(noisy, 0.9 * noisy)


def study(design, ledger):
    """The content of verdicts.json of made-up runs."""
    for run in design.tuning_runs():
        ledger.results[run.key] = made_up(run)
    fixed = json.loads(json.dumps(design.described(design.table(ledger))))
    for run in design.judged_runs(design.table(ledger)):
        ledger.results[run.key] = made_up(run)
    assert len(ledger.results) <= design.most_runs
    about = {"version": "0", "random_streams": 2, "machines": ["a machine"], "runs": 3}
    starts = [{"greedy_accuracy": 0.2, "accuracy": 0.25, "pass_at_8": 0.6}]
    return about | {"starts": starts} | claims_study.results(design, fixed, design.table(ledger))


@pytest.fixture(scope="module")
def found(full, tmp_path_factory):
    return study(full, Ledger(tmp_path_factory.mktemp("study") / "runs.jsonl"))


FALLS = (
    f"drawdown of {entrants.REINFORCE} - {entrants.OPMD}, sync 20, both at the best rate of the"
    " second: > 0.25"
)


def test_known_effects_give_the_known_verdicts(found):
    """C1 holds at sync 20 and fails at offset 10; nobody beats anybody, so C5 is open; stale
    REINFORCE collapses, and where its best rate is smaller, it ends lower.
    """
    verdicts = {claim["name"]: claim["verdict"] for claim in found["claims"]}
    assert {name: one["greedy"] for name, one in verdicts.items()} == {
        "C1": "in part",
        "C2": "reproduces",
        "C3": "reproduces",
        "C4": "in part",
        "C5": "open",
        "C6": "reproduces",
        "C7": "reproduces",
    }
    best = {(row["regime"], row["algorithm"]): row["best"] for row in found["tuning"]}
    assert best["on-policy", entrants.REINFORCE] == 2.5e-4 == best["sync 20", entrants.NARROW]
    assert best["sync 20", entrants.REINFORCE] == 1.25e-4
    # By the tuning seeds, at each rate: REINFORCE falls from the third on.
    (lost,) = (row for row in found["claims"][5]["core"] if row["text"] == FALLS)
    assert [lost["by_rate"][f"{rate:g}"]["greedy"][0] > 0.25 for rate in claims_design.RATES] == [
        *[False] * 2,
        *[True] * 4,
    ]
    text = claims_report.tables(found)
    assert "| 0.000125 (0.000125 to 0.000125) of 3 |" in text  # REINFORCE's largest stable rate
    assert "| 0.002 (0.002 to 0.002) of 3 |" in text


# ---- the design


def test_a_study_of_six_runs_end_to_end(tmp_path):
    """Two algorithms with one seed of tuning and two that are judged: of the real runner's curves,
    and nothing is done again.
    """
    quick = claims_design.quick(TINY, 2, 300, ())
    claim = dataclasses.replace(quick.claims[0], extensions=())
    design = dataclasses.replace(quick, claims=(claim,), rates=(1e-3,), steps=4)
    given = (design, tmp_path / "study", 1, make_console(quiet=True), 1.0)
    found = claims_study.complete(*given)
    runs = tmp_path / "study" / "runs.jsonl"
    assert len(runs.read_text().splitlines()) == found["runs"] == 6 <= design.most_runs
    (row,) = found["claims"][0]["core"]
    ledger = Ledger(runs)
    lost = [
        [
            curve_statistics.drawdown(ledger[design.run("sync 20", one, 1e-3, seed)], "greedy")
            for seed in design.seeds
        ]
        for one in (entrants.REINFORCE, entrants.NARROW)
    ]
    assert row["greedy"]["mean"] == pytest.approx(np.subtract(*lost).mean(), abs=1e-4)
    assert [start["seed"] for start in found["starts"]] == [300, 301, 20300]
    again = claims_study.complete(*given)
    assert again == found and len(runs.read_text().splitlines()) == 6
    for name in ("claims.png", "rates.png"):
        assert (tmp_path / "study" / name).read_bytes()[:4] == b"\x89PNG"
    text = (tmp_path / "study" / "claims.md").read_text()
    assert "Seeds 300 to 301; no second set; tuning by seeds 20300 to 20300" in text
    with pytest.raises(UsageError, match="differs in seeds"):
        claims_study.complete(dataclasses.replace(design, seeds=(300, 301, 302)), *given[1:])
