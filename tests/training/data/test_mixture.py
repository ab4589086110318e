"""Steps mixed of what the run samples and what other folders hold: shares, marks, ages, and the
same steps after a resume.
"""

import dataclasses

import numpy as np
import pytest

from grre_jax import objectives, rollouts
from grre_jax.config import (
    DataConfig,
    EvaluationConfig,
    TrainingConfig,
)
from grre_jax.errors import DataError, UsageError
from grre_jax.training import build, loop
from grre_jax.training.config.overrides import override
from grre_jax.training.data.choose import Chooser, make_chooser, read, stored_streams
from grre_jax.training.data.regime import Regime
from grre_jax.training.data.sources import Source, open_folders

from ...groups import text_group
from ...run_processes import log

pytestmark = pytest.mark.usefixtures("no_reports")


def solution(number, texts=("3$",), rewards=(1,), **fields):
    return text_group(number, texts, rewards, **fields)


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


def parts_of(built, objective="chord", steps=8, **data):
    training = TrainingConfig(steps=steps, prompts_per_step=8)
    config = dataclasses.replace(
        built.config, data=DataConfig(**data), training=training, evaluation=EvaluationConfig()
    )
    return dataclasses.replace(built, config=config, objective=objectives.algorithm(objective))


def stored(parts):
    """The choice of every step of what a run reads."""
    return Chooser(None, stored_streams(parts, open_folders(parts.config, resume=False)))


def test_a_step_has_each_folders_share_marked_and_of_no_known_age(built, folders):
    parts = parts_of(built, mix=f"{folders / 'solutions'}=0.25:expert,{folders / 'old'}=0.125")
    choose, again = stored(parts), stored(parts)
    seen = []
    for step in range(10):
        groups = read(choose(step))
        solved = [int(group.group_id[:2] == "gs") for group in groups]
        assert len(groups) == 3 and sum(solved) == 2
        for group, expert in zip(groups, solved, strict=True):
            assert group.is_expert.tolist() == [expert] * len(group.texts)
            assert (group.policy_version == -1).all() and len(group.tokens)
        assert np.isnan(choose(step).ages).all() and len(choose(step).ages) == 3
        seen.append([group.group_id for group in groups])
    assert [[g.group_id for g in read(again(step))] for step in (9, 4)] == [seen[9], seen[4]]
    assert set(sum(seen, [])) == {f"gs{i}" for i in range(5)} | {f"g{i}" for i in range(6)}
    drawn = stored(dataclasses.replace(parts, config=override(parts.config, ["--seed=1"])))
    assert [[g.group_id for g in read(drawn(step))] for step in range(10)] != seen


def test_the_rest_of_a_step_comes_from_data_path_or_is_sampled(built, folders, tmp_path):
    old = folders / "old"
    solutions = f"{folders / 'solutions'}=0.25"
    parts = parts_of(built, "reinforce", path=str(old), mix=solutions, drop_zero_variance=False)
    assert [len(g.group_id) for g in read(stored(parts)(3))] == [2] * 6 + [3] * 2
    alone = parts_of(built, "reinforce", mix=f"{old}=1")
    assert len(read(stored(alone)(0))) == 8 and not alone.config.samples
    assert stored_streams(parts_of(built), {}) == ()

    sampling = parts_of(built, mix=f"{solutions}:expert")
    for version, places in ((0, range(0, 6)), (3, range(6, 12))):
        groups = [solution(p, position=p, policy_version=[version]) for p in places]
        rollouts.write(tmp_path, groups, writer="explorer", policy_version=version)
    config = dataclasses.replace(sampling.config, regime=Regime(sync_interval=1))
    choose = make_chooser(config, Source(rollouts.read(tmp_path)), stored(sampling).stored)
    assert [g.position for g in read(choose(0))] == [*range(6), -1, -1]
    assert choose(0).ages.tolist()[:6] == [0] * 6 and np.isnan(choose(0).ages[6:]).all()
    assert choose.missing(1) == {1: list(range(6, 12))} and not choose.ready(1)


def test_every_step_has_the_same_arrays(built, folders):
    def present(objective, mix, **data):
        choose = stored(parts_of(built, objective, mix=mix, drop_zero_variance=False, **data))
        return {
            group.behavior_logprobs is not None for step in range(8) for group in read(choose(step))
        }

    solutions, old = folders / "solutions", folders / "old"
    assert present("reinforce", f"{old}=0.25") == {True}
    assert present("reinforce", f"{old}=0.25,{solutions}=0.25") == {False}
    # Packing fills these up: a ratio needs the own ones.
    assert present("chord", f"{old}=0.25,{solutions}=0.25:expert") == {True, False}


def test_an_age_limit_is_for_what_has_an_age(built, folders):
    mix = f"{folders / 'old'}=0.25,{folders / 'solutions'}=0.25:expert"
    choose = stored(parts_of(built, mix=mix, max_staleness=2))
    assert {len(g.group_id) for g in read(choose(0))} == {2, 3}
    fields = {"mix": f"{folders / 'solutions'}=0.25", "drop_zero_variance": False}
    with pytest.raises(DataError, match="policy version"):
        stored(parts_of(built, "reinforce", max_staleness=2, **fields))


def test_every_group_of_a_mix_is_checked_before_anything_runs(built, folders, tmp_path):
    for objective, mix in (
        ("grpo", f"{folders / 'solutions'}=0.25:expert"),
        ("chord", f"{folders / 'solutions'}=0.25"),
    ):
        with pytest.raises(DataError, match="group gs0 .*behavior_logprobs"):
            stored(parts_of(built, objective, mix=mix, drop_zero_variance=False))
    with pytest.raises(DataError, match="nowhere does not exist"):
        stored(parts_of(built, mix=f"{tmp_path / 'nowhere'}=0.25"))


def test_objectives_that_ask_for_what_a_mix_has_or_cannot_have(built):
    def requires(objective, mix):
        words = f"--objective.name {objective} --data.mix={mix}"
        return build.build_objective(override(built.config, words.split())).requires

    for objective, mix in (("chord", ""), ("log_linear_proximal", "old=0.5")):
        with pytest.raises(UsageError, match="data.mix"):
            requires(objective, mix)
    assert "expert" in requires("chord", "old=0.5:expert")


# ---- runs


def losses(folder):
    return [
        (row["step"], row["loss"], row["grad_norm"], row["reward"], row["staleness"])
        for row in log(folder)
        if row["kind"] == "train"
    ]


@pytest.mark.slow
def test_a_mixed_run_with_replay_and_reuse_goes_on_as_if_it_had_not_stopped(
    make_config, folders, tmp_path
):
    def config(folder, steps):
        words = "--warm-start.steps 0 --evaluation.questions 0 --objective.name chord"
        words += " --regime.sync_interval 2 --regime.reuse 2 --regime.replay_ratio 0.34"
        words += f" --data.mix {folders / 'solutions'}=0.25:expert --training.steps {steps}"
        return make_config(folder, words)

    whole = losses(loop.train(config(tmp_path / "whole", 5)))
    loop.train(config(tmp_path / "parts", 3))  # ends between two uses of a batch
    parts = losses(loop.train(config(tmp_path / "parts", 5), resume=True))
    assert parts == whole and [row[0] for row in whole] == [1, 2, 3, 4, 5]
    # Three groups of the run's own a step, one of them replayed from step 2 on; their ages are 0, 1
    # and those of older batches.
    assert [row[4] for row in whole[:2]] == [0, 1] and whole[4][4] > 0
    sampled = rollouts.read(tmp_path / "whole" / "rollouts")
    assert {entry.policy_version: entry.groups for entry in sampled.datasets} == {0: 3, 2: 2, 4: 2}
