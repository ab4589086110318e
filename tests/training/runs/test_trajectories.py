"""A run whose completions are trajectories: sampled, stored, trained on, and resumed."""

import dataclasses
import json

import numpy as np
import pytest

from grre_jax import config as c
from grre_jax import rollouts
from grre_jax.cli.entry import main
from grre_jax.errors import UsageError
from grre_jax.planner.compile import compile_run
from grre_jax.training.evaluation.load_scorer import find_scorer
from grre_jax.training.loop import train


@pytest.fixture(scope="module")
def config(make_config, tmp_path_factory):
    return make_config(
        tmp_path_factory.mktemp("trajectories"),
        task=c.TaskConfig("calculator", {"operands": 2, "digits": 1, "flaw": 0.5}),
        sampling=c.SamplingConfig(
            group_size=4, max_prompt_tokens=4, max_new_tokens=12, max_turns=3, max_turn_tokens=5
        ),
        regime=c.Regime(sync_interval=2),
        training=c.TrainingConfig(steps=4, prompts_per_step=4),
        evaluation=c.EvaluationConfig(every=2, questions=4, num_samples=4, greedy=False),
        checkpoint=c.CheckpointConfig(every=2),
    )


@pytest.fixture(scope="module")
def run(config):
    return train(config)


def rows_of(run):
    rows = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    names = ("kind", "step", "reward", "loss", "grad_norm", "kl_to_start", "staleness_mean")
    return [[row.get(name) for name in names] for row in rows]


def test_groups_are_trajectories_with_the_log_probs_of_their_policy(run):
    groups = [g for g in rollouts.read(run / "rollouts") if g.policy_version.max() == 0]
    assert len(groups) == 8 and all(g.environment == "calculator" for g in groups)
    assert max(g.turn_counts.max() for g in groups) > 1
    assert all(g.lengths.max() <= 12 and g.turn_counts.max() <= 3 for g in groups)
    assert {r for g in groups for r in g.finish_reasons} <= {"done", "turns", "tokens"}
    scores = find_scorer(f"{run}:0").score(groups, 1.0)
    for group, found in zip(groups, scores, strict=True):
        assert np.abs(np.where(group.mask, found - group.behavior_logprobs, 0)).max() < 1e-4
        assert not group.behavior_logprobs[group.mask == 0].any()


def test_warm_start_trajectories_have_their_observations_masked(run):
    groups = list(rollouts.read(run / "warm_start"))
    called = [g for g in groups if g.turn_counts[0] == 2]
    assert 0 < len(called) < len(groups)
    assert all(("=$" in g.texts[0]) == (g in called) for g in groups)
    assert all(not g.mask.all() for g in called)


def test_a_run_that_was_stopped_goes_on_with_the_same_trajectories(config, run, tmp_path):
    half = dataclasses.replace(config, run_dir=str(tmp_path))
    half = dataclasses.replace(half, training=dataclasses.replace(half.training, steps=2))
    train(half)
    whole = dataclasses.replace(half, training=config.training)
    again = train(whole, resume=True)
    first, second = (
        {g.group_id: g for g in rollouts.read(folder / "rollouts")} for folder in (run, again)
    )
    assert first == second
    assert rows_of(again) == rows_of(run)


def test_sampling_of_trajectories_is_not_predicted(config, capsys):
    with pytest.raises(UsageError, match="sampler, evaluation.*--program step"):
        compile_run(config, "v5e:2x2")


@pytest.mark.parametrize("name", ["agent_calculator", "agent_guess"])
def test_shipped_agents_are_explained(name, capsys):
    assert main(["explain", f"configs/{name}.py"]) == 0
    assert "19" in capsys.readouterr().out
