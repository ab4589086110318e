"""Completions of a run to be looked at: a few groups of its rollout folder, the best- and the worst-rewarded completions of each."""

import os
from collections.abc import Sequence
from dataclasses import dataclass

GROUPS, EACH = 4, 2  # groups of a run; completions from either end of a group's rewards


@dataclass(frozen=True)
class ShownGroup:
    """One group.

    Attributes:
      title: which group it is.
      prompt: its text.
      answer: the ground truth, or "".
      completions: (reward, number in the group, text), the best first.
    """

    title: str
    prompt: str
    answer: str
    completions: tuple[tuple[float, int, str], ...]


def shown_groups(rollout_folder: str | os.PathLike, groups: int = GROUPS, each: int = EACH) -> tuple[ShownGroup, ...]:
    """Groups of a run's own rollout folder: the first, the last, and between them at even distances; each the nearest that has a signal, where there is one near.

    None is shown twice.

    Args:
      rollout_folder: a folder or the URL of one; none are shown of one that does not exist.
      groups: how many at most.
      each: completions shown from either end of the rewards.

    Raises:
      DataError: the folder's manifest or a group is damaged; names the file.
    """
    from grre_jax import rollouts
    from grre_jax.rollouts import store_path

    folder = store_path.of(rollout_folder)
    if not folder.is_dir():
        return ()
    reader = rollouts.read(folder)
    count = min(groups, len(reader))
    chosen: list[int] = []
    for place in range(count):
        wanted = round(place * (len(reader) - 1) / max(count - 1, 1))
        chosen.append(_near(reader, wanted, after=chosen[-1] if chosen else -1))
    return tuple(_shown(reader[number], each) for number in chosen)


def _near(reader, number: int, after: int, far: int = 8) -> int:
    """The number, or the next one before it if only that one's group has a signal: later than `after`, and not further than `far`."""
    candidates = range(number, max(number - far, after), -1)
    return next((n for n in candidates if reader[n].has_signal), number)


def _shown(group, each: int) -> ShownGroup:
    version = int(group.policy_version[0]) if len(group.policy_version) else -1
    sampled = f", sampled by policy version {version}" if version >= 0 else ""
    return ShownGroup(
        f"{group.question_id or group.group_id}{sampled}", group.prompt, group.answer, _ends(group.rewards.tolist(), group.texts, each)
    )


def _ends(rewards: Sequence[float], texts: Sequence[str], each: int) -> tuple[tuple[float, int, str], ...]:
    order = sorted(range(len(rewards)), key=lambda k: (-rewards[k], k))
    shown = order if len(order) <= 2 * each else order[:each] + order[-each:]
    return tuple((float(rewards[k]), k, texts[k]) for k in shown)
