"""Evaluation against the same figures done by hand."""

import dataclasses

import jax
import numpy as np
import pytest

from grre_jax import rollouts, sampling
from grre_jax.config import (
    SamplingConfig,
)
from grre_jax.errors import UsageError
from grre_jax.random_streams import Purpose
from grre_jax.reporting import wilson_interval
from grre_jax.tasks import Question, Verdict
from grre_jax.tasks.judging import InProcess
from grre_jax.training import build, loop, run_folder
from grre_jax.training.actors.explorer import Explorer
from grre_jax.training.completion_logprobs import score_groups
from grre_jax.training.data import checks
from grre_jax.training.data.checks import leaked
from grre_jax.training.evaluation.evaluate import (
    Evaluator,
    evaluate,
    make_evaluator,
)
from grre_jax.training.preflight import require_best
from grre_jax.training.verdict_metrics import verdict_scalars

from ...groups import text_group
from ...run_processes import first_state

FREE = ("--evaluation.questions 0", "--evaluation.allow_contaminated true")


class Judge:
    """An untrained policy is never right; this reward it gets about half the time."""

    name = "judge"

    def verify(self, question, completion):
        return Verdict(float(len(completion) % 2))


@pytest.fixture(scope="module")
def setting(make_config, tmp_path_factory):
    """(explorer, first parameters, other parameters, held-out questions)."""
    parts = build.build(make_config(tmp_path_factory.mktemp("evaluate") / "run"))
    graph, state = first_state(parts)
    settings = SamplingConfig(
        group_size=4, max_prompt_tokens=4, max_new_tokens=3, prompts_per_call=4
    )
    task = Judge()
    judge = InProcess(task)
    explorer = Explorer(
        graph, task, parts.tokenizer, settings, parts.mesh, 0, judge, Purpose.EVALUATE
    )
    draw = np.random.default_rng(0)
    other = jax.tree.map(
        lambda p: p + np.float32(0.1) * draw.normal(size=p.shape).astype(np.float32), state.params
    )
    return explorer, state.params, other, parts.task.evaluation(12)


def test_figures_by_hand(setting):
    explorer, first, other, questions = setting
    result = evaluate(Evaluator(explorer, None), other, first, questions, step=7)
    groups = explorer.groups(other, questions, range(12), policy_version=7, attempt=7)
    rewards = np.concatenate([group.rewards for group in groups])
    for name in ("accuracy", "reward"):
        assert result[name] == pytest.approx(rewards.mean()) and 0 < rewards.sum() < 48
        assert (result[f"{name}_low"], result[f"{name}_high"]) == pytest.approx(
            wilson_interval(rewards.sum(), 48)
        )
    assert result["response_length"] == pytest.approx(
        np.mean([length for group in groups for length in group.lengths])
    )
    start, policy = (
        np.concatenate(score_groups(explorer.graph, p, groups, explorer.mesh)).astype(float)
        for p in (first, other)
    )
    ratio = np.exp(start - policy)
    assert result["kl_to_start"] == pytest.approx(np.mean(ratio - 1 - np.log(ratio)), abs=1e-5)
    assert result["kl_to_start"] > 1e-3
    estimates = {name + end for name in ("accuracy", "reward") for end in ("", "_low", "_high")}
    assert set(result) == estimates | {"response_length", "kl_to_start"}


def test_greedy_figures_are_those_of_greedy_completions(make_config, setting):
    """Right is what the policy would most likely answer: greedy decoding always finds it, sampling
    often does not.
    """
    explorer, first, other, questions = setting
    settings = dataclasses.replace(explorer.config, group_size=1, temperature=0)
    greedy = dataclasses.replace(explorer, config=settings)
    drawn = greedy.groups(other, questions, range(12), policy_version=0)
    texts = {group.question_id: group.texts[0] for group in drawn}
    assert len(set(texts.values())) > 3

    class Likely(Judge):
        def verify(self, question, completion):
            likely = completion == texts[question.question_id]
            return Verdict(likely - 0.5, {"length": len(completion)}, correct=likely)

    parts = build.build(make_config("", "--evaluation.num_samples 1"))
    parts = dataclasses.replace(parts, task=Likely())
    vars(parts)["judge"] = InProcess(parts.task)  # a local class cannot be sent to another process
    evaluator = make_evaluator(parts, explorer.graph)
    alone = evaluate(dataclasses.replace(evaluator, greedy=None), other, first, questions, step=7)
    programs = sampling.compiled_programs()
    result = evaluate(evaluator, other, first, questions, step=7)
    assert sampling.compiled_programs() == programs  # single samples and greedy ones share them
    low, high = wilson_interval(12, 12)
    greedy = {"accuracy": 1.0, "accuracy_low": low, "accuracy_high": high, "reward": 0.5}
    assert result == alone | {f"greedy_{name}": value for name, value in greedy.items()}
    assert 0 <= result["accuracy"] < 0.9
    wrong = {identifier: text + "x" for identifier, text in texts.items()}
    texts = {**texts, **dict(list(wrong.items())[:3])}
    assert evaluate(evaluator, other, first, questions, step=7)["greedy_accuracy"] == 0.75


def test_the_best_is_by_a_figure_that_evaluations_have(make_config, tmp_path):
    config = make_config(tmp_path / "run", "--evaluation.questions 0 --checkpoint.best 2")
    with pytest.raises(UsageError, match="evaluation.questions"):
        loop.train(config)
    assert not config.folder.exists()
    with pytest.raises(UsageError, match="best_metric"):  # the task does not give it
        require_best(make_config("", "--checkpoint.best 1"), {"reward": 0.5})


def test_a_policy_is_no_distance_from_itself_and_each_step_draws_anew(setting):
    explorer, first, _, questions = setting
    evaluator = Evaluator(explorer, None)
    results = [evaluate(evaluator, first, first, questions, step=step) for step in (0, 0, 1)]
    assert results[0] == results[1] and results[0] != results[2]
    assert all(abs(result["kl_to_start"]) < 1e-8 for result in results)


def test_a_run_on_contaminated_data_is_refused_before_it_begins(make_config, tmp_path, monkeypatch):
    """Data that says it holds the held-out questions; with the flag the run goes on (as far as
    this test lets it).
    """
    contains = {"contains": ["arithmetic/held-out"]}
    rollouts.write(tmp_path / "r", map(text_group, range(4)), writer="import", metadata=contains)
    words = f"--data.path {tmp_path / 'r'} --objective.name reinforce"
    config = make_config(tmp_path / "run", words)
    with pytest.raises(UsageError, match="arithmetic/held-out"):
        loop.train(config)
    assert not (tmp_path / "run").exists()

    def begin(*_, **__):
        raise InterruptedError

    monkeypatch.setattr(run_folder, "open_run_folder", begin)
    for more in FREE:
        with pytest.raises(InterruptedError):
            loop.train(make_config(tmp_path / "run", f"{words} {more}"))


def test_what_a_training_row_says_of_verdicts():
    """Rewards of -1 and 1 are no accuracy; correctness is, and each component has a mean of its
    own.
    """

    def group(rewards, **components):
        return text_group(0, rewards=rewards, components=components)

    groups = [group([-1, 1], correct=[0, 1], format=[1, 0.5]), group([0, 1], format=[0, 0])]
    assert verdict_scalars(groups) == {"accuracy": 0.5, "component_format": 0.375}
    assert verdict_scalars([group([0, 1]), group([-1, 3])]) == {}  # one group that does not say


class Stream:
    """Questions by position; some of them are the evaluation's."""

    name = "stream"

    def __init__(self, held_out):
        self._held_out = held_out

    def question(self, position):
        return Question(f"q{position % 50}", f"What is {position % 50}?", "?")

    def evaluation(self, count):
        return self._held_out[:count]


def test_evaluation_questions_that_are_trained_on_are_counted_with_an_example(
    make_config, tmp_path, monkeypatch
):
    def found(words, questions):
        config = make_config(tmp_path / "run", f"--warm-start.steps {words}")
        return leaked(config, Stream(questions))

    clean = [Question("q31a", "What is 31 a?", "?"), Question("q49", "What is 49?", "?")]
    by_id, by_prompt = Question("q3", "Three?", "3"), Question("other", "What is 31?", "31")
    assert found("0", clean) == ""  # positions 0 to 31
    both = found("0", [*clean, by_id, by_prompt])
    assert both.startswith("2 of the 4") and "q3" in both
    for most in (checks.MOST_ASKED, 200):
        monkeypatch.setattr(checks, "MOST_ASKED", most)
        assert "1 of the 2" in found("0 --training.steps 100", clean)
    assert "q49, at position 49" in found("1 --warm-start.demonstrations 50", clean)
    for words in FREE:
        assert found(f"0 {words}", [by_id]) == ""
