"""Rewards of stored completions under another verifier."""

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from grre_jax import rollouts
from grre_jax.rollouts import Group
from grre_jax.rollouts.tools.copying import derive
from grre_jax.tasks import Question
from grre_jax.tasks.judging import FAILED_REWARD, FIELD, REASONS, InProcess, Judged

GROUPS_AT_ONCE = 64  # judged together, so that all processes have something to do


def reverify(
    folder: str | Path,
    output: str | Path,
    judge: InProcess,
    described: dict[str, Any],
    *,
    done: Callable[[int], None] = lambda groups: None,
    judges: int = 1,
) -> int:
    """Copies a rollout folder with the rewards and components that another verifier gives.

    Args:
        folder: the rollout folder. The verifier gets each group's question id, prompt and answer,
            and its completions' texts.
        output: the new folder, or one that an interrupted call with the same arguments began.
        judge: the verifier.
        described: JSON fields for the copies' history; `reward` also becomes the data sets'.
        done: called now and then with the number of groups processed since.
        judges: that share the groups which are judged together, GROUPS_AT_ONCE each.

    Returns:
        Number of completions whose reward changed, of those that this call judged.

    Raises:
        UsageError: the output holds something else.
        DataError: the folder is empty or damaged.
    """
    source = rollouts.read(folder)
    changes = 0

    def changed(numbers: range) -> Iterator[Group]:
        nonlocal changes
        size = GROUPS_AT_ONCE * judges
        for start in range(0, len(numbers), size):
            groups = [source[number] for number in numbers[start : start + size]]
            judgements = judge(
                [(Question(g.question_id, g.prompt, g.answer), g.texts) for g in groups]
            )
            for group, judged in zip(groups, judgements, strict=True):
                now = _with(group, judged)
                same = np.isclose(group.rewards, now.rewards, rtol=0, atol=0, equal_nan=True)
                changes += int((~same).sum())
                yield now
            done(len(groups))

    step = {"operation": "reverify"} | described
    own = {"reward": described["reward"]} if "reward" in described else {}
    derive(source, output, changed, step, own)
    return changes


def _with(group: Group, judged: Judged) -> Group:
    extra = dict(group.extra)
    for name in (FIELD, REASONS, FAILED_REWARD):
        extra.pop(name, None)
    return dataclasses.replace(
        group, rewards=judged.rewards, components=judged.components, extra=extra | judged.extra
    )
