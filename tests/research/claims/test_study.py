"""From curves to verdicts, on made-up curves."""

import dataclasses
import json
import zlib
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from grre_jax.console import make_console
from grre_jax.errors import DataError, UsageError
from research import curve_statistics, entrants, report_parts, statistics
from research.claims import claims, judging
from research.claims import design as claims_design
from research.claims import report as claims_report
from research.claims import study as claims_study
from research.claims.claims import CLAIMS, Comparison
from research.in_graph import campaign as in_graph_campaign
from research.in_graph.batch import Scale
from research.runs import Entry, Ledger
from tests.research.claims.again import verdicts_again
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


@pytest.mark.parametrize(
    ("drawdowns", "expected"),
    [([0.1, 0.2, 0.9], 2), ([0.1, 0.9, 0.1], 1), ([0.9, 0, 0], 0), ([0, 0, 0.5], 3)],
)
def test_stable_rates_are_those_below_the_first_collapse(drawdowns, expected):
    assert curve_statistics.stable_rates(drawdowns) == expected


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


def test_holm_is_the_adjusted_chances_against_the_level():
    """Holm, 1979, by adjusted chances: the running maximum of (m - j) times the j-th smallest."""
    random = np.random.default_rng(3)
    for _ in range(200):
        chances = random.choice([1e-4, 0.004, 0.006, 0.012, 0.02, 0.3], random.integers(1, 8))
        order = np.argsort(chances, kind="stable")
        factors = chances.size - np.arange(chances.size)
        adjusted = np.empty(chances.size)
        adjusted[order] = np.maximum.accumulate(factors * chances[order])
        assert statistics.holm(list(chances)) == list(adjusted <= statistics.SIDE)


@pytest.mark.parametrize(("count", "level"), [(4, 0.025), (8, 0.025 / 6)])
def test_the_visible_distance_is_found_four_times_in_five(count, level):
    distance = statistics.visible(0.05, count, level)
    draws = np.random.default_rng(2).normal(distance, 0.05, (20_000, count))
    chances = stats.ttest_1samp(draws, 0.0, axis=1, alternative="greater").pvalue
    assert (chances <= level).mean() == pytest.approx(0.8, abs=0.01)


# ---- comparisons and verdicts

NOISE = np.array([0.02, -0.02, 0.01, -0.01, 0.005, -0.005, 0.015, -0.015])


@pytest.mark.parametrize(
    ("relation", "threshold", "mean", "ends", "expected"),
    [
        ("above", 0.05, 0.1, 0.5, "holds"),
        ("above", 0.05, 0.0, 0.5, "fails"),
        ("above", 0.05, 0.05, 0.5, "open"),
        ("within", 0.04, 0.0, 0.5, "holds"),
        ("within", 0.04, 0.1, 0.5, "fails"),
        ("within", 0.04, -0.1, 0.5, "fails"),
        ("within", 0.04, 0.035, 0.5, "open"),
        ("beats", 0.0, 0.0, 0.5, "open"),
        ("beats", 0.0, 0.0, 0.99, "holds"),  # at the ceiling no lead is asked for
        ("beats", 0.0, -0.03, 0.5, "fails"),
    ],
)
def test_outcomes_go_by_the_test_on_either_side(relation, threshold, mean, ends, expected):
    comparison = Comparison("sync 20", "final", "a", "b", "own", relation, threshold)
    sides = np.full(8, ends), np.full(8, ends)
    _, holds, fails = judging.chances(comparison, mean + NOISE, sides)
    found = "holds" if holds <= 0.025 else "fails" if fails <= 0.025 else "open"
    assert found == expected


def test_a_difference_outside_on_either_side_counts_twice():
    comparison = Comparison("sync 20", "mean", "a", "b", "same", "within", 0.04)
    for sign in (1, -1):
        _, holds, fails = judging.chances(comparison, sign * (0.05 + NOISE), ())
        assert fails == pytest.approx(2 * stats.ttest_1samp(NOISE + 0.01, 0).pvalue / 2)
        assert holds == pytest.approx(1 - fails / 2)


@pytest.mark.parametrize(
    ("outcomes", "expected"),
    [
        (["holds", "holds", "not asked"], "reproduces"),
        (["holds", "fails", "open"], "in part"),
        (["fails", "open"], "does not"),
        (["holds", "open"], "open"),
        (["not asked"], "not asked"),
    ],
)
def test_a_verdict_is_graded(outcomes, expected):
    assert judging.verdict(outcomes) == expected


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
    one_pass, finite = (
        next(
            row["greedy"]["outcome"]
            for row in found["claims"][3]["core"]
            if (row["regime"], row["measure"]) == (regime, "drawdown")
        )
        for regime in claims.OFFLINE
    )
    assert (one_pass, finite) == ("fails", "holds")
    best = {(row["regime"], row["algorithm"]): row["best"] for row in found["tuning"]}
    assert best["on-policy", entrants.REINFORCE] == 2.5e-4 == best["sync 20", entrants.NARROW]
    assert best["sync 20", entrants.REINFORCE] == 1.25e-4
    weights = [row for row in found["claims"][0]["core"] if row["label"] == entrants.NARROW]
    assert [row["greedy"]["mean"] for row in weights] == pytest.approx([0.0, 0.1], abs=0.01)
    # By the tuning seeds, at each rate: REINFORCE falls from the third on.
    (lost,) = (row for row in found["claims"][5]["core"] if row["text"] == FALLS)
    assert [lost["by_rate"][f"{rate:g}"]["greedy"][0] > 0.25 for rate in claims_design.RATES] == [
        *[False] * 2,
        *[True] * 4,
    ]
    text = claims_report.tables(found)
    assert "| 0.000125 (0.000125 to 0.000125) of 3 |" in text  # REINFORCE's largest stable rate
    assert "| 0.002 (0.002 to 0.002) of 3 |" in text


def test_verdicts_are_recomputed_from_the_file_alone(found):
    stored = json.loads(report_parts.as_json(found), parse_constant=pytest.fail)
    for name in ("claims", "claims_again"):
        told = {
            (claim["name"], kind): (
                claim["verdict"][kind],
                [row[kind]["outcome"] for row in claim["core"]],
            )
            for claim in stored[name]
            for kind in ("greedy", "sampled")
        }
        assert told == verdicts_again(stored, name)
    text = claims_report.tables(stored)
    assert all(entry.label in text for entry in (*entrants.ENTRIES, *entrants.WEIGHTED))
    assert "| greedy accuracy | 0.200 | 0.200 | 0.200 |" in text
    assert f"| {entrants.REINFORCE} | 0.000125 | 0.7" in text and "| 0/6 | 0.7" in text


def test_an_extension_decides_no_verdict(full, found):
    table = judging.Table(found["cells"], full.rates, full.tuning)
    (claim,) = (claim for claim in CLAIMS if claim.name == "C3")
    wrong = dataclasses.replace(claim.core[0], relation="within", threshold=0.001, measure="early")
    judged = judging.judge(table, dataclasses.replace(claim, extensions=(wrong,)), full.seeds)
    assert judged["extensions"][0]["greedy"]["outcome"] == "fails"
    assert judged["verdict"]["greedy"] == "reproduces"
    silent = judging.judge(table, claim, full.seeds, [one.text for one in claim.core])
    assert silent["verdict"] == {"greedy": "not asked", "sampled": "not asked"}
    assert silent["core"][0]["greedy"]["mean"] > 0.1  # measured all the same


def test_tuning_and_power_know_the_tuning_seeds_alone(full, found):
    """Whatever the judged runs give, the design is the same; and a spread that the seeds cannot
    see through is not asked about.
    """
    tuning = [
        {**cell, "seeds": cell["seeds"][-3:]}
        | {"greedy": {name: values[-3:] for name, values in cell["greedy"].items()}}
        | {"sampled": dict.fromkeys(cell["sampled"], [0.0] * 3)}  # they go by greedy accuracy
        for cell in found["cells"]
    ]
    table = judging.Table(tuning, full.rates, full.tuning)
    assert judging.tuned(table) == found["tuning"]
    assert judging.power(table, CLAIMS, 6) == found["power"]
    assert all(row["asked"] for row in found["power"])
    row = next(row for row in found["power"] if row["claim"] == "C2")
    core = CLAIMS[1].core
    differences = [table.difference(one, table.points(one), "greedy", full.tuning) for one in core]
    pooled = np.sqrt(np.mean([np.var(one, ddof=1) for one in differences]))
    assert row["pooled"] == pytest.approx(pooled, abs=1e-6)
    expected = statistics.visible(pooled, 6, 0.025 / len(core))
    assert row["visible"] == pytest.approx(expected, abs=1e-5)
    for cell in tuning:
        cell["greedy"]["mean"] = [0.1, 0.5, 0.9] if cell["algorithm"] == entrants.IS else [0.5] * 3
    wide = judging.power(judging.Table(tuning, full.rates, full.tuning), CLAIMS[:1], 6)
    assert [row["asked"] for row in wide[:4]] == [False] * 4  # pooled over the four


def test_a_design_is_fixed_before_the_judged_runs(found, tmp_path):
    path = tmp_path / "design.json"
    described = {"seeds": [1, 2], "power": [{"asked": True}]}
    assert claims_study.fix(path, described) == claims_study.fix(path, described)
    with pytest.raises(UsageError, match=r"differs in seeds"):
        claims_study.fix(path, described | {"seeds": [1, 2, 3]})
    path.write_text("{")
    with pytest.raises(DataError, match="design.json cannot be read"):
        claims_study.fix(path, described)


# ---- the design


def test_the_cores_are_the_papers_comparisons(full):
    regimes = {claim.name: {one.regime for one in claim.core} for claim in CLAIMS}
    assert regimes["C4"] == {"one pass", "finite"} and "4 updates a batch" not in regimes["C3"]
    assert regimes["C5"] == {"on-policy", "sync 20", "offset 10"}
    for claim in CLAIMS:
        assert len({one.text for one in (*claim.core, *claim.extensions)}) == len(claim.core) + len(
            claim.extensions
        )
    points = {
        one.at for name in ("C5", "C6") for one in _claim(name).core if one.measure == "final"
    }
    assert points == {"own"}  # tuned against tuned
    beats = {one.relation for one in _claim("C5").core}
    assert beats == {"beats"}  # at the ceiling no lead is asked for
    labels = {label for _, label in full.cells}
    assert labels >= {entry.label for entry in (*entrants.ENTRIES, *entrants.WEIGHTED)}


def _claim(name):
    return next(claim for claim in CLAIMS if claim.name == name)


def test_seeds_of_tuning_and_of_both_sets_are_apart(full):
    sets = (set(full.seeds), set(full.again), set(full.tuning))
    assert sum(map(len, sets)) == len(set.union(*sets)) == 13
    assert {run.seed for run in full.tuning_runs()} == sets[2]
    assert len(full.rates) == 6 and np.diff(np.log2(full.rates)) == pytest.approx(np.ones(5))


def test_the_cost_is_stated_before_the_runs():
    """By the seconds that the runner's header goes by, on two cores."""
    sizes = claims_design.SEEDS, claims_design.AGAIN, 300, ()
    judged = claims_design.full(Scale(), *sizes, [claim.name for claim in CLAIMS])
    second = Scale(task_name="precedence")
    other = claims_design.full(second, *sizes, claims_design.SECOND_CLAIMS)
    assert {regime for regime, _ in other.core} == {"sync 20"}
    quick = claims_design.quick(Scale(), claims_study.QUICK_SEEDS, 300, ())

    def hours(design):
        starts = len(design.seeds) + len(design.again) + len(design.tuning)
        run = design.steps * in_graph_campaign.STEP
        return (design.most_runs * run + starts * in_graph_campaign.WARM) / 2 / 3600

    assert hours(judged) + hours(other) < 6.5
    minutes = 60 * hours(quick) + in_graph_campaign.COMPILE / 60
    assert minutes < 4
    each = judged.steps * in_graph_campaign.STEP
    told = (
        f"{len(judged.tuning_runs())} runs of {judged.steps} steps for tuning,"
        f" and {judged.most_runs} in all at most",
        f"at most {other.most_runs}. At {each:.1f} s of a core a run and"
        f" {in_graph_campaign.WARM:g} s a warm start, the two take {hours(judged):.1f} and"
        f" {hours(other):.1f} hours",
        f"`--quick` has {quick.most_runs} runs of half the length, {minutes:.0f} minutes",
        f"come round again, {judged.steps // claims_design.STORED} times each",
    )
    page = " ".join((Path(__file__).parents[3] / "docs" / "studies.md").read_text().split())
    assert [one for one in told if one not in page] == []
    assert {one.text for one in quick.claims[0].core} <= {one.text for one in CLAIMS[1].core}
    assert set(quick.rates) < set(judged.rates) and quick.tuning[0] in judged.tuning


def test_a_stranger_is_run_wherever_the_cores_are():
    own = claims_design.full(Scale(), 2, 0, 300, (Entry("mine", "own.py:mine"),), ("C2",))
    assert {cell for cell in own.core if cell[1] == "mine"} == {
        ("sync 20", "mine"),
        ("offset 10", "mine"),
    }


@pytest.mark.parametrize(
    ("options", "message"),
    [({"claims": ("C9",)}, "--claim C9"), ({"again": 1}, "--again 1"), ({"seeds": 1}, "--seeds 1")],
)
def test_wrong_options_are_refused_by_name(tmp_path, options, message):
    with pytest.raises(UsageError, match=message):
        claims_study.run(tmp_path / "study", **options)
    assert not (tmp_path / "study").exists()


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
