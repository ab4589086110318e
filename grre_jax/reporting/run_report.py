"""`grre report RUN [RUN ...]`: curves of a run, or of several overlaid, its page and a table of its
figures.
"""

import base64
import io
import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from grre_jax.console import make_console, make_table
from grre_jax.errors import DataError, UsageError
from grre_jax.reporting.figures import overview_figure, shown_panels
from grre_jax.reporting.metric_names import described, written
from grre_jax.reporting.metrics import (
    FILE_NAME,
    Metrics,
    Row,
    accuracy_known,
    json_safe,
    read_metrics,
    series,
)
from grre_jax.rollouts.dataset import pieces
from grre_jax.storage import files
from grre_jax.storage.remote import is_url

GROUPS = 24  # of a run on the page, unless another number is given
DPI = 160  # pixels per inch of the overview, which is 12 inches wide
PAGE_NAME = "report.html"
LAST_TENTH = (
    "effective_sample_size",
    "entropy",
    "clip_fraction",
    "response_length",
    "staleness",
)
SECONDS = "seconds_"  # first word of scalars of a train row that are seconds of work
MEASURES = ("accuracy", "greedy_accuracy", "reward")


def report(
    run_folders: Sequence[str | os.PathLike],
    output: str | os.PathLike | None = None,
    *,
    rollouts: Mapping[Path, str | os.PathLike] | None = None,
    groups: int = GROUPS,
    console=None,
) -> Path:
    """Writes the page `report.html`, `summary.json` and `plots/overview.png` of one run or of
    several overlaid, and prints the table.

    Args:
        run_folders: at least one; a folder given twice counts once.
        output: folder of the report; one run's own if None.
        rollouts: by run folder, the path or URL of its rollout folder if that is not `rollouts` in
            it.
        groups: how many of each run to put on the page, with their completions; 0 for none.
        console: the rich console; one on standard output by default.

    Returns:
        The page's path.

    Raises:
        UsageError: several runs without an output.
        DataError: a run's folder or its metrics are missing, broken or empty; names the folder.
    """
    console = console or make_console()
    stored = {Path(folder).resolve(): source for folder, source in (rollouts or {}).items()}
    folders = [*dict.fromkeys(Path(folder).resolve() for folder in run_folders)]
    # Each is named by its path below the folder that contains all of them.
    root = os.path.commonpath([folder.parent for folder in folders])
    names = [folder.relative_to(root).as_posix() for folder in folders]
    if len(folders) > 1 and output is None:
        raise UsageError("--output: expected a folder for the report of several runs, got none")
    target = Path(output or folders[0])
    runs = [
        _read(name, folder, stored.get(folder, folder / "rollouts"), groups, console)
        for name, folder in zip(names, folders, strict=True)
    ]
    (target / "plots").mkdir(parents=True, exist_ok=True)
    picture = io.BytesIO()
    curves = {run["name"]: run["metrics"] for run in runs}
    overview_figure(curves).savefig(picture, dpi=DPI)
    files.replace(target / "plots" / "overview.png", picture.getvalue())
    content = json_safe({"runs": [run["summary"] for run in runs]})
    text = json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False)
    files.replace(target / "summary.json", text + "\n")
    _write_page(target / PAGE_NAME, runs, picture.getvalue())
    print_columns({run["name"]: summary_cells(run["summary"]) for run in runs}, console)
    console.print(f"page     {target / PAGE_NAME}", soft_wrap=True)
    return target / PAGE_NAME


def _read(name: str, folder: Path, rollout_folder, most: int, console) -> dict[str, Any]:
    """What the page shows of a run."""
    metrics = read_metrics(folder)
    if not metrics:
        raise DataError(f"{folder / FILE_NAME}: expected rows, got an empty log")
    file = folder / "provenance.json"
    try:
        header = json.loads(file.read_text()).get("header", {}) if file.is_file() else {}
    except ValueError as error:
        raise DataError(f"{file}: not JSON ({error}). Restore it from a copy") from error
    try:
        samples = _shown_groups(rollout_folder, most)
    except DataError as error:  # the curves do not need them
        console.print(f"completions of {name} are not shown: {error}", soft_wrap=True)
        samples = None
    return {
        "name": name,
        "summary": summarise(name, str(folder), metrics),
        "metrics": metrics,
        "header": {label: text for label, text in header.items() if text is not None},
        "samples": samples,
    }


def _write_page(path: Path, runs: Sequence[Mapping[str, Any]], picture: bytes) -> None:
    """Writes the page in one rename, of what `_read` returns for each run and a PNG of curves."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("grre_jax.reporting", "template"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
    )
    text = environment.get_template("report.html.jinja").render(
        runs=runs,
        pieces=pieces,
        names=[run["name"] for run in runs],
        header=table_rows([run["header"] for run in runs]),
        summary=table_rows([summary_cells(run["summary"]) for run in runs]),
        picture=base64.b64encode(picture).decode(),
        panels=shown_panels({run["name"]: run["metrics"] for run in runs}),
    )
    files.replace(path, text.encode(errors="replace"))  # completions may hold lone surrogates


def _shown_groups(rollout_folder: str | os.PathLike, most: int) -> dict[str, Any] | None:
    """Groups of a rollout folder at even distances, each with its completions' numbers, the best
    first, and the number of all; None for an empty folder.
    """
    from grre_jax import rollouts

    stored = is_url(rollout_folder) or Path(rollout_folder).is_dir()
    if not most or not stored:
        return None
    reader = rollouts.read(rollout_folder)
    if not len(reader):
        return None
    chosen = np.linspace(0, len(reader) - 1, min(most, len(reader))).round().astype(int)
    groups = [reader[number] for number in chosen.tolist()]
    orders = [np.argsort(-group.rewards, kind="stable").tolist() for group in groups]  # NaN last
    return {"groups": list(zip(groups, orders, strict=True)), "total": len(reader)}


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
        "kl_to_start": next(reversed(_finite(held_out, "kl_to_start").tolist()), None),
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


def _total(rows: list[Row], name: str) -> float | None:
    total = float(_finite(rows, name).sum())
    return int(total) if total.is_integer() else total
