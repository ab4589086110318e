"""`grre algorithms`: the table of objectives."""

from collections.abc import Sequence
from typing import Any

from grre_jax.console import make_console
from grre_jax.domains import nearest
from grre_jax.errors import UsageError

_LEGEND = """The second column is what each needs besides rewards: stored log-probs of the policy
that sampled (old), of the proximal (prox) and the reference policy (ref), and so on.
grre algorithms NAME: defaults, variants, data, paper, and what its numbers mean."""


def algorithms(names: tuple[str, ...] = ()) -> None:
    """List the objectives, or one with its defaults and paper.

    Args:
        names: details of these, with their numbers.
    """
    from grre_jax import objectives
    from grre_jax.objectives.table import NOTATION

    for name in names:
        if name not in objectives.algorithms():
            near = nearest(name, objectives.algorithms())
            raise UsageError(f"there is no objective {name!r}{near}")
    console = make_console()
    rows = [row for row in objectives.algorithm_table() if row.name in names or not names]
    if names:
        _print_details(rows, console)
    else:
        width = max(len(row.name) for row in rows)
        for row in rows:  # a line each at any width: for grep
            needs = ", ".join(sorted(row.requires - {"rewards"})).replace("_logprobs", "") or "-"
            console.print(f"{row.name:<{width}}  {needs:<14}  {row.formula}", soft_wrap=True)
        console.print(f"\n{_LEGEND}", style="dim", highlight=False)
    console.print(f"\n{NOTATION}", style="dim", highlight=False)


def _print_details(rows: Sequence[Any], console: Any) -> None:
    """Prints objectives with defaults, variants, data and paper, and the meaning of the numbers."""
    from grre_jax.objectives.objective import hyperparameters

    meanings = hyperparameters()
    names = dict.fromkeys(name for row in rows for name in row.defaults if name in meanings)
    for row in rows:
        defaults = (f"{n}={'(must be given)' if v is None else v}" for n, v in row.defaults.items())
        needs = sorted({*row.requires, "rewards"})
        console.print(row.name, style="bold")
        lines = (
            f"loss, or gradient g: {row.formula}",
            f"defaults: {', '.join(defaults)}",
            f"variants: {', '.join(row.variants)}",
            f"needs: {', '.join(needs)}",
            f"paper: {row.paper}, {row.link}",
        )
        for line in lines:
            console.print(f"  {line}", soft_wrap=True, markup=False)
    for name in names:
        line = f"{name} ({meanings[name].domain}): {meanings[name].meaning}"
        console.print(line, soft_wrap=True, markup=False)
