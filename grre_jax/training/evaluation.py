"""Evaluation of policies on held-out questions, of a run while it trains, and of a finished run or
of a model (`grre evaluate`): accuracy, reward and its components, KL to the start, pass@k and
maj@k.

Each question is answered by sampling and once by greedy decoding. Sampled accuracy alone measures
how sharp a policy is as much as what it has learned.
"""

import collections
import dataclasses
import json
import math
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool

from grre_jax.console import make_console
from grre_jax.errors import UsageError
from grre_jax.models.source import ModelSource
from grre_jax.parallel import processes
from grre_jax.random_streams import Purpose
from grre_jax.reporting.intervals import mean_interval, over_questions, wilson_interval
from grre_jax.reporting.run_report import print_evaluations
from grre_jax.rollouts import Group, correctness
from grre_jax.sampling_params import SamplingConfig, SamplingParams
from grre_jax.storage.files import replace
from grre_jax.tasks import Question, Task
from grre_jax.training import build, policies
from grre_jax.training.actors.calls import evaluation_questions, evaluation_settings
from grre_jax.training.actors.explorer import Explorer, make_explorer
from grre_jax.training.actors.trajectories import prompts
from grre_jax.training.config.run import Config, differences, override
from grre_jax.training.metrics import component_means, failure_scalars
from grre_jax.training.policies import score_groups


@dataclasses.dataclass(frozen=True)
class Evaluator:
    """Explorers of held-out questions.

    Attributes:
        sampled: draws an evaluation's completions.
        greedy: decodes one completion per question greedily; `sampled` itself if its temperature is
            0, None for no greedy figures.
    """

    sampled: Explorer
    greedy: Explorer | None

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of the sampled completions, as results record them."""
        return {"num_samples": self.sampled.config.group_size} | self.sampled.config.to_json()


def make_evaluator(parts: build.Parts) -> Evaluator:
    """Returns the evaluator of a configuration."""
    settings = evaluation_settings(parts.config)
    sampled = make_explorer(parts, settings, Purpose.EVALUATE)
    if not parts.config.evaluation.greedy:
        return Evaluator(sampled, None)
    if settings.temperature == 0:
        return Evaluator(sampled, sampled)
    greedy = dataclasses.replace(settings, temperature=0.0, group_size=1)
    return Evaluator(sampled, make_explorer(parts, greedy, Purpose.EVALUATE))


def answer(
    evaluator: Evaluator, params: Any, questions: Sequence[Question], *, step: int
) -> tuple[list[Group], list[Group]]:
    """Answers the held-out questions. The processes of a run share the questions, and each returns
    the groups of all.

    Args:
        evaluator: of `make_evaluator`.
        params: parameters to evaluate.
        questions: held-out questions; always the same, with fresh draws at each step.
        step: the training step, part of the address of the draws.

    Returns:
        The judged groups of the sampled completions, and groups whose first completion is the
        greedy one: the same list at temperature 0, an empty one for no greedy figures.
    """

    def groups(explorer: Explorer) -> list[Group]:
        # The attempt is part of the draws' address: each step's evaluation draws anew.
        return explorer.groups(
            params, questions, range(len(questions)), policy_version=step, attempt=step
        )

    sampled = groups(evaluator.sampled)
    if evaluator.greedy is evaluator.sampled:
        return sampled, sampled
    return sampled, groups(evaluator.greedy) if evaluator.greedy else []


def figures(
    evaluator: Evaluator,
    sampled: Sequence[Group],
    greedy: Sequence[Group],
    start_params: Any = None,
) -> dict[str, float]:
    """Computes the mean figures of completions.

    Args:
        evaluator: the evaluator that answered.
        sampled, greedy: result of `answer`.
        start_params: parameters of the policy before training; None to leave out kl_to_start.

    Returns:
        reward: mean reward of the sampled completions, with its 95% interval reward_low and
            reward_high.
        accuracy: share of correct sampled completions (`rollouts.correctness`), with its 95% Wilson
            interval accuracy_low and accuracy_high; absent if the verdicts have no correctness.
        component_NAME: mean of each component of the verdicts.
        response_length: generated tokens per completion.
        kl_to_start: the k3 estimate of KL(policy || start), nats per token. It is valid for draws
            of the policy itself, and absent at another temperature than 1, with truncation, or
            without any token.
        greedy_reward, greedy_accuracy, greedy_accuracy_low, greedy_accuracy_high: of the greedy
            completions; absent without them.
        verify_failures: completions without a verdict, greedy ones included; absent if there are
            none. They count in no other figure of verdicts, and a figure of none is absent.

        Intervals are over completions, given the questions. All but the greedy figures and
        verify_failures are of the sampled completions alone.
    """
    # In float64, in which a mean over many float32 rewards keeps its digits.
    rewards = np.concatenate([g.judged_rewards for g in sampled]).astype(np.float64)
    result: dict[str, float] = {}
    verdicts = None
    if rewards.size:
        low, high = mean_interval(rewards)
        result = {"reward": float(rewards.mean()), "reward_low": low, "reward_high": high}
        if (verdicts := correctness(sampled)) is not None:
            result |= _accuracy(np.concatenate(verdicts))
        result |= component_means(sampled)
    generated = np.concatenate([g.mask for g in sampled]) != 0
    result["response_length"] = float(generated.sum() / sum(g.num_completions for g in sampled))
    explorer = evaluator.sampled
    # Where an environment did not begin there are no tokens, and no log-probs.
    drawn = [group for group in sampled if len(group.tokens)]
    if drawn and start_params is not None and explorer.config.draws_from_policy:
        start = np.concatenate(score_groups(explorer.graph, start_params, drawn, explorer.mesh))
        log_ratio = start - np.concatenate([g.policy_logprobs for g in drawn])  # log start/policy
        log_ratio = log_ratio[generated]
        # Schulman's k3, r - 1 - log r with r = start/policy: unbiased, and never negative.
        result["kl_to_start"] = float(np.mean(np.expm1(log_ratio) - log_ratio))
    result |= _greedy_figures(greedy, verdicts is not None)
    return result | failure_scalars(sampled if greedy is sampled else [*sampled, *greedy])


def _greedy_figures(groups: Sequence[Group], judged: bool) -> dict[str, float]:
    """Computes the figures of each group's first completion; {} without groups.

    Args:
        groups: of the held-out questions.
        judged: the verdicts of the sampled completions have a correctness.
    """
    groups = [group for group in groups if group.judged[0]]
    if not groups:
        return {}
    result = {"reward": float(np.mean([g.rewards[0] for g in groups], dtype=np.float64))}
    if judged and correctness(groups) is not None:
        result |= _accuracy(np.array([group.correct[0] for group in groups]))
    return {f"greedy_{name}": value for name, value in result.items()}


def _accuracy(right: Bool[np.ndarray, " n"]) -> dict[str, float]:
    low, high = wilson_interval(float(right.sum()), right.size)
    return {"accuracy": float(right.mean()), "accuracy_low": low, "accuracy_high": high}


def refuse_contaminated(parts: build.Parts, contains: Collection[str]) -> None:
    """Refuses to evaluate on a benchmark split that the training data contains, unless
    evaluation.allow_contaminated is set.

    Args:
        parts: of the run, whose task names the split as `evaluation_source`, if it has one.
        contains: benchmark splits in the training data.

    Raises:
        UsageError: the split is in `contains`.
    """
    split = getattr(parts.task, "evaluation_source", "")
    if split in contains and not parts.config.evaluation.allow_contaminated:
        raise UsageError(
            f"the training data contains questions of {split}, so evaluating on it would report"
            " memory as skill: choose other questions, or pass --evaluation.allow-contaminated"
            " true"
        )


def pass_at_k(n: int, correct: int, k: int) -> float:
    """Computes the probability that k of a question's n completions, drawn without replacement,
    include a correct one: 1 - C(n - c, k) / C(n, k).

    It is an unbiased estimate of the probability that k new completions include one (Chen et al.,
    "Evaluating Large Language Models Trained on Code", arXiv 2107.03374, eq. 1).

    Args:
        n: completions of the question.
        correct: correct ones (c), 0 to n.
        k: 1 to n.
    """
    # In Python's integers: binomials would overflow floating point.
    return 1 - math.comb(n - correct, k) / math.comb(n, k)


def majority_at_k(
    answers: Sequence[Hashable | None], right: Bool[np.ndarray, " samples"], k: int
) -> float:
    """Computes the share of correct majority votes among the n // k disjoint runs of k consecutive
    completions of a question.

    Completions are drawn independently from one distribution, so each run is a vote of k new ones,
    and the mean is unbiased. A run without any answer is a wrong vote.

    Args:
        answers: of the completions; None for a completion without one, which does not vote.
        right: [samples] True for correct completions.
        k: voters, 1 to n.
    """
    correct = []
    for start in range(0, len(right) - k + 1, k):
        votes = collections.Counter(x for x in answers[start : start + k] if x is not None)
        # A Counter returns equally frequent ones in the order in which they were first seen.
        winner = votes.most_common(1)
        correct.append(bool(winner) and bool(right[answers.index(winner[0][0], start)]))
    return float(np.mean(correct))


def pass_metrics(groups: Sequence[Group], task: Task) -> dict[str, Any]:
    """Computes pass@k and maj@k for k = 1, 2, 4, ... up to the completions per question, with 95%
    intervals over questions.

    Args:
        groups: one per question, with the same number of completions.
        task: the task that judged them. Its `final_answer`, if it has one, returns a completion's
            answer.

    Returns:
        JSON values: {"num_samples": n, "pass_at_k": {"1": {"value", "low", "high"}, ...},
        "maj_at_k": likewise}. Both are absent if verdicts have no correctness and rewards are not
        all 0 or 1, and maj_at_k if the task has no `final_answer`. Completions without a verdict
        are left out; a question with fewer than k others does not count in the figure of k, which
        is absent without any question.
    """
    result: dict[str, Any] = {"num_samples": len(groups[0].texts)}
    right = correctness(groups)
    if right is None:
        return result
    result["pass_at_k"] = _for_each_k(
        right, lambda row, _, k: pass_at_k(len(row), int(row.sum()), k)
    )
    if answer := getattr(task, "final_answer", None):
        votes = [
            [answer(text) for text, judged in zip(group.texts, group.judged, strict=True) if judged]
            for group in groups
        ]
        result["maj_at_k"] = _for_each_k(
            right, lambda row, question, k: majority_at_k(votes[question], row, k)
        )
    return result


def _for_each_k(
    right: Sequence[Bool[np.ndarray, " judged"]],
    value: Callable[[Bool[np.ndarray, " judged"], int, int], float],
) -> dict[str, dict[str, float]]:
    """Returns the figures for k = 1, 2, 4, ... of questions with at least k completions."""
    figures = {}
    for k in (1 << i for i in range(max(map(len, right)).bit_length())):
        values = [value(row, i, k) for i, row in enumerate(right) if len(row) >= k]
        if values:
            figures[str(k)] = over_questions(np.array(values))
    return figures


# Fields that an evaluation may set, or their beginnings. What it draws is under `evaluation`: other
# fields of sampling would have no effect.
FIELDS = (
    "data.",
    "evaluation.",
    "mesh.",
    "model.",
    "run_dir",
    "sampling.cache_dtype",
    "sampling.max_",
    "sampling.prompts_per_call",
    "sampling.wait_for_answers",
    "seed",
    "task.",
)
# The limit on prompts is a multiple of this, so that tasks with similar longest questions share a
# program.
PROMPT_TOKENS = 16


def evaluate_run(folder: Path, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """Evaluates a run's first and last policy and writes evaluation.json into its folder. Several
    processes may share the work.

    Args:
        folder: the run.
        overrides: configuration fields as on the command line, such as --evaluation.questions 1000.

    Returns:
        The contents of evaluation.json: {"steps", "questions", "sampling": `Evaluator.settings`,
        "first" and "last": `figures` and `pass_metrics`}.

    Raises:
        UsageError: an invalid override, no questions, or a benchmark split that the training data
            contains.
        DataError: the folder is not a run's or has no checkpoints.
    """
    config = _overridden(policies.load_config(folder), overrides)
    config = dataclasses.replace(config, run_dir=str(folder))
    parts = build.build(config)
    (first, last), (_, step) = policies.policies_at(folder, parts, (0, None))
    refuse_contaminated(parts, build.contents(folder / "provenance.json"))
    questions = evaluation_questions(parts)
    measured = {"first": (0, first), "last": (step, last)}
    result = {"steps": [0, step]} | _evaluated(parts, questions, measured, first)
    text = json.dumps(result, indent=2) + "\n"
    processes.on_first(lambda: replace(folder / "evaluation.json", text))
    return result


def evaluate_model(path: Path, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """Evaluates a model on a task's held-out questions. Several processes may share the work.

    Args:
        path: a Hugging Face folder.
        overrides: configuration fields as on the command line: --task.name gsm8k
            --evaluation.num-samples 8. sampling.max_new_tokens is 256 if not given; the limit on
            prompts fits the questions.

    Returns:
        {"model", "task", "questions", "sampling": `Evaluator.settings`, "policy": `figures` and
        `pass_metrics`}.

    Raises:
        UsageError: an invalid override, no questions, or a benchmark split that the model was
            trained on.
        DataError: the model or the task's data is missing or damaged.
    """
    plain = Config(
        name="evaluate",
        model=ModelSource(path=str(path)),
        sampling=SamplingConfig(max_new_tokens=SamplingParams.max_new_tokens),
    )
    config = _overridden(plain, overrides)
    parts = build.build(config)
    refuse_contaminated(parts, build.model_contents(config))
    questions = parts.task.evaluation(config.evaluation.questions)
    parts = _with_room(parts, questions)
    measured = {"policy": (0, parts.params)}
    described = {"model": str(path), "task": parts.task.name}
    return described | _evaluated(parts, questions, measured)


def _overridden(config: Config, overrides: Sequence[str]) -> Config:
    """Returns a configuration with overrides, which may be of some fields alone."""
    result = override(config, overrides)
    changed = differences(dataclasses.asdict(config), dataclasses.asdict(result))
    # The path of the model is an argument of the command, and no override.
    other = [name for name in changed if not name.startswith(FIELDS) or name == "model.path"]
    if other:
        raise UsageError(
            f"grre evaluate takes only fields under {', '.join(FIELDS)}, got {', '.join(other)}"
        )
    if not result.evaluation.questions:
        raise UsageError("evaluation.questions: expected at least 1 to evaluate, got 0")
    return result


def _evaluated(
    parts: build.Parts,
    questions: Sequence[Question],
    measured: Mapping[str, tuple[int, Any]],
    start_params: Any = None,
) -> dict[str, Any]:
    """Evaluates policies, steps and parameters by name, and prints their figures."""
    evaluator = make_evaluator(parts)
    rows = {}
    for name, (step, params) in measured.items():
        groups, greedy = answer(evaluator, params, questions, step=step)
        row = figures(evaluator, groups, greedy, start_params)
        rows[name] = (step, row | pass_metrics(groups, parts.task))
    print_evaluations(rows, make_console(quiet=not processes.is_first()))
    return {
        "questions": len(questions),
        "sampling": evaluator.settings,
        **{name: row for name, (_, row) in rows.items()},
    }


def _with_room(parts: build.Parts, questions: Sequence[Question]) -> build.Parts:
    """Returns the parts with a limit on prompts that fits the questions.

    Raises:
        UsageError: the model is too small for the longest question with its completion.
    """
    config = parts.config
    longest = max(len(tokens) for _, tokens in prompts(parts, questions))
    new = evaluation_settings(config).max_new_tokens
    room = parts.model.config.max_positions
    if longest + new > room:
        raise UsageError(
            f"evaluation.max_new_tokens: expected at most {room - longest} beside the longest"
            f" question, of {longest} tokens, got {new}"
        )
    limit = -(-max(longest, config.sampling.max_prompt_tokens) // PROMPT_TOKENS) * PROMPT_TOKENS
    sampling = dataclasses.replace(config.sampling, max_prompt_tokens=limit)
    return dataclasses.replace(parts, config=dataclasses.replace(config, sampling=sampling))
