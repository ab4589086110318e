"""The output of `grre rollouts show`: groups as they are stored, or by reward."""

import heapq
import itertools
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from grre_jax.console import make_console
from grre_jax.errors import DataError, UsageError
from grre_jax.rollouts.manifest import Entry
from grre_jax.rollouts.schema import LOGPROB_FIELDS, Group
from grre_jax.rollouts.tools.commands import nonempty, print_plain, version_name
from grre_jax.rollouts.views import pieces
from grre_jax.tasks.judging import FIELD, REASONS
from grre_jax.tasks.task import CORRECT

if TYPE_CHECKING:
    from rich.console import Console


def show(
    folder: str | os.PathLike[str],
    count: int = 3,
    *,
    start: int = 0,
    by: str = "stored",
    keep: Callable[[Group], bool] = lambda group: True,
    width: int = 300,
) -> int:
    """Prints groups: prompt, answer, and the completions with their rewards, best first.

    Args:
        folder: the rollout folder.
        count: number of groups.
        start: number of the first group; negative counts from the end.
        by: "stored", the order in which they were sealed; "reward", the highest mean reward first;
            "worst", the lowest first.
        keep: only groups for which this is True.
        width: characters of a text shown; the rest is cut.

    Raises:
        UsageError: a count or width below 1.
        DataError: the folder cannot be read, or no group fits.
    """
    if count < 1 or width < 1:
        raise UsageError(
            f"Cannot show {count} groups with {width} characters a text; give at least 1 of each."
        )
    reader = nonempty(folder)
    numbers = range(len(reader))[start:]
    selected = ((number, group) for number in numbers if keep(group := reader[number]))
    if by == "stored":
        shown = list(itertools.islice(selected, count))
    else:
        sign = 1 if by == "worst" else -1
        judged = (item for item in selected if item[1].judged.any())
        shown = heapq.nsmallest(
            count, judged, lambda item: (sign * item[1].judged_rewards.mean(), item[0])
        )
    if not shown:
        raise DataError(
            f"No group of {reader.folder} matches; it has {len(reader):,}: loosen the filters."
        )
    console = make_console()
    for number, group in shown:
        _print_group(console, number, reader.locate(number)[0], group, width)
    return 0


def _print_group(console: "Console", number: int, entry: Entry, group: Group, width: int) -> None:
    """Prints one group."""
    from rich.padding import Padding
    from rich.text import Text

    known = [name for name in LOGPROB_FIELDS if getattr(group, name) is not None]
    facts = [f"group {number}: {group.group_id}", f"data set {entry.name}"]
    facts += [f"question {group.question_id or '?'}"]
    facts += [f"position {group.position}"] if group.position >= 0 else []
    played = f"{group.environment} {group.environment_version}".strip()
    facts += [f"environment {played}, seed {group.environment_seed}"] if played else []
    facts += [f"log-probs: {', '.join(name.removesuffix('_logprobs') for name in known) or 'none'}"]
    print_plain(console, " · ".join(facts), "bold")
    print_plain(console, f"prompt: {_cut(group.prompt, width)}")
    print_plain(console, f"answer: {_cut(group.answer, width)}")
    if absent := int((~group.judged).sum()):
        print_plain(console, f"{absent} of {group.num_completions} completions without a verdict")
    for k in np.argsort(-group.rewards, kind="stable"):  # those without a reward last
        said = _verdict(group, k)
        said |= {
            "ended": group.finish_reasons[k],
            "tokens": str(group.lengths[k]) if group.lengths[k] else "",
            "version": version_name(int(group.policy_version[k])),
            "source": (group.sources[k] or "policy") + " (expert)" * bool(group.is_expert[k]),
        }
        shown = ", ".join(f"{name} {value}" for name, value in said.items() if value)
        print_plain(console, f"completion: {shown}", "dim")
        for text in pieces(group, k):
            console.print(Padding(Text(_cut(text, width)), (0, 0, 0, 2)))


def _verdict(group: Group, k: int) -> dict[str, str]:
    """Returns the verdict on a completion by name, or the reason why there is none."""
    if not group.judged[k]:
        reasons = group.extra.get(REASONS) or [""] * group.num_completions
        return {"no verdict": f"({group.extra[FIELD][k]}: {reasons[k]})"}
    verdict = {"reward": f"{group.rewards[k]:g}"}
    if group.correct is not None:
        verdict[CORRECT] = "yes" if group.correct[k] else "no"
    others = group.components.items()
    return verdict | {name: f"{row[k]:g}" for name, row in others if name not in verdict}


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[:width] + f"… ({len(text) - width:,} more)"
