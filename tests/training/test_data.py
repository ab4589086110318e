"""What a step may train on: groups in the policy's own tokens, within the limits, with what the objective needs."""

import dataclasses
import json

import numpy as np
import pytest

from grre_jax import objectives, rollouts
from grre_jax.config import CheckpointConfig, DataConfig, EvaluationConfig, ModelSource, ObjectiveConfig, TrainingConfig
from grre_jax.errors import DataError, UsageError
from grre_jax.rollouts import Group
from grre_jax.tasks import CharTokenizer
from grre_jax.training import data, loop, setup
from grre_jax.training.regime import Regime

TOKENIZER = CharTokenizer()


def text_group(number, texts=("3$", "4"), rewards=(1, 0), prompt="1+2>", **fields):
    return Group(group_id=f"g{number}", question_id=f"q{number}", prompt=prompt, texts=list(texts), rewards=list(rewards), **fields)


@pytest.fixture(scope="module")
def built(make_config, tmp_path_factory):
    return setup.build(make_config(tmp_path_factory.mktemp("data") / "run", objective=ObjectiveConfig("reinforce")))


def select(built, folder, *, objective="reinforce", ranking="", groups_per_step=2, **fields):
    config = dataclasses.replace(
        built.config,
        data=DataConfig(path=str(folder), **fields),
        evaluation=EvaluationConfig(ranking_questions=ranking),
        training=TrainingConfig(groups_per_step=groups_per_step),
    )
    parts = dataclasses.replace(built, config=config, objective=objectives.algorithm(objective))
    return data.stored_batches(parts, rollouts.read(folder))


def names(batches, steps):
    return {group.group_id for step in range(steps) for group in batches.groups(step)}


# ---- tokens


def test_text_becomes_tokens_and_loses_log_probs():
    group = data.tokenised(text_group(0), TOKENIZER, 4, 2)
    assert group.prompt_tokens.tolist() == TOKENIZER.encode_prompt("1+2>")
    assert group.tokens.tolist() == TOKENIZER.encode_completion("3$") + TOKENIZER.encode_completion("4")
    assert group.lengths.tolist() == [2, 2] and group.mask.tolist() == [1] * 4
    assert group.behavior_logprobs is group.sampling_logprobs is group.policy_logprobs is None
    assert group.rewards.tolist() == [1, 0] and group.group_id == "g0" and group.texts == ["3$", "4"]


def test_a_group_with_tokens_stays_as_it_is(make_group):
    group = make_group(0, prompt=3, lengths=(2, 4, 1))
    assert data.tokenised(group, TOKENIZER, 3, 4) == group


def test_limits_name_group_length_and_fix(make_group):
    group = make_group(7, prompt=3, lengths=(2, 4, 1), question_id="q7")
    with pytest.raises(DataError, match=r"prompt of group g7 \(q7\) has 3 tokens, over sampling\.max_prompt_tokens = 2: .*drop-over-limit"):
        data.tokenised(group, TOKENIZER, 2, 4)
    with pytest.raises(
        DataError, match=r"completion 1 of group g7 \(q7\) has 4 tokens, over sampling\.max_new_tokens = 3: .*drop-over-limit"
    ):
        data.tokenised(group, TOKENIZER, 3, 3)
    for limits, within in {(3, 4): True, (2, 4): False, (3, 3): False}.items():
        assert data.within_limits(group, TOKENIZER, *limits) is within


def test_an_empty_completion_is_named(make_group):
    with pytest.raises(DataError, match=r"completion 1 of group g3 .* is empty"):
        data.tokenised(make_group(3, lengths=(2, 0, 1)), TOKENIZER, 9, 9)


def test_an_empty_text_is_its_end_token():
    assert data.tokenised(text_group(0, texts=("", "3")), TOKENIZER, 9, 9).lengths.tolist() == [1, 2]


# ---- stored batches


@pytest.fixture
def folder(tmp_path):
    groups = [text_group(i) for i in range(6)] + [text_group(6, rewards=(1, 1)), text_group(7, texts=("1234567$", "3$"))]
    rollouts.write(tmp_path / "rollouts", groups, writer="import", metadata={"contains": ["somewhere/test"]})
    return tmp_path / "rollouts"


def test_batches_are_a_function_of_the_step_and_cover_an_epoch(built, folder):
    batches, again = select(built, folder, questions="0:6"), select(built, folder, questions="0:6")
    for step in (4, 0, 2):
        assert batches.groups(step) == again.groups(step) and len(batches.groups(step)) == 2
    for epoch in range(3):
        seen = [g.group_id for step in range(3 * epoch, 3 * epoch + 3) for g in batches.groups(step)]
        assert sorted(seen) == [f"g{i}" for i in range(6)]
    assert np.isnan(batches.staleness(0))


def test_selection(built, folder):
    assert names(select(built, folder, questions="1:4", groups_per_step=3), 4) == {"g1", "g2", "g3"}
    # Groups without signal are left out, unless asked for; so are those over the limit, once asked for.
    assert names(select(built, folder, questions="4:7"), 5) == {"g4", "g5"}
    assert names(select(built, folder, questions="4:7", drop_no_signal=False, groups_per_step=3), 5) == {"g4", "g5", "g6"}
    assert names(select(built, folder, questions="4:8", drop_over_limit=True), 5) == {"g4", "g5"}


def test_a_group_over_the_limit_is_an_error(built, folder):
    with pytest.raises(DataError, match=r"completion 0 of group g7 \(q7\) has 8 tokens"):
        names(select(built, folder), 4)


def test_too_few_groups(built, folder, tmp_path):
    with pytest.raises(DataError, match=r"has 2 groups to train on, fewer than one step's 4: lower training\.groups_per_step"):
        select(built, folder, questions="0:2", groups_per_step=4)
    with pytest.raises(DataError, match=str(folder)):
        select(built, folder, questions="6:7")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"empty holds no groups; sample some"):
        select(built, tmp_path / "empty")
    with pytest.raises(DataError, match=r"data\.questions = 90:95 selects nothing: the folder holds 8 groups"):
        select(built, folder, questions="90:95")


def test_questions_held_out_for_ranking_are_not_trained_on(built, folder):
    select(built, folder, questions="0:4", ranking="4:8")
    for questions, ranking in (("0:5", "4:8"), ("", "7:8"), ("4:6", "0:5")):
        with pytest.raises(UsageError, match=r"data\.questions = .* and evaluation\.ranking_questions = .* overlap"):
            select(built, folder, questions=questions, ranking=ranking)


@pytest.mark.parametrize("objective", ["rec_oneside_nois", "rec_ring_is", "grpo", "opmd"])
def test_an_objective_that_needs_behaviour_log_probs(built, folder, tmp_path, make_group, objective):
    with pytest.raises(DataError) as caught:
        select(built, folder, objective=objective, questions="0:4")
    message = str(caught.value)
    assert f"group g0 of {folder} has no behaviour log-probs, and objective {objective} needs them" in message
    offered = message.split("(")[1].split(")")[0].split(", ")
    assert {"reinforce", "asymre", "red_drop", "red_weight"} <= set(offered)
    assert all("old_logprobs" not in objectives.algorithm(name).requires for name in offered)
    # One group that lacks them is enough, and none is not.
    mixed = tmp_path / "mixed"
    rollouts.write(mixed, [make_group(i, lengths=(2, 3), rewards=[0, 1]) for i in range(3)] + [text_group(9)], writer="import")
    assert len(select(built, mixed, objective=objective, questions="0:3").groups(0)) == 2
    with pytest.raises(DataError, match="group g9 "):
        select(built, mixed, objective=objective)


# ---- sampled batches


def test_sampled_batches_are_found_by_place_and_version(tmp_path):
    regime = Regime(sync_interval=2)
    for version, positions in ((0, range(0, 4)), (2, range(4, 8)), (7, range(0, 8))):
        groups = [text_group(f"{version}-{p}", position=p, policy_version=[version] * 2) for p in positions]
        rollouts.write(tmp_path, groups, writer="sampler", policy_version=version)
    batches = data.SampledBatches(rollouts.read(tmp_path), regime, groups_per_step=2)
    # The newer samples of version 7 are not what the regime asks for.
    assert [[g.group_id for g in batches.groups(s)] for s in range(4)] == [
        ["g0-0", "g0-1"],
        ["g0-2", "g0-3"],
        ["g2-4", "g2-5"],
        ["g2-6", "g2-7"],
    ]
    assert [batches.staleness(s) for s in range(4)] == [0, 1, 0, 1]
    with pytest.raises(DataError, match="no group of policy version 4 at position 8"):
        batches.groups(4)


# ---- provenance


def test_contents_are_the_models_past_and_the_data(built, folder, tmp_path):
    assert data.training_contents(built) == {"arithmetic/train"}
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "grre_provenance.json").write_text(json.dumps({"contains": ["gsm8k/test"]}))
    model = ModelSource(path=str(tmp_path / "model"))
    sampled = dataclasses.replace(built, config=dataclasses.replace(built.config, model=model))
    stored = dataclasses.replace(built, config=dataclasses.replace(built.config, model=model, data=DataConfig(path=str(folder))))
    assert data.training_contents(sampled) == {"gsm8k/test", "arithmetic/train"}
    assert data.training_contents(stored) == {"gsm8k/test", "somewhere/test"}


def test_a_contaminated_evaluation_needs_the_flag(make_config, tmp_path):
    store = tmp_path / "rollouts"
    rollouts.write(store, [text_group(i) for i in range(4)], writer="import", metadata={"contains": ["arithmetic/held-out"]})
    config = make_config(
        tmp_path / "run",
        objective=ObjectiveConfig("reinforce"),
        data=DataConfig(path=str(store)),
        training=TrainingConfig(steps=0, groups_per_step=2),
        warm_start=dataclasses.replace(make_config("x").warm_start, steps=0),
        evaluation=EvaluationConfig(questions=4),
        checkpoint=CheckpointConfig(),
    )
    with pytest.raises(UsageError, match="training data contains questions of arithmetic/held-out.*allow-contaminated true"):
        loop.train(config)
    assert not (tmp_path / "run").exists()
    folder = loop.train(dataclasses.replace(config, evaluation=EvaluationConfig(questions=4, allow_contaminated=True)))
    assert json.loads((folder / "provenance.json").read_text())["contains"] == ["arithmetic/held-out"]
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [(row["kind"], row["step"]) for row in rows] == [("eval", 0)]
