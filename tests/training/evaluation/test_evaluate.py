"""Evaluation against the same figures done by hand."""

import dataclasses

import jax
import numpy as np
import pytest

from grre_jax.errors import UsageError
from grre_jax.reporting import wilson_interval
from grre_jax.tasks import Verdict
from grre_jax.tasks.judging import InProcess
from grre_jax.training import build, learner, preflight
from grre_jax.training.evaluation import Evaluator, answer, figures, make_evaluator
from grre_jax.training.metrics import verdict_scalars
from grre_jax.training.policies import score_groups

from ...groups import text_group
from ...run_processes import first_state


class Judge:
    """An untrained policy is never right; this reward it gets about half the time."""

    name = "judge"

    def verify(self, question, completion):
        return Verdict(float(len(completion) % 2))


def evaluate(evaluator, params, start_params, questions, step):
    groups = answer(evaluator, params, questions, step=step)
    return figures(evaluator, *groups, start_params)


@pytest.fixture(scope="module")
def setting(make_config, tmp_path_factory):
    """(evaluator without greedy completions, first parameters, other parameters, held-out
    questions).
    """
    parts = build.build(make_config(tmp_path_factory.mktemp("evaluate") / "run"))
    state = first_state(parts)
    task = parts.task
    explorer = make_evaluator(parts).sampled
    explorer = dataclasses.replace(explorer, task=Judge(), judge=InProcess(Judge()))
    draw = np.random.default_rng(0)
    other = jax.tree.map(
        lambda p: p + np.float32(0.1) * draw.normal(size=p.shape).astype(np.float32), state.params
    )
    return Evaluator(explorer, None), state.params, other, task.evaluation(12)


def test_figures_by_hand(setting):
    evaluator, first, other, questions = setting
    explorer = evaluator.sampled
    result = evaluate(evaluator, other, first, questions, step=7)
    groups = explorer.groups(other, questions, range(12), policy_version=7, attempt=7)
    right = sum(group.rewards.sum() for group in groups)
    assert 0 < right < 48
    low, high = wilson_interval(right, 48)
    lengths = np.concatenate([group.lengths for group in groups])
    start, policy = (
        np.concatenate(score_groups(explorer.graph, p, groups, explorer.mesh)).astype(float)
        for p in (first, other)
    )
    ratio = np.exp(start - policy)
    kl = np.mean(ratio - 1 - np.log(ratio))
    assert kl > 1e-3
    expected = {"response_length": lengths.mean(), "kl_to_start": kl}
    for name in ("accuracy", "reward"):
        expected |= {name: right / 48, f"{name}_low": low, f"{name}_high": high}
    assert result == pytest.approx(expected, abs=1e-5)


def test_environments_that_did_not_begin_have_no_part_in_the_kl(setting):
    """Their completions have no tokens and no log-probs; without any other there is no figure."""
    evaluator, first, other, questions = setting
    groups = evaluator.sampled.groups(other, questions[:4], range(4), policy_version=0)
    failed = text_group(9, rewards=[np.nan] * 2, extra={"verify_failures": ["error"] * 2})
    assert failed.policy_logprobs is None and not len(failed.tokens)
    expected = figures(evaluator, groups, [], first)["kl_to_start"]
    found = figures(evaluator, [groups[0], failed, *groups[1:]], [], first)["kl_to_start"]
    assert found == expected
    assert "kl_to_start" not in figures(evaluator, [failed], [], first)


def test_greedy_figures_are_those_of_greedy_completions(make_config, setting):
    """Right is what the policy would most likely answer: greedy decoding always finds it, sampling
    often does not.
    """
    alone, first, other, questions = setting
    settings = dataclasses.replace(alone.sampled.config, group_size=1, temperature=0)
    greedy = dataclasses.replace(alone.sampled, config=settings)
    drawn = greedy.groups(other, questions, range(12), policy_version=0)
    texts = {group.question_id: group.texts[0] for group in drawn}
    assert len(set(texts.values())) > 3

    class Likely(Judge):
        def verify(self, question, completion):
            likely = completion == texts[question.question_id]
            return Verdict(likely - 0.5, correct=likely)

    parts = build.build(make_config("", "--evaluation.num_samples 1 --evaluation.greedy true"))
    parts = dataclasses.replace(parts, task=Likely())
    vars(parts)["judge"] = InProcess(parts.task)  # a local class cannot be sent to another process
    evaluator = make_evaluator(parts)
    sampled = dataclasses.replace(evaluator, greedy=None)
    expected = evaluate(sampled, other, first, questions, step=7)
    assert 0 <= expected["accuracy"] < 0.9
    result = evaluate(evaluator, other, first, questions, step=7)
    low, high = wilson_interval(12, 12)
    assert result == expected | {
        "greedy_accuracy": 1,
        "greedy_accuracy_low": low,
        "greedy_accuracy_high": high,
        "greedy_reward": 0.5,
    }


def test_the_best_is_by_a_figure_that_evaluations_have(make_config):
    with pytest.raises(UsageError, match="best_metric"):  # the task does not give it
        learner._require_best(make_config("", "--checkpoint.best 1"), {"reward": 0.5})


def test_a_policy_is_no_distance_from_itself_and_each_step_draws_anew(setting):
    evaluator, first, _, questions = setting
    results = [evaluate(evaluator, first, first, questions, step=step) for step in (0, 0, 1)]
    assert results[0] == results[1] != results[2]
    assert all(abs(result["kl_to_start"]) < 1e-8 for result in results)


def test_a_run_on_contaminated_data_is_refused(make_config):
    def check(words=""):
        preflight.check(build.build(make_config("", words)), contains={"arithmetic/held-out"})

    with pytest.raises(UsageError, match="arithmetic/held-out"):
        check()
    check("--evaluation.questions 0")
    check("--evaluation.allow_contaminated true")


def test_what_a_training_row_says_of_verdicts():
    """Rewards of -1 and 1 are no accuracy; correctness is, and each component has a mean of its
    own. Nothing is said of it if one group does not say.
    """
    one = text_group(0, rewards=[-1, 1], components={"correct": [0, 1], "format": [1, 0.5]})
    other = text_group(1, rewards=[0, 1], components={"format": [0, 0]})
    found = verdict_scalars([one, other])
    assert found == {"accuracy": 0.5, "component_format": 0.375}
    assert verdict_scalars([text_group(0), text_group(1, rewards=[-1, 3])]) == {}
