"""A run whose completions are trajectories: sampled, stored, trained on and
resumed.
"""

import collections

import numpy as np
import pytest

from grre_jax import rollouts
from grre_jax.cli.entry import main
from grre_jax.errors import DataError, UsageError
from grre_jax.planner.compile import compile_run
from grre_jax.training.config.overrides import override
from grre_jax.training.loop import train
from grre_jax.training.policies import find_scorer

from ...run_processes import bits, groups, log

pytestmark = pytest.mark.usefixtures("no_reports")


@pytest.fixture(scope="module")
def config(make_config, tmp_path_factory):
    words = "--task.name calculator --task.options.operands 2 --task.options.digits 1"
    words += " --task.options.flaw 0.5 --sampling.max_new_tokens 12 --sampling.max_turns 3"
    words += " --sampling.max_turn_tokens 5 --regime.sync_interval 2 --training.steps 4"
    words += " --evaluation.every 2 --evaluation.questions 4 --evaluation.greedy false"
    words += " --checkpoint.every 2"
    return make_config(tmp_path_factory.mktemp("trajectories"), words)


@pytest.fixture(scope="module")
def run(config):
    return train(config)


def test_groups_are_trajectories_with_the_log_probs_of_their_policy(run):
    found = [g for g in rollouts.read(run / "rollouts") if g.policy_version.max() == 0]
    assert len(found) == 8 and all(g.environment == "calculator" for g in found)
    assert max(g.turn_counts.max() for g in found) > 1
    assert all(g.lengths.max() <= 12 and g.turn_counts.max() <= 3 for g in found)
    assert {r for g in found for r in g.finish_reasons} <= {"done", "turns", "tokens"}
    scores = find_scorer(f"{run}:0").score(found, 1.0)
    for group, score in zip(found, scores, strict=True):
        assert np.abs(np.where(group.mask, score - group.behavior_logprobs, 0)).max() < 1e-4
        assert not group.behavior_logprobs[group.mask == 0].any()


def test_warm_start_trajectories_have_their_observations_masked(run):
    found = list(rollouts.read(run / "warm_start"))
    called = [g for g in found if g.turn_counts[0] == 2]
    assert 0 < len(called) < len(found)
    assert all(("=$" in g.texts[0]) == (not g.mask.all()) == (g in called) for g in found)


def test_a_run_that_was_stopped_goes_on_with_the_same_trajectories(config, run, tmp_path):
    half = override(config, [f"--run-dir={tmp_path}"])
    train(override(half, ["--training.steps=2"]))
    again = train(half, resume=True)
    assert groups(again) == groups(run)
    assert (log(again), bits(again)) == (log(run), bits(run))


def test_environments_in_processes_give_the_same_trajectories(config, run, tmp_path):
    """The order of their answers changes which rows decode together, and so rounding alone."""
    words = f"--run-dir {tmp_path} --task.verify_processes 2 --training.steps 1"
    pooled = override(config, words.split())
    for address, group in groups(train(pooled)).items():
        other = groups(run)[address]
        assert group.tokens.tolist() == other.tokens.tolist() and group.texts == other.texts
        assert group.rewards.tolist() == other.rewards.tolist()
        assert np.abs(group.behavior_logprobs - other.behavior_logprobs).max() < 1e-5


def test_what_cannot_be_done_with_trajectories_is_named(config, run, capsys):
    with pytest.raises(UsageError, match="--program"):
        compile_run(config, "v5e:2x2")
    other = override(config, [f"--run-dir={run / 'int8'}", "--sampling.cache_dtype=int8"])
    with pytest.raises(UsageError, match="sampling.cache_dtype"):
        train(other)
    folders = [str(run / "rollouts"), "--output", str(run / "judged")]
    assert main(["rollouts", "reverify", *folders, "--task", "calculator"]) != 0
    assert "--task" in capsys.readouterr().err


BAD = """
from grre_jax.tasks import CharTokenizer, Question
from grre_jax.tasks.environments import Step

KINDS = ["raises", "reset", "wide", "nan", "good"]

class Bad:
    name, tokenizer = "bad", CharTokenizer("?abcdefg$")
    def question(self, position): return Question(f"q{position}", "?", KINDS[position % 5])
    def evaluation(self, count): return []
    def environment(self): return World()

class World:
    def reset(self, question, seed):
        self.kind = question.answer
        if self.kind == "reset": raise RuntimeError("down")
        return [{"role": "user", "content": "???" if self.kind == "wide" else question.prompt}]
    def step(self, action):
        if self.kind == "raises": raise ValueError("no")
        return ("", float("nan"), False, {}) if self.kind == "nan" else Step("?", 0.5)

def build(): return Bad()
"""
REASONS = {
    "raises": ("error", "ValueError: no"),
    "reset": ("error", "RuntimeError: down"),
    "wide": ("invalid", "3 tokens"),
    "nan": ("invalid", "reward: expected a finite number"),
    "good": ("", ""),
}


@pytest.mark.slow
def test_a_run_of_bad_environments_records_each_reason(config, tmp_path):
    """The other kinds of failures: tasks/environments/test_runner.py."""
    (tmp_path / "bad.py").write_text(BAD)
    words = f"--run-dir {tmp_path / 'runs'} --task.name {tmp_path / 'bad.py'}:build"
    words += " --task.max_failure_share 1 --sampling.max_prompt_tokens 1 --warm-start.steps 0"
    words += " --sampling.max_new_tokens 3 --sampling.max_turns 2 --sampling.max_turn_tokens 1"
    words += " --evaluation.questions 0 --objective.name asymre"  # learns from any group
    config = override(config, words.split())
    with pytest.raises(DataError, match=r"q2.*sampling\.max_prompt_tokens"):
        train(override(config, ["--data.overlong=refuse"]))
    assert not config.folder.exists()
    folder, counts = train(config), collections.Counter()
    for group in rollouts.read(folder / "rollouts"):
        kind, reason = REASONS[group.answer]
        assert set(group.extra.get("verify_failures", [""])) == {kind}
        assert all(reason in text for text in group.extra.get("verify_reasons", [""]))
        assert (group.finish_reasons[0] == "failed") == bool(kind)
        assert np.isnan(group.rewards).all() if kind else (group.rewards == 1).all()
        assert (group.answer in ("reset", "wide")) == (len(group.tokens) == 0)
        counts[kind] += group.num_completions
    trained = [row for row in log(folder) if row["kind"] == "train"]
    for kind in ("error", "invalid"):
        assert sum(row.get(f"verify_failures_{kind}", 0) for row in trained) == counts[kind] > 0
