"""Evaluation: accuracy, reward and its components on held-out questions, with KL to the start.

Each question is answered by sampling and once by greedy decoding. Sampled accuracy alone measures
how sharp a policy is as much as what it has learned.
"""

import dataclasses
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool

from grre_jax.errors import UsageError
from grre_jax.random_streams import Purpose
from grre_jax.reporting.intervals import mean_interval, wilson_interval
from grre_jax.rollouts import Group, correctness
from grre_jax.tasks import Question
from grre_jax.training import build
from grre_jax.training.actors.calls import evaluation_settings
from grre_jax.training.actors.explorer import Explorer, make_explorer
from grre_jax.training.completion_logprobs import score_groups
from grre_jax.training.runtime.metrics import component_means, failure_scalars


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


def make_evaluator(parts: build.Parts, graph: Any) -> Evaluator:
    """Returns the evaluator of a configuration."""
    settings = evaluation_settings(parts.config)
    sampled = make_explorer(parts, graph, settings, Purpose.EVALUATE)
    if not parts.config.evaluation.greedy:
        return Evaluator(sampled, None)
    if settings.temperature == 0:
        return Evaluator(sampled, sampled)
    greedy = dataclasses.replace(settings, temperature=0.0, group_size=1)
    return Evaluator(sampled, make_explorer(parts, graph, greedy, Purpose.EVALUATE))


def evaluate(
    evaluator: Evaluator,
    params: Any,
    start_params: Any,
    questions: Sequence[Question],
    *,
    step: int,
) -> dict[str, float]:
    """Answers the held-out questions and scores the answers. The processes of a run share the
    questions, and each returns the figures of all.

    Args:
        evaluator: of `make_evaluator`.
        params: parameters to evaluate.
        start_params: parameters of the policy before training, for the KL.
        questions: held-out questions; always the same, with fresh draws at each step.
        step: the training step, part of the address of the draws.

    Returns:
        The result of `figures`.
    """
    sampled, greedy = answer(evaluator, params, questions, step=step)
    return figures(evaluator, sampled, greedy, start_params)


def answer(
    evaluator: Evaluator, params: Any, questions: Sequence[Question], *, step: int
) -> tuple[list[Group], list[Group]]:
    """Answers the held-out questions.

    Args:
        evaluator, params, questions, step: as for `evaluate`.

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
    known = None
    if rewards.size:
        low, high = mean_interval(rewards)
        result = {"reward": float(rewards.mean()), "reward_low": low, "reward_high": high}
        if (known := correctness(sampled)) is not None:
            result |= _accuracy(np.concatenate(known))
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
    result |= _greedy_figures(greedy, known is not None)
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
