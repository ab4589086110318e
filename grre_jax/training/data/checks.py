"""Checks that a run can learn from its data: it has what the objective requires, its ratio compares
like with like, and most of its completions have a verdict.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Sequence

from grre_jax.errors import DataError
from grre_jax.objectives import Objective
from grre_jax.rollouts import Group
from grre_jax.rollouts.logprob_checks import ROUNDING
from grre_jax.rollouts.schema import STORED_FIELDS
from grre_jax.tasks.judging import FIELD, REASONS

FAILURE_WINDOW = 20  # steps whose completions task.max_failure_share is a share of


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
            f" truncated distribution {group.truncation}, got a token {over:.3g} above. {fix}"
        )
