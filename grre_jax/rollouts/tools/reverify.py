"""Rewards of stored completions under another verifier."""

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from grre_jax import rollouts
from grre_jax.rollouts import Group
from grre_jax.rollouts.tools.copying import derive
from grre_jax.tasks import Question
from grre_jax.tasks.judging import FAILED_REWARD, FIELD, REASONS, Judged
from grre_jax.tasks.pool import Judge

GROUPS_AT_ONCE = 64  # judged together, so that all processes have something to do
BEFORE = "rewards_before"  # in a group's `extra`: what earlier verifiers said, oldest first
Change = tuple[float | None, float | None]  # reward before and now, None without a verdict


def reverify(
    folder: str | Path,
    output: str | Path,
    judge: Judge,
    described: dict[str, Any],
    *,
    done: Callable[[int], None] = lambda groups: None,
    judges: int = 1,
) -> Counter[Change]:
    """Copies a rollout folder with the rewards and components that another verifier gives.

    The former ones are kept in the groups' `extra`, under BEFORE.

    Args:
        folder: the rollout folder. The verifier gets each group's question id, prompt and answer,
            and its completions' texts.
        output: the new folder, or one that an interrupted call with the same arguments began.
        judge: the verifier.
        described: JSON fields for the copies' history; `reward` also becomes the data sets'.
        done: called now and then with the number of groups processed since.
        judges: that share the groups which are judged together, GROUPS_AT_ONCE each.

    Returns:
        Number of completions by (reward before, reward now), of those that this call judged.

    Raises:
        UsageError: the output holds something else.
        DataError: the folder is empty or damaged.
    """
    source = rollouts.read(folder)
    changes: Counter[Change] = Counter()

    def changed(numbers: range) -> Iterator[Group]:
        size = GROUPS_AT_ONCE * judges
        for start in range(0, len(numbers), size):
            groups = [source[number] for number in numbers[start : start + size]]
            judgements = judge(
                [(Question(g.question_id, g.prompt, g.answer), g.texts) for g in groups]
            )
            for group, judged in zip(groups, judgements, strict=True):
                now = _with(group, judged)
                changes.update(zip(_numbers(group.rewards), _numbers(now.rewards), strict=True))
                yield now
            done(len(groups))

    step = {"operation": "reverify"} | described
    own = {"reward": described["reward"]} if "reward" in described else {}
    derive(source, output, changed, step, own)
    return changes


def _numbers(row: np.ndarray) -> list[float | None]:
    """Returns rewards or components as values of JSON: None, which is null, for NaN."""
    return [None if np.isnan(number) else float(number) for number in row]


def _with(group: Group, judged: Judged) -> Group:
    before: dict[str, Any] = {
        "rewards": _numbers(group.rewards),
        "components": {name: _numbers(row) for name, row in group.components.items()},
    }
    extra = dict(group.extra)
    if FIELD in extra:
        before[FIELD] = extra[FIELD]
    for name in (FIELD, REASONS, FAILED_REWARD):
        extra.pop(name, None)
    extra |= {BEFORE: [*extra.get(BEFORE, []), before]} | judged.extra
    return dataclasses.replace(
        group, rewards=judged.rewards, components=judged.components, extra=extra
    )
