"""Evaluations of policies as tables on the console."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def print_evaluations(rows: Mapping[str, tuple[int | None, Mapping[str, Any]]], console: Any) -> None:
    """Prints the figures of each policy, then its pass@k and maj@k, then why anything of that was left out.

    Args:
        rows: by the policy's name, its step (None for a model that is no run's) and what `training.evaluate` and `training.measures` say of it, in one dictionary.
        console: a rich console.
    """
    from rich.table import Table

    stepped = any(step is not None for step, _ in rows.values())
    distance = any("kl_to_start" in row for _, row in rows.values())
    # The interval of the mean reward is over completions. Where pass@1 says the same with one over questions, which is right for several of a question, that alone is shown.
    interval = not all("pass_at_k" in row for _, row in rows.values())
    titles = ["policy", *["step"] * stepped, "accuracy", *["95% interval"] * interval, *["KL to the start"] * distance, "length"]
    table = Table(*titles)
    for name, (step, row) in rows.items():
        cells = [name, *[str(step)] * stepped, f"{row['accuracy']:.1%}", *[_interval(row["accuracy_low"], row["accuracy_high"])] * interval]
        table.add_row(*cells, *[f"{row.get('kl_to_start', float('nan')):.4f}"] * distance, f"{row['response_length']:.1f}")
    console.print(table)
    _print_measures({name: row for name, (_, row) in rows.items()}, console)


def _print_measures(rows: Mapping[str, Mapping[str, Any]], console: Any) -> None:
    from rich.table import Table

    found = [name for name in ("pass_at_k", "maj_at_k") if any(name in row for row in rows.values())]
    if found:
        table = Table("policy", "k", *[title for name in found for title in (name.replace("_at_", "@"), "95% interval")])
        for policy, row in rows.items():
            for k in row[found[0]]:
                estimates = [row[name][k] for name in found]
                cells = [cell for e in estimates for cell in (f"{e['value']:.1%}", _interval(e["low"], e["high"]))]
                table.add_row(policy, k, *cells)
            table.add_section()
        console.print(table)
    for name, reason in dict.fromkeys(item for row in rows.values() for item in row["left_out"].items()):
        console.print(f"{name.replace('_at_', '@')} is left out: {reason}")


def _interval(low: float, high: float) -> str:
    return f"{low:.1%} to {high:.1%}"
