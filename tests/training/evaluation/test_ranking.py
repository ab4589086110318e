"""The ranking share on numbers done by hand, and the paired bootstrap against its definition."""

import dataclasses
import io
import json

import numpy as np
import pytest
from rich.console import Console

from grre_jax import rollouts
from grre_jax.config import DataConfig, EvaluationConfig, ObjectiveConfig
from grre_jax.errors import DataError, UsageError
from grre_jax.rollouts import Group
from grre_jax.training import build
from grre_jax.training.evaluation import ranking


def scored(monkeypatch, scores):
    monkeypatch.setattr(
        ranking, "score_groups", lambda graph, params, groups, mesh: [np.float32(s) for s in scores]
    )


def group(number, rewards, lengths):
    total = sum(lengths)
    return Group(
        group_id=f"g{number}",
        prompt="?",
        texts=[""] * len(lengths),
        rewards=rewards,
        prompt_tokens=[1],
        lengths=lengths,
        tokens=np.ones(total, int),
    )


def test_the_share_of_pairs_ranked_right(monkeypatch):
    groups = [
        group(0, [1, 0, 0], [1, 2, 2]),
        group(1, [0, 1, 1], [1, 1, 3]),
        group(2, [1, 0], [2, 1]),
    ]
    scored(monkeypatch, [[-2, -1, -2, -4, -4], [-1, -2, -1, -1, -1], [-2, -4, -3]])
    # Means: right -2 against -1.5 and -4: 1 of 2. Right -2 and -1 against -1: 0 and a tie. Right -3
    # against -3: a tie.
    np.testing.assert_allclose(ranking.ranking(None, None, groups, None), [0.5, 0.25, 0.5])


def test_length_does_not_decide(monkeypatch):
    scored(monkeypatch, [[-1] * 9 + [-2]])
    np.testing.assert_allclose(ranking.ranking(None, None, [group(0, [1, 0], [9, 1])], None), [1.0])


@pytest.mark.parametrize("rewards", [[1, 1], [0, 0]])
def test_a_group_without_a_pair_is_named(monkeypatch, rewards):
    scored(monkeypatch, [[-1, -1]])
    with pytest.raises(DataError, match="group g7 has no pair"):
        ranking.ranking(None, None, [group(7, rewards, [1, 1])], None)


def test_correctness_decides_which_completions_are_right(monkeypatch):
    """Not the reward: a wrong completion may have the higher one, and rewards alone need not
    say.
    """
    scored(monkeypatch, [[-1, -2]])
    shaped = group(0, [0.2, 0.7], [1, 1])
    judged = dataclasses.replace(shaped, components={"correct": [1, 0]})
    np.testing.assert_allclose(ranking.ranking(None, None, [judged], None), [1.0])
    with pytest.raises(DataError, match="group g0 has no correctness"):
        ranking.ranking(None, None, [shaped], None)


def test_paired_bootstrap_is_what_it_says():
    draw = np.random.default_rng(3)
    before, after = draw.uniform(size=37), draw.uniform(size=37)
    result = ranking.paired_bootstrap(before, after)
    indices = np.random.default_rng(0).integers(0, 37, (ranking.RESAMPLES, 37))
    interval = np.percentile((after - before)[indices].mean(1), (2.5, 97.5))
    means = {"before": before, "after": after, "difference": after - before}
    expected = {name: values.mean() for name, values in means.items()}
    expected |= {"low": interval[0], "high": interval[1], "pairs": 37}
    assert result == pytest.approx(expected) and result == ranking.paired_bootstrap(before, after)


def test_paired_bootstrap_keeps_the_pairs_together():
    before = np.linspace(0, 1, 30)
    result = ranking.paired_bootstrap(before, before + 0.25)
    assert result["low"] == pytest.approx(0.25) and result["high"] == pytest.approx(0.25)


def test_paired_bootstrap_has_about_the_normal_interval():
    difference = np.random.default_rng(0).normal(0.1, 1.0, 2000)
    result = ranking.paired_bootstrap(np.zeros(2000), difference)
    half = 1.96 * difference.std() / np.sqrt(2000)
    assert result["low"] == pytest.approx(difference.mean() - half, abs=0.004) and result[
        "high"
    ] == pytest.approx(difference.mean() + half, abs=0.004)


def test_what_is_saved(tmp_path):
    groups = [group(0, [1, 0], [1, 1]), group(1, [1, 0], [1, 1])]
    out = io.StringIO()
    ranking.save_ranking(
        tmp_path, np.array([0.0, 0.5]), np.array([1.0, 0.5]), groups, Console(file=out, width=300)
    )
    stored = json.loads((tmp_path / "ranking.json").read_text())
    assert stored["questions"] == [
        {"group_id": "g0", "before": 0.0, "after": 1.0},
        {"group_id": "g1", "before": 0.5, "after": 0.5},
    ]
    assert (stored["before"], stored["after"], stored["difference"], stored["pairs"]) == (
        0.25,
        0.75,
        0.5,
        2,
    )
    assert "0.2500 before, 0.7500 after" in out.getvalue()


# ---- which groups are held out


@pytest.fixture(scope="module")
def parts(make_config, tmp_path_factory):
    folder = tmp_path_factory.mktemp("held-out") / "rollouts"
    texts = [["3$", "4$"], ["1$", "2$"], ["5$", "777777$"], ["8$", "9$"]]
    rewards = [[1, 0], [1, 1], [1, 0], [0, 1]]
    groups = [
        Group(group_id=f"g{i}", prompt="1+2>", texts=t, rewards=r)
        for i, (t, r) in enumerate(zip(texts, rewards, strict=True))
    ]
    rollouts.write(folder, groups, writer="import")
    config = make_config(
        folder.parent / "run",
        data=DataConfig(path=str(folder)),
        objective=ObjectiveConfig("reinforce"),
    )
    return build.build(config)


def held_out(parts, text, **data):
    config = dataclasses.replace(
        parts.config,
        evaluation=EvaluationConfig(ranking_questions=text),
        data=dataclasses.replace(parts.config.data, **data),
    )
    return ranking.held_out_groups(dataclasses.replace(parts, config=config))


def test_held_out_groups_have_a_pair_and_tokens(parts):
    groups = held_out(parts, "0:2")
    assert [g.group_id for g in groups] == ["g0"]
    assert groups[0].lengths.tolist() == [2, 2] and len(groups[0].prompt_tokens) == 4
    assert held_out(parts, "") == []


def test_held_out_groups_over_the_limit(parts):
    with pytest.raises(DataError, match="completion 1 of group g2"):
        held_out(parts, "0:4")
    assert [g.group_id for g in held_out(parts, "0:4", drop_over_limit=True)] == ["g0", "g3"]


def test_held_out_groups_refuse(parts):
    with pytest.raises(
        DataError, match=r"no group of evaluation\.ranking_questions = 1:2 has both"
    ):
        held_out(parts, "1:2")
    with pytest.raises(UsageError, match=r"needs stored rollouts: set data\.path"):
        held_out(parts, "1:2", path="")
