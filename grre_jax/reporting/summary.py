"""A run in a dozen numbers, and runs or policies side by side in a table."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from grre_jax.console import make_table
from grre_jax.reporting.metric_names import described, written
from grre_jax.reporting.metrics import Metrics, Row, accuracy_known, json_safe, series

LAST_TENTH = (
    "effective_sample_size",
    "entropy",
    "clip_fraction",
    "response_length",
    "staleness",
)
SECONDS = "seconds_"  # first word of scalars of a train row that are seconds of work
MEASURES = ("accuracy", "greedy_accuracy", "reward")


def summarise(name: str, folder: str, metrics: Metrics) -> dict[str, Any]:
    """Returns the summary of a run, as `summary.json` has it.

    Args:
        name: the name to show.
        folder: the run's folder.
        metrics: as `read_metrics` gives it.

    Returns:
        By name, None or empty if the run did not record it: every evaluation of the measures, with
        its interval; means over the first tenth of the steps (reward_first) or the last; totals.
    """
    train = metrics.get("train", [])
    held_out = metrics.get("eval", [])
    works = {key for row in train for key in row if key.startswith(SECONDS)}
    elapsed = [row.get("elapsed", 0.0) for rows in metrics.values() for row in rows]
    return {
        "name": name,
        "folder": folder,
        "steps": max((row["step"] for row in train), default=0),
        "accuracy": _evaluations(metrics, "accuracy"),
        "greedy_accuracy": _evaluations(metrics, "greedy_accuracy"),
        "evaluation_reward": _evaluations(metrics, "reward"),
        "reward_first": _tenth(train, "reward", last=False),
        "reward_last": _tenth(train, "reward"),
        "kl_to_start": _last(held_out, "kl_to_start"),
        **{name: _tenth(train, name) for name in LAST_TENTH},
        "tokens": _total(train, "tokens"),
        "wall_seconds": max(elapsed, default=0.0),
        "seconds": {key.removeprefix(SECONDS): _total(train, key) for key in sorted(works)},
        "verify_failures": _total(train, "verify_failures"),
        "not_finite_steps": sum(None in json_safe(row).values() for row in train),
    }


def table_rows(columns: Sequence[Mapping[str, str]]) -> list[tuple[str, list[str]]]:
    """Returns each label with a cell per column; "–" for a column without the label."""
    labels = dict.fromkeys(label for cells in columns for label in cells)
    return [(label, [cells.get(label, "–") for cells in columns]) for label in labels]


def print_columns(columns: Mapping[str, Mapping[str, str]], console) -> None:
    """Prints columns of label to text side by side, each under its heading."""
    rows = [[label, *cells] for label, cells in table_rows(list(columns.values()))]
    console.print(make_table(["", *columns], rows))


def summary_cells(summary: Mapping[str, Any]) -> dict[str, str]:
    """Returns a summary as label to text, without what the run did not record."""
    cells = {}
    for name in MEASURES:
        evaluations = summary["evaluation_reward" if name == "reward" else name]
        # Rewards of 0 and 1 are shown once, as accuracy.
        if not evaluations or (name == "reward" and evaluations == summary["accuracy"]):
            continue
        best = max(evaluations, key=lambda evaluation: evaluation["value"])
        for place, one in (("first", evaluations[0]), ("last", evaluations[-1]), ("best", best)):
            label = f"{name.replace('_', ' ')}, {place}"
            text = _cell(name, one["value"], one["low"], one["high"])
            cells[label] = f"{text}, step {one['step']:,}"
    cells |= _number_cells(summary)
    total = sum(summary["seconds"].values()) or 1.0
    for work, seconds in summary["seconds"].items():
        cells[f"time, {work}"] = f"{seconds / total:.0%}"
    return cells


def print_evaluations(
    rows: Mapping[str, tuple[int | None, Mapping[str, Any]]], console: Any
) -> None:
    """Prints the figures of each policy with their intervals, then what was left out and why.

    Args:
        rows: by the policy's name, its step (None without a run) and its figures.
        console: a rich console.
    """
    columns = {}
    for policy, (step, row) in rows.items():
        cells = _number_cells(row)
        for name in ("pass_at_k", "maj_at_k"):
            for k, share in row.get(name, {}).items():
                label = name.replace("_at_k", f"@{k}")
                cells[label] = _cell("accuracy", share["value"], share["low"], share["high"])
        columns[policy if step is None else f"{policy}, step {step:,}"] = cells
    print_columns(columns, console)


def _number_cells(row: Mapping[str, Any]) -> dict[str, str]:
    """The numbers of a row with their intervals, shares in percent."""
    cells = {}
    for name, value in row.items():
        if isinstance(value, int | float) and not name.endswith(("_low", "_high")):
            low = row.get(f"{name}_low", math.nan)
            high = row.get(f"{name}_high", math.nan)
            cells[name.replace("_", " ")] = _cell(name, value, low, high)
    return cells


def _cell(name: str, value: float, low: float, high: float) -> str:
    """A value with its interval, if it has one."""
    kind = "eval" if described("eval", name) else "train"
    text = written(kind, name, value)
    if math.isnan(low + high):
        return text
    return f"{text} ({written(kind, name, low)} to {written(kind, name, high)})"


def _evaluations(metrics: Metrics, name: str) -> list[dict[str, Any]]:
    """The finite values of every evaluation; none of an accuracy that some evaluations lack."""
    rows = {row["step"]: row for row in metrics.get("eval", ()) if name in row}
    if name != "reward" and not accuracy_known(metrics, name):
        return []
    return [
        {
            "step": step,
            "value": row[name],
            "low": row.get(f"{name}_low", math.nan),
            "high": row.get(f"{name}_high", math.nan),
        }
        for step, row in sorted(rows.items())
        if math.isfinite(row[name])
    ]


def _finite(rows: list[Row], name: str) -> np.ndarray:
    values = series(rows, name)[1]
    return values[np.isfinite(values)]


def _tenth(rows: list[Row], name: str, last: bool = True) -> float | None:
    """The mean of a scalar's finite values over the last, or first, tenth of them."""
    values = _finite(rows, name)
    count = max(1, len(values) // 10)
    values = values[-count:] if last else values[:count]
    return float(values.mean()) if values.size else None


def _last(rows: list[Row], name: str) -> float | None:
    return next(iter(_finite(rows, name)[::-1].tolist()), None)


def _total(rows: list[Row], name: str) -> float | None:
    total = float(_finite(rows, name).sum())
    return int(total) if total.is_integer() else total
