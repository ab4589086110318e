"""The three-arm bandit: every figure known in advance, what must hold of any algorithm, and the
flow on fields whose ends are known.
"""

import functools
import json
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console

from grre_jax import objectives
from research.bandit import cases as bandit
from research.bandit import flow
from research.bandit import report as bandit_report
from research.bandit import study as bandit_study

DOCS = Path(__file__).parents[3] / "docs" / "bandit.md"
BEHAVIOR, REWARDS = np.array(bandit.BEHAVIOR), np.array(bandit.REWARDS)
PULL = BEHAVIOR * (
    REWARDS - BEHAVIOR @ REWARDS
)  # (-.174, .132, .042): what plain REINFORCE adds to the logits


# One of every kind of end, and what is walked to another way. All others are slow.
KNOWN = ("reinforce", "rec_oneside_nois", "red_drop", "asymre", "opmd", bandit.SURROGATE)
KNOWN += ("red_weight", "raft", "ipo", "pass_at_k", "grpo", "gvpo", "rec_ring_is")


@pytest.fixture(
    scope="module", params=[KNOWN, pytest.param(None, marks=pytest.mark.slow)], ids=["known", "all"]
)
def study(request, tmp_path_factory):
    """The study, once: (label to result, what was printed, the folder)."""
    folder = tmp_path_factory.mktemp("bandit")
    console = Console(width=200, record=True, file=open(folder / "printed.txt", "w"))
    results = bandit_report.run(folder, names=request.param, console=console)
    return {result.case.label: result for result in results}, console.export_text(), folder


def expected_update(case):
    """The update on a group whose proportions are those of the behaviour policy."""
    arms = jnp.repeat(jnp.arange(3), jnp.array(bandit.COUNTS), total_repeat_length=10)
    return lambda numbers, logits: bandit.update(case)(numbers, logits, arms, jax.random.key(0))


def end(study, label):
    return study[0][label].end


def sweep(study, label, number):
    (found,) = [one for one in study[0][label].sweeps if one.number == number]
    return found


def threshold(study, label, number):
    """The one value of the number below which, from the sweep's smallest, arm 3 leads."""
    ((low, high),) = sweep(study, label, number).best_leads
    assert low == sweep(study, label, number).values[0]
    return high


# ---- figures known in advance


def test_reinforce_and_red_drop_end_at_arm_2(study):
    for name in ("reinforce", "red_drop"):
        result = study[0][name]
        assert all(end[1] > 1 - 1e-6 for end in result.ends.values()) and result.agree
        assert bandit_report.ending(result) == "corner"


def test_the_narrow_range_stops_where_every_arm_is_masked(study):
    result = study[0]["rec_oneside_nois"]
    np.testing.assert_allclose(result.end, (0.16, 0.72, 0.12), atol=2e-4)
    assert result.how["behavior"] == "no gradient" and not result.agree


def test_the_wide_range_creeps_to_an_edge(study):
    """The limit is (0, .76, .24).

    Arm 1 is masked and leaves like 1/time, so that plain gradient steps are long seen at (.02, .75,
    .23).
    """
    np.testing.assert_allclose(
        end(study, "rec_oneside_nois epsilon_low=0.6 epsilon_high=2"),
        (0, *PULL[1:] / PULL[1:].sum()),
        atol=1e-4,
    )
    with jax.enable_x64(True):
        pull = functools.partial(
            expected_update(bandit.cases(["rec_oneside_nois"])[1]),
            {"epsilon_low": 0.6, "epsilon_high": 2.0},
        )
        logits = jax.lax.fori_loop(
            0, 160, lambda _, logits: logits + pull(logits), jnp.log(jnp.array(bandit.BEHAVIOR))
        )
        policy = np.asarray(jax.nn.softmax(logits))
    np.testing.assert_allclose(policy, (0.02, 0.75, 0.23), atol=0.006)


def test_asymre(study):
    """Arm 2 leads for every beta; behaviour + pull / beta where that is inside."""
    found = sweep(study, "asymre", "beta")
    assert found.best_leads == () and np.all(np.argmax(found.ends, axis=1) == 1)
    inside = [
        (beta, end)
        for beta, end in zip(found.values, found.ends, strict=True)
        if beta > 0 and np.all(BEHAVIOR + PULL / beta > 0)
    ]
    assert len(inside) > 4
    for beta, policy in inside:
        np.testing.assert_allclose(policy, BEHAVIOR + PULL / beta, atol=1e-8)


def test_opmd(study):
    """Arm 2 leads at every tau, and (0, .76, .24) is the limit of small ones; the pointwise
    variant is the same.
    """
    for label in ("opmd", "opmd openkimi"):
        found = sweep(study, label, "tau")
        assert found.best_leads == () and np.all(np.argmax(found.ends, axis=1) == 1)
        np.testing.assert_allclose(found.ends[0], (0, 0.7586, 0.2414), atol=1e-3)
    np.testing.assert_allclose(end(study, "opmd"), end(study, "opmd openkimi"), atol=1e-8)


@pytest.mark.parametrize("form", ["pairwise", "variance"])
def test_the_surrogate_minimised(study, form):
    found = sweep(study, f"surrogate {form} tau=0.1", "tau")
    for tau, policy in zip(found.values, found.ends, strict=True):
        logits = np.log(BEHAVIOR) + REWARDS / tau
        np.testing.assert_allclose(policy, jax.nn.softmax(logits), atol=1e-6)
    assert threshold(study, f"surrogate {form} tau=0.1", "tau") == pytest.approx(
        0.2 / np.log(6), rel=1e-3
    )


def test_red_weight(study):
    assert threshold(study, "red_weight", "tau") == pytest.approx(
        0.2 / np.log(PULL[1] / PULL[2]), rel=2e-3
    )
    assert study[0]["red_weight"].leads == 1


# ---- ends worked out by hand


def test_other_ends(study):
    stiff = np.array([0.3, 0.6 * np.exp(4.5), 0.1 * np.exp(8)])
    ends = {
        "raft": (0, 6 / 7, 1 / 7),  # imitation of arms 2 and 3
        "topr": (0, 6 / 7, 1 / 7),
        "ipo": stiff / stiff.sum(),
        "dpo": (0, 0, 1),  # its gradient never ends
        "pass_at_k": (0, 0, 1),  # only the best response of a group is pushed
        "grpo": (0.16, 0.72, 0.12),
        "dapo": (0.232 - 0.128, 0.768, 0.128),
        "truncated_is": (0, *PULL[1:] / PULL[1:].sum()),
    }
    found = {label: end(study, label) for label in ends if label in study[0]}
    assert len(found) in (4, len(ends))
    for label, policy in found.items():
        np.testing.assert_allclose(policy, ends[label], atol=5e-4, err_msg=label)


def test_equals_on_one_token(study):
    """Scales and lengths do not matter here."""
    pairs = (
        ("reinforce", "rloo"),
        ("reinforce", "opo"),
        ("grpo", "dr_grpo constant_length=1"),
        ("grpo", "tis"),
        ("gspo", "luspo"),
    )
    for one, other in (pair for pair in pairs if {*pair} <= study[0].keys()):
        for start in bandit.STARTS:
            np.testing.assert_allclose(
                study[0][one].ends[start], study[0][other].ends[start], atol=2e-3
            )
    np.testing.assert_allclose(
        end(study, "gvpo gvpo_beta=0.1"), end(study, "surrogate variance tau=0.1"), atol=1e-6
    )
    if "dro dro_beta=0.1" in study[0]:
        np.testing.assert_allclose(end(study, "dro dro_beta=0.1"), end(study, "opmd"), atol=1e-6)


# ---- what holds of any algorithm


def test_every_algorithm_is_there(study):
    learning = {*objectives.algorithms()} - {*bandit.LEFT_OUT}
    assert {case.name for case in bandit.cases()} == {*learning, bandit.SURROGATE}
    with pytest.raises(ValueError, match="distill reads no reward"):
        bandit.cases(["distill"])
    assert len(study[0]) in (len(bandit.cases(KNOWN)), len(bandit.cases()))
    for result in study[0].values():
        for start in bandit.STARTS:
            policy = result.ends[start]
            assert (
                np.isfinite(policy).all()
                and policy.sum() == pytest.approx(1)
                and result.how[start] not in bandit_study.LOST
            )
        assert result.sampled.shape == (bandit_study.RUNS, 3) and np.isfinite(result.sampled).all()
        assert all(len(path) > 1 for path in result.paths.values())


def test_the_ends_are_those_of_plain_small_steps(study):
    """An independent walk: 20,000 steps of length .002 along the update, wherever it leads."""
    for label in (
        label
        for label in ("rec_ring_is", "cispo", "dppo_tv", "gmpo", "vespo", "bapo")
        if label in study[0]
    ):
        case = study[0][label].case
        with jax.enable_x64(True):
            pull = jax.vmap(functools.partial(expected_update(case), dict(case.numbers)))

            def step(_, logits, pull=pull):
                update = pull(logits)
                speed = jnp.linalg.norm(update, axis=1, keepdims=True)
                return logits + 2e-3 * update / jnp.where(speed > 0, speed, 1)

            starts = jnp.log(jnp.array(list(bandit.STARTS.values())))
            walked = jax.nn.softmax(
                jax.jit(functools.partial(jax.lax.fori_loop, 0, 20_000, step))(starts)
            )
        np.testing.assert_allclose(list(study[0][label].ends.values()), walked, atol=0.02)


def test_the_same_seed_draws_the_same(study):
    case = study[0]["reinforce"].case
    again = bandit_study.study(case).sampled
    np.testing.assert_array_equal(again, study[0]["reinforce"].sampled)
    other = bandit_study.study(bandit.cases(["rec_oneside_nois"])[0], seed=1).sampled
    assert np.abs(other - study[0]["rec_oneside_nois"].sampled).max() > 1e-4
    np.testing.assert_allclose(
        other.mean(0), study[0]["rec_oneside_nois"].sampled.mean(0), atol=0.01
    )


def test_default_precision_stays(study):
    assert jnp.zeros(1).dtype == jnp.float32


# ---- what is written


def test_files(study):
    results, printed, folder = study
    found = json.loads((folder / "bandit.json").read_text())
    assert [row["label"] for row in found["results"]] == list(results)
    for row in found["results"]:
        assert row["label"].split()[0] in printed and len(row["ends"]) == len(row["paths"]) == len(
            bandit.STARTS
        )
        assert all(
            low <= mean <= high
            for low, mean, high in zip(
                *(row["sampled"][key] for key in ("low", "mean", "high")), strict=True
            )
        ) or (max(row["sampled"]["mean"]) > 0.999)
    assert (folder / "bandit.png").stat().st_size > 50_000


def test_the_documented_table_is_this_one(study):
    """Policies to the last digit or two: the sampled ones depend on how a processor rounds."""
    lines = {
        re.split(r"  +", line.strip())[0]: line
        for line in DOCS.read_text().splitlines()
        if "arm " in line and "(" in line
    }
    number = re.compile(r"(?<=[( ])(?:\.\d{3}|1)(?=[ )])")
    assert {line for line in lines if line != "algorithm"} >= {
        case.label for case in bandit.cases()
    }
    for label, result in study[0].items():
        cells = bandit_report.row(result)
        assert label in lines, (
            f"{label} is not in {DOCS.name}: paste the table of `python -m research.bandit`"
        )
        line = lines[label]
        policy = [float(word) for word in number.findall(re.search(r"\([^)]*\)", line).group())]
        np.testing.assert_allclose(policy, result.end, atol=2e-3)
        assert cells[3] in line and all(
            strength.split()[0] in line for strength in bandit_report.strengths(result)
        )


@pytest.mark.parametrize("width", [70, 80, 100, 120, 150, 190])
def test_a_narrow_terminal_shows_fewer_columns(study, width):
    console = Console(width=width, record=True, file=open(study[2] / "narrow.txt", "w"))
    console.print(bandit_report.table(list(study[0].values())[:3], console))
    printed = console.export_text()
    for words in ("algorithm", "reinforce", "(.160 .720 .120)", "arm 2", "epsilon_high"):
        assert words in printed
    assert ("no gradient" in printed) == (width >= 130) and "…" not in printed


def test_strengths_in_words():
    def result(*ranges):
        swept = bandit_study.Sweep("tau", (0.1, 1.0, 10.0), np.zeros((3, 3)), ranges)
        return bandit_study.Result(
            bandit.Case("x", {}, {}), {}, {}, {}, (swept,), (), np.zeros((1, 3))
        )

    assert bandit_report.strengths(result()) == []
    assert bandit_report.strengths(result((0.1, 10.0))) == ["every tau"]
    assert bandit_report.strengths(result((0.1, 0.5))) == ["tau < 0.5"]
    assert bandit_report.strengths(result((0.1, 0.5), (2.0, 3.0))) == ["tau < 0.5", "2 < tau < 3"]
    assert bandit_report.strengths(result((2.0, 10.0))) == ["tau > 2"]


# ---- the flow, on fields whose ends are known


def followed(field, starts):
    with jax.enable_x64(True):
        return flow.follow(jax.jit(field), np.array(starts, float), margin)


def margin(points):
    """The boundary is far to the right."""
    return jnp.exp(-points[:, 0])


def test_flow_finds_a_stiff_stable_point_and_no_unstable_one():
    stiff = followed(
        lambda u: jnp.stack([-(u[:, 0] - 1), -1e4 * (u[:, 1] - u[:, 0])], axis=1),
        [(3.0, -2.0), (-2.0, 2.0)],
    )
    np.testing.assert_allclose(stiff.points, [(1, 1)] * 2, atol=1e-8)
    assert [flow.ENDS[how] for how in stiff.how] == ["equilibrium"] * 2
    double = followed(
        lambda u: jnp.stack([u[:, 0] - u[:, 0] ** 3, -u[:, 1]], axis=1), [(1e-3, 1.0), (-0.5, 1.0)]
    )
    np.testing.assert_allclose(double.points, [(1, 0), (-1, 0)], atol=1e-6)


def test_flow_slides_along_a_jump_to_its_end():
    def field(u):
        x, y = u[:, 0], u[:, 1]
        return jnp.stack([1e-3 * (2 - x), -jnp.sign(y)], axis=1)

    ends = followed(field, [(0.0, 0.5), (-1.0, -0.25)])
    np.testing.assert_allclose(ends.points, [(2, 0)] * 2, atol=1e-4)
    assert [flow.ENDS[how] for how in ends.how] == ["sliding"] * 2


def test_flow_stops_where_the_field_does():
    ends = followed(
        lambda u: jnp.where((u[:, :1] > 1) | (u[:, 1:] > 3), 0.0, jnp.ones_like(u)),
        [(0.0, 0.5), (2.0, 0.0)],
    )
    np.testing.assert_allclose(ends.points, [(1, 1.5), (2, 0)], atol=1e-5)
    assert [flow.ENDS[how] for how in ends.how] == ["no gradient"] * 2


def test_flow_reaches_the_boundary():
    """Constant, dying and creeping fields; the other coordinate is at its own end there."""
    ends = followed(
        lambda u: jnp.stack([jnp.exp(-u[:, 0]), 1 + jnp.exp(-u[:, 0]) - u[:, 1]], axis=1),
        [(0.0, 0.0), (1.0, 5.0)],
    )
    np.testing.assert_allclose(ends.points[:, 1], 1, atol=1e-6)
    assert [flow.ENDS[how] for how in ends.how] == ["boundary"] * 2
    assert (
        flow.ENDS[followed(lambda u: jnp.ones_like(u) * jnp.array([1.0, 0.0]), [(0.0, 0.0)]).how[0]]
        == "boundary"
    )


def test_flow_says_what_is_not_finite():
    ends = followed(lambda u: jnp.where(u[:, :1] > 0.2, jnp.nan, jnp.ones_like(u)), [(0.0, 0.0)])
    assert flow.ENDS[ends.how[0]] == "not finite"
