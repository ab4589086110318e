"""Steps mixed of what the run samples and what other folders hold: shares, marks, ages, and the
same steps after a resume.
"""

import dataclasses

import numpy as np
import pytest

from grre_jax import rollouts
from grre_jax.errors import DataError, UsageError
from grre_jax.training import build
from grre_jax.training.config.run import override
from grre_jax.training.data.batches import Chooser, own_samples, stored_streams
from grre_jax.training.data.sources import open_folders

from ...groups import chosen_groups, text_group


def solution(number, **fields):
    return text_group(number, ["3$"], [1], **fields)


@pytest.fixture(scope="module")
def folders(tmp_path_factory, make_group):
    """Solutions without log-probs, and samples of another run."""
    root = tmp_path_factory.mktemp("folders")
    rollouts.write(root / "solutions", [solution(f"s{i}") for i in range(5)], writer="import")
    fields = {"lengths": (2, 3), "rewards": [0, 1], "policy_version": [7, 7]}
    groups = [make_group(i, position=i, **fields) for i in range(6)]
    rollouts.write(root / "old", groups, writer="sampler", policy_version=7)
    return root


@pytest.fixture(scope="module")
def built(make_config, tmp_path_factory):
    return build.build(make_config(tmp_path_factory.mktemp("mixture") / "run"))


def stored(parts):
    """The choice of every step of what a run reads."""
    return Chooser(None, stored_streams(parts, open_folders(parts.config, resume=False)))


def test_a_step_has_each_folders_share_marked_and_of_no_known_age(parts_of):
    parts = parts_of("solutions=0.25:expert,old=0.125")
    choose = stored(parts)
    for step in range(10):
        groups = chosen_groups(choose(step))
        solved = [int(group.group_id[:2] == "gs") for group in groups]
        assert len(groups) == 3 and sum(solved) == 2
        for group, expert in zip(groups, solved, strict=True):
            assert group.is_expert.tolist() == [expert] * len(group.texts)
            assert (group.policy_version == -1).all() and len(group.tokens)
        assert np.isnan([pick.age for pick in choose(step)]).all()
    seen = names(choose, range(10))
    assert names(stored(parts), (9, 4)) == [seen[9], seen[4]]
    assert set(sum(seen, [])) == {f"gs{i}" for i in range(5)} | {f"g{i}" for i in range(6)}


def test_the_rest_of_a_step_comes_from_data_path_or_is_sampled(parts_of, tmp_path):
    parts = parts_of("solutions=0.25", "reinforce", f"--data.path old {KEEP}")
    assert [len(name) for name in names(stored(parts), [3])[0]] == [2] * 6 + [3] * 2
    words = f"--regime.sync_interval 1 --run-dir {tmp_path}"
    sampling = parts_of("solutions=0.25:expert", words=words)
    groups = [solution(p, position=p, policy_version=[0]) for p in range(6)]
    rollouts.write(tmp_path / "rollouts", groups, writer="explorer", policy_version=0)
    choose = Chooser(own_samples(sampling.config), stored(sampling).stored)
    assert [g.position for g in chosen_groups(choose(0))] == [*range(6), -1, -1]
    np.testing.assert_array_equal([pick.age for pick in choose(0)], [0] * 6 + [np.nan] * 2)
    assert choose.own.missing(1) == list(range(6, 12))


@pytest.fixture
def parts_of(built, folders, monkeypatch):
    """`parts_of(mix, words)`: of a run that mixes these folders; eight groups a step."""
    monkeypatch.chdir(folders)

    def parts(mix, objective="chord", words=""):
        words = (
            f"--data.mix={mix} --training.prompts_per_step 8 --objective.name {objective} {words}"
        )
        config = override(built.config, words.split())
        return dataclasses.replace(built, config=config, objective=build.build_objective(config))

    return parts


KEEP = "--data.drop_zero_variance false"


def names(choose, steps):
    return [[group.group_id for group in chosen_groups(choose(step))] for step in steps]


@pytest.mark.parametrize(
    "objective, mix, present",
    [
        ("reinforce", "old=0.25,solutions=0.25", {False}),
        # Packing fills these up: a ratio needs the own ones. Experts have no age.
        ("chord", "old=0.25,solutions=0.25:expert", {True, False}),
    ],
)
def test_every_step_has_the_same_arrays(parts_of, objective, mix, present):
    limit = "--data.max_staleness 2" if "expert" in mix else ""
    choose = stored(parts_of(mix, objective, f"{KEEP} {limit}"))
    groups = [group for step in range(8) for group in chosen_groups(choose(step))]
    assert {group.behavior_logprobs is not None for group in groups} == present


def test_what_an_objective_cannot_learn_from_is_named(parts_of):
    with pytest.raises(DataError, match="gs0 .*behavior_logprobs"):
        stored(parts_of("old=0.25:expert,solutions=0.25", words=KEEP))
    with pytest.raises(UsageError, match=r"data\.mix"):
        parts_of("old=0.5", "log_linear_proximal")
