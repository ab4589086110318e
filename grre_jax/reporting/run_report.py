"""`grre report RUN [RUN ...]`: curves of a run, or of several overlaid, its page and a table of its
figures. A run in an object store is fetched, and the report of one such run is uploaded.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grre_jax.console import make_console
from grre_jax.errors import DataError, UsageError
from grre_jax.reporting.completions import COMPLETIONS, shown_groups
from grre_jax.reporting.figures import draw_curves
from grre_jax.reporting.metrics import FILE_NAME, read_metrics
from grre_jax.reporting.page import PAGE_NAME, write_page
from grre_jax.reporting.progress import compact_duration, compact_number
from grre_jax.reporting.summary import RunSummary, print_summaries, summarise
from grre_jax.storage import files

SUMMARY_NAME = "summary.json"
PLOTS_FOLDER = "plots"


@dataclass(frozen=True)
class Report:
    """The files that `report` wrote.

    Attributes:
        folder: of the report: the run's own folder, or that of the comparison.
        summaries: one per run, in the order of the folders.
        plots: the pictures, `overview.png` first.
        summary_path: the `summary.json`.
        page_path: the `report.html`, which contains all of it.
    """

    folder: Path
    summaries: tuple[RunSummary, ...]
    plots: tuple[Path, ...]
    summary_path: Path
    page_path: Path


def report(
    run_folders: Sequence[str | os.PathLike] | str | os.PathLike,
    output: str | os.PathLike | None = None,
    *,
    rollouts: Mapping[Path, str | os.PathLike] | None = None,
    completions: int = COMPLETIONS,
    console=None,
) -> Report:
    """Draws the curves of one run or of several overlaid, writes `summary.json` and the page
    `report.html`, and prints the table.

    Runs may differ in what they recorded: each panel overlays the runs that have its scalar and
    names the others.

    Args:
        run_folders: one run's folder or several; a folder given twice counts once.
        output: folder of `plots/`, `summary.json` and `report.html`. By default one run's own; of
            several runs, `<a>-vs-<b>` beside the first.
        rollouts: by run folder, the path or URL of its rollout folder if that is not `rollouts` in
            it.
        completions: how many of each run to put on the page, at most; 0 for none.
        console: the rich console; one on standard output by default.

    Returns:
        The files and the summaries.

    Raises:
        UsageError: no run was given, `completions` is negative, or the output is a file or another
            run's folder.
        DataError: a run's folder or its metrics are missing, broken or empty; names the folder.
    """
    if completions < 0:
        raise UsageError(f"--completions must be at least 0, got {completions}")
    given = [run_folders] if isinstance(run_folders, str | os.PathLike) else list(run_folders)
    if not given:
        raise UsageError("no run was given to report on: name one or more run folders")
    folders = [*dict.fromkeys(Path(folder).resolve() for folder in given)]
    own = {folder: folder / "rollouts" for folder in folders} | dict(rollouts or {})
    return _report(own, output, completions, console or make_console())


def _report(
    rollouts: Mapping[Path, Any], output: str | os.PathLike | None, completions: int, console
) -> Report:
    """Reports on folders of this machine, with their rollout folders."""
    folders = list(rollouts)
    target = default_output(folders) if output is None else Path(output)
    _refuse_foreign(target, folders)
    runs = []
    for name, folder in zip(run_names(folders), folders, strict=True):
        metrics = read_metrics(folder)
        if not metrics:
            raise DataError(
                f"{folder / FILE_NAME} has no rows yet: wait for the run's first step, or leave"
                " that run out"
            )
        config = _json(folder / "config.json")
        run = {"summary": summarise(name, str(folder), metrics), "metrics": metrics}
        run |= {"config": config, "header": _header(folder, config)}
        runs.append(run)
    summaries = tuple(run["summary"] for run in runs)
    metrics = {run["summary"].name: run["metrics"] for run in runs}
    note = _subtitle(summaries[0]) if len(runs) == 1 else ""
    target.mkdir(parents=True, exist_ok=True)
    plots = draw_curves(metrics, target / PLOTS_FOLDER, subtitle=note)
    for run, folder in zip(runs, rollouts.values(), strict=True):
        run["samples"] = _samples(run["summary"].name, folder, completions, console)
    summary_path = target / SUMMARY_NAME
    content = {"runs": [summary.as_json() for summary in summaries]}
    text = json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False)
    files.replace(summary_path, text + "\n")
    page_path = write_page(target / PAGE_NAME, runs, note)
    print_summaries(summaries, console)
    for label, path in (("curves", plots[0].parent), ("page", page_path)):
        console.print(f"{label:<8} {path}", soft_wrap=True)
    return Report(target, summaries, tuple(plots), summary_path, page_path)


def _json(file: Path) -> dict[str, Any]:
    """The content of a JSON file of a run's folder; {} if the file does not exist."""
    try:
        return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    except ValueError as error:
        raise DataError(
            f"{file} is no JSON ({error}): restore it from a copy, or leave that run out"
        ) from error


def _header(folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """The header that the run printed; of an older run, sections of its configuration."""
    if lines := _json(folder / "provenance.json").get("header"):
        return {label: str(text) for label, text in lines.items() if text is not None}
    sections = ("model", "task", "objective", "regime")
    return {name: json.dumps(config[name]) for name in sections if name in config}


def _samples(name: str, folder, completions: int, console) -> dict[str, Any] | str:
    """Completions to show, or the reason why there are none: the curves do not need them."""
    if not completions:
        return "no completions: --completions 0 was given"
    try:
        return shown_groups(folder, completions) or (
            "no completions: the run's rollouts are not there (a run on stored data has "
            "none of its own)"
        )
    except DataError as error:
        console.print(f"completions of {name} are not shown: {error}", soft_wrap=True)
        return f"no completions: {error}"


def run_names(folders: Sequence[Path]) -> list[str]:
    """Returns a name for each run: its folder's, with as many parents as make it unique."""
    parts = [folder.resolve().parts for folder in folders]
    names = []
    for own in parts:
        depth = 1
        while depth < len(own) and sum(other[-depth:] == own[-depth:] for other in parts) > 1:
            depth += 1
        names.append("/".join(own[-depth:]))
    return names


def default_output(folders: Sequence[Path]) -> Path:
    """Returns one run's own folder; for several, `<a>-vs-<b>` beside the first, with their number
    in place of all but the first if the name is long.
    """
    if len(folders) == 1:
        return folders[0]
    first = folders[0].resolve()
    name = "-vs-".join(run_names(folders)).replace("/", "-")
    if len(name) > 80:
        name = f"{first.name}-vs-{len(folders) - 1}-others"
    return first.parent / name


def _refuse_foreign(target: Path, folders: Sequence[Path]) -> None:
    """Refuses a file, and a run's folder for a report on others."""
    if target.exists() and not target.is_dir():
        raise UsageError(f"--output {target} is a file: give a folder")
    own = [folder.resolve() for folder in folders] == [target.resolve()]
    if (target / FILE_NAME).exists() and not own:
        raise UsageError(
            f"--output {target} is a run's own folder: give another, so that its curves and"
            " summary stay"
        )


def _subtitle(summary: RunSummary) -> str:
    parts = [f"{summary.steps:,} steps"]
    if summary.tokens:
        parts.append(f"{compact_number(summary.tokens)} tokens")
    if summary.wall_seconds and summary.wall_seconds >= 1:
        parts.append(compact_duration(summary.wall_seconds))
    return "  ·  ".join(parts)
