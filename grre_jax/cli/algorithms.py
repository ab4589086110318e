"""`grre algorithms`: the table of objectives."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from grre_jax.console import make_console, make_table
from grre_jax.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from grre_jax.objectives.algorithms import AlgorithmRow

# Data of a batch besides rewards, in the words of the field.
NEEDED_DATA = {
    "old_logprobs": "behaviour log-probs",
    "prox_logprobs": "proximal log-probs",
    "ref_logprobs": "reference log-probs",
    "staleness": "policy versions",
    "expert": "expert flags",
    "rewards": "rewards",
}


def algorithms_command(known: argparse.Namespace, _: list[str]) -> int:
    """Prints the table of objectives, or the details of those that are named."""
    from grre_jax import objectives
    from grre_jax.objectives.table import NOTATION
    from grre_jax.tasks.task import nearest

    for name in known.names:
        if name not in objectives.algorithms():
            near = nearest(name, objectives.algorithms())
            raise UsageError(f"there is no objective {name!r}{near}")
    console = make_console()
    rows = objectives.algorithm_table()
    if known.names:
        _print_algorithms([row for row in rows if row.name in known.names], console)
        return 0
    needs = [", ".join(sorted(row.requires - {"rewards"})) or "-" for row in rows]
    needs = [words.replace("_logprobs", "") for words in needs]
    name, need = max(len(row.name) for row in rows), max(map(len, needs))
    for row, words in zip(rows, needs, strict=True):  # a line each at any width: for grep
        console.print(f"{row.name:<{name}}  {words:<{need}}  {row.formula}", soft_wrap=True)
    for words in (NOTATION, _LEGEND):
        console.print(f"\n{words}", style="dim", highlight=False)
    return 0


_LEGEND = """The second column is what each needs besides rewards: stored log-probs of the policy
that sampled (old), of the proximal (prox) and the reference policy (ref), and so on.
grre algorithms NAME: defaults, variants, data, paper, and what its numbers mean."""


def _print_algorithms(rows: Sequence[AlgorithmRow], console: Console) -> None:
    from grre_jax.objectives.named_parts import hyperparameters
    from grre_jax.objectives.table import NOTATION

    cells = []
    for row in rows:
        given = {name: "(must be given)" if v is None else v for name, v in row.defaults.items()}
        lines = [row.formula, "defaults: " + ", ".join(f"{n}={v}" for n, v in given.items())]
        lines += [f"variants: {', '.join(row.variants)}"] * (len(row.variants) > 1)
        needs = ", ".join(NEEDED_DATA[name] for name in sorted({*row.requires, "rewards"}))
        cells += [(row.name, "\n".join([*lines, f"needs: {needs}", row.paper, row.link]))]
    titles = ("name", "loss, or gradient g; defaults; variants; needs; paper")
    console.print(make_table(titles, cells, "Objectives"))
    known = hyperparameters()
    names = dict.fromkeys(name for row in rows for name in row.defaults if name in known)
    numbers = [(name, known[name].meaning, known[name].domain) for name in names]
    console.print(make_table(("number", "meaning", "domain"), numbers, "Numbers"))
    console.print(f"\n{NOTATION}", style="dim", highlight=False)
