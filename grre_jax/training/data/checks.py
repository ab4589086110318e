"""Checks that a run can learn from its data and that its evaluation measures what it learned: the
data has what the objective requires, its ratio compares like with like, and no evaluation question
is trained on.
"""

from __future__ import annotations

import itertools
import logging
import random
import time
from collections import deque
from collections.abc import Sequence

from grre_jax.errors import DataError, UsageError
from grre_jax.objectives import Objective
from grre_jax.parallel import processes
from grre_jax.rollouts import Group
from grre_jax.rollouts.schema import STORED_FIELDS
from grre_jax.tasks import Task
from grre_jax.tasks.judging import FIELD, REASONS
from grre_jax.tasks.task import questions
from grre_jax.training.config.run import Config

MOST_ASKED, MOST_SECONDS = 4096, 2.0  # limits of a look at the run's own training stream
ROUNDING = 0.02  # nats by which log-probs of the same logits may differ: two bfloat16 sums
FAILURE_WINDOW = 20  # steps whose completions task.max_failure_share is a share of

_log = logging.getLogger(__name__)


class FailureBound:
    """Stops a run most of whose completions get no verdict.

    The steps of the window that are still to come count as steps without failures, so that a
    failure at the start alone stops no run.

    Args:
        share: largest share of the completions of the window that may be without a verdict.
        steps: of the run, which are its window if they are fewer than FAILURE_WINDOW.
    """

    def __init__(self, share: float, steps: int):
        self._share = share
        self._steps = min(FAILURE_WINDOW, steps)
        self._window: deque[tuple[int, int]] = deque(maxlen=self._steps)
        self._reason = ""

    def check(self, groups: Sequence[Group]) -> None:
        """Takes in the groups of a step that the run sampled.

        Raises:
            DataError: too many completions of the window have no verdict; with the first reason.
        """
        failures = [
            f"{kind}: {reason}"
            for group in groups
            for kind, reason in itertools.zip_longest(
                group.extra.get(FIELD, ()), group.extra.get(REASONS, ()), fillvalue=""
            )
            if kind
        ]
        self._reason = self._reason or "".join(failures[:1])
        completions = sum(group.num_completions for group in groups)
        self._window.append((len(failures), completions))
        failed, judged = map(sum, zip(*self._window, strict=True))
        if failed > self._share * judged * self._steps / len(self._window):
            raise DataError(
                f"task.max_failure_share: expected at most {self._share:g} of the completions of"
                f" {self._steps} steps without a verdict, got {failed} of {judged} in"
                f" {len(self._window)} steps. The first: {self._reason}. Correct the verifier or"
                " the environment and go on with --resume, or raise the bound."
            )


def is_expert_demonstration(group: Group, objective: Objective) -> bool:
    """True if the whole group is an expert's and the objective treats an expert's completions
    separately: it then needs neither log-probs nor a signal.
    """
    return "expert" in objective.requires and bool(group.is_expert.all())


def require_logprobs(group: Group, name: str, where: str) -> None:
    """Refuses a group without log-probs that the run takes from the data.

    Args:
        group: to check.
        name: its field, behavior_logprobs, ref_logprobs or prox_logprobs.
        where: the group, for the message.

    Raises:
        DataError: the group has none.
    """
    if getattr(group, name) is None:
        role = {field: role for role, field in STORED_FIELDS.items()}.get(name, "behavior")
        raise DataError(
            f"{where}: expected {name}, which the fields objective.name and objective.stored of"
            f" this run need, got none. Compute them with `grre rollouts rescore --as {role}`, or"
            " choose an objective without a ratio, such as reinforce, red_drop, red_weight or"
            " asymre"
        )


def check_group(objective: Objective, temperature: float, group: Group, where: str) -> None:
    """Refuses a stored group that the objective cannot learn from.

    A ratio compares the policy with the stored behaviour log-probs, both at the sampling
    temperature and over the full vocabulary, regardless of the top-k, top-p or min-p that the data
    was drawn with.

    Args:
        objective: the run's.
        temperature: of the log-probs that training computes.
        group: stored.
        where: the group, for the message.

    Raises:
        DataError: the objective needs behaviour log-probs and the group has none, or they are of
            another temperature, or of a truncated distribution.
    """
    if "old_logprobs" not in objective.requires or is_expert_demonstration(group, objective):
        return
    require_logprobs(group, "behavior_logprobs", where)
    fix = "Compute them under a checkpoint with `grre rollouts rescore`"
    if group.temperature != temperature:
        raise DataError(
            f"{where}: expected log-probs at sampling.temperature = {temperature:g}, since a ratio"
            f" compares two distributions, got {group.temperature:g}. {fix}, or set the field"
        )
    if group.sampling_logprobs is None:
        return
    over = (group.behavior_logprobs - group.sampling_logprobs)[group.mask != 0].max(initial=0)
    if over > ROUNDING:
        raise DataError(
            f"{where}: expected behavior_logprobs over the full vocabulary, at most those of the"
            f" truncated distribution (top_k {group.top_k}, top_p {group.top_p}, min_p"
            f" {group.min_p}), got a token {over:.3g} above. {fix}"
        )


class HeldOut:
    """The evaluation questions of a run that training asks too, by their ids or exact prompts; none
    if the run may evaluate on what it trains on.

    Args:
        config: of the run.
        task: its task.
    """

    def __init__(self, config: Config, task: Task):
        evaluation = config.evaluation
        count = 0 if evaluation.allow_contaminated else evaluation.questions
        questions = task.evaluation(count) if count else ()
        self.count = len(questions)
        self._found: dict[int, str] = {}
        self._numbers: dict[tuple[int, str], list[int]] = {}
        for number, question in enumerate(questions):
            for key in _names(question.question_id, question.prompt):
                self._numbers.setdefault(key, []).append(number)

    def see(self, question_id: str, prompt: str, where: str) -> None:
        """Compares a question that training asks with those of the evaluation.

        Args:
            question_id: its id; empty if unknown.
            prompt: its prompt; empty if unknown.
            where: its location, for the example.
        """
        for key in _names(question_id, prompt):
            for number in self._numbers.get(key, ()):
                self._found.setdefault(number, f"{question_id or repr(prompt[:60])}, {where}")

    def sentence(self) -> str:
        """Returns a warning that counts the questions in both; "" if there are none."""
        if not self._found:
            return ""
        return (
            f"{len(self._found)} of the {self.count} evaluation questions are trained on"
            f" ({next(iter(self._found.values()))}): the evaluation measures memory there; let the"
            " task's `evaluation` return questions that `question` never does"
        )


def _names(question_id: str, prompt: str) -> list[tuple[int, str]]:
    return [name for name in enumerate((question_id, prompt)) if name[1]]


def leaked(config: Config, task: Task) -> str:
    """Returns a warning if the evaluation shares questions with the run's training stream or its
    warm start; "" if it does not. Looks at `MOST_ASKED` positions, for `MOST_SECONDS` at most.

    Args:
        config: of the run.
        task: its task.
    """
    held_out = HeldOut(config, task)
    if not held_out.count:
        return ""
    count = config.warm_start.demonstrations if config.warm_start.steps else 0
    if config.samples:
        last = config.regime.batch(config.training.steps - 1)
        count = max(count, config.schedule.positions(last).stop)
    # Drawn: equal steps would miss questions of a stream that repeats.
    looked_at = random.Random(0).sample(range(count), min(count, MOST_ASKED))
    until = time.monotonic() + MOST_SECONDS
    try:
        for position, question in zip(looked_at, questions(task, looked_at), strict=True):
            where = f"at position {position} of the training stream"
            held_out.see(question.question_id, question.prompt, where)
            if time.monotonic() > until:
                break
    except (DataError, UsageError) as error:  # only the explorers may have the task's data
        why = str(error).rstrip(".")
        return f"whether evaluation questions are trained on cannot be checked: {why}"
    return held_out.sentence()


def warn_of_leak(sentence: str) -> None:
    """Logs a warning from `HeldOut.sentence` in the first process; nothing if it is empty."""
    if sentence and processes.is_first():
        _log.warning("%s", sentence)
