"""`grre report RUN [RUN ...]`: curves of a run, or of several overlaid, its page and a table of its
figures.
"""

import base64
import hashlib
import io
import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from grre_jax.console import make_console
from grre_jax.errors import DataError, UsageError
from grre_jax.reporting.figures import NOTE, PALETTE, inline_svg, overview_figure, shown_panels
from grre_jax.reporting.metrics import FILE_NAME, json_safe, read_metrics
from grre_jax.reporting.summary import print_columns, summarise, summary_cells, table_rows
from grre_jax.rollouts.views import pieces
from grre_jax.storage import files
from grre_jax.storage.remote import is_url

COMPLETIONS = 200  # of a run on the page, unless another number is given
DPI = 160  # pixels per inch of the overview, which is 12 inches wide
PAGE_NAME = "report.html"
OF_A_GROUP = 32  # most completions of one group on the page: the best and the worst


def report(
    run_folders: Sequence[str | os.PathLike],
    output: str | os.PathLike | None = None,
    *,
    rollouts: Mapping[Path, str | os.PathLike] | None = None,
    completions: int = COMPLETIONS,
    console=None,
) -> Path:
    """Writes the page `report.html`, `summary.json` and `plots/overview.png` of one run or of
    several overlaid, and prints the table.

    Args:
        run_folders: a folder given twice counts once.
        output: folder of the report. By default one run's own; of several runs, `<a>-vs-<b>` beside
            the first.
        rollouts: by run folder, the path or URL of its rollout folder if that is not `rollouts` in
            it.
        completions: how many of each run to put on the page, at most; 0 for none.
        console: the rich console; one on standard output by default.

    Returns:
        The page's path.

    Raises:
        UsageError: an invalid argument; names it.
        DataError: a run's folder or its metrics are missing, broken or empty; names the folder.
    """
    if completions < 0:
        raise UsageError(f"--completions: expected an integer >= 0, got {completions}")
    folders = [*dict.fromkeys(Path(folder).resolve() for folder in run_folders)]
    if not folders:
        raise UsageError("RUN: expected one or more run folders, got none")
    own: dict[Path, Any] = {folder: folder / "rollouts" for folder in folders}
    own |= {folder.resolve(): source for folder, source in (rollouts or {}).items()}
    return _report(own, output, completions, console or make_console())


def _report(
    rollouts: Mapping[Path, Any], output: str | os.PathLike | None, completions: int, console
) -> Path:
    """Reports on folders of this machine, with their rollout folders."""
    folders = list(rollouts)
    names = _run_names(folders)
    target = folders[0]
    if len(folders) > 1:
        target = target.parent / "-vs-".join(names).replace("/", "-")[:200]
    if output is not None:
        target = Path(output)
    if target.exists() and not target.is_dir():
        raise UsageError(f"--output: expected a folder, got the file {target}")
    if (target / FILE_NAME).exists() and [target.resolve()] != folders:
        raise UsageError(f"--output: expected a folder that is not a run's own, got {target}")
    runs = [
        _read(name, folder, rollouts[folder], completions, console)
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
    _write_page(target / PAGE_NAME, runs)
    print_columns({run["name"]: summary_cells(run["summary"]) for run in runs}, console)
    console.print(f"page     {target / PAGE_NAME}", soft_wrap=True)
    return target / PAGE_NAME


def _read(name: str, folder: Path, rollout_folder, completions: int, console) -> dict[str, Any]:
    """What the page shows of a run."""
    metrics = read_metrics(folder)
    if not metrics:
        raise DataError(f"{folder / FILE_NAME}: expected rows, got an empty log")
    header = _json(folder / "provenance.json").get("header", {})
    try:
        samples = _shown_groups(rollout_folder, completions)
    except DataError as error:  # the curves do not need them
        console.print(f"completions of {name} are not shown: {error}", soft_wrap=True)
        samples = None
    return {
        "name": name,
        "summary": summarise(name, str(folder), metrics),
        "metrics": metrics,
        "config": _flat(_json(folder / "config.json")),
        "header": {label: text for label, text in header.items() if text is not None},
        "samples": samples,
    }


def _json(file: Path) -> dict[str, Any]:
    """The content of a JSON file of a run's folder; {} if the file does not exist."""
    try:
        return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    except ValueError as error:
        raise DataError(f"{file}: not JSON ({error}). Restore it from a copy") from error


def _run_names(folders: Sequence[Path]) -> list[str]:
    """A name for each run: its path below the folder that contains all of them."""
    root = os.path.commonpath([folder.parent for folder in folders])
    return [folder.relative_to(root).as_posix() for folder in folders]


def _write_page(path: Path, runs: Sequence[Mapping[str, Any]]) -> None:
    """Writes the page in one rename, of what `_read` returns for each run."""
    import jinja2
    from markupsafe import Markup

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("grre_jax.reporting", "template"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
    )
    script = environment.get_template("report.js").render()
    metrics = {run["name"]: run["metrics"] for run in runs}
    configuration = table_rows([run["config"] for run in runs])
    configuration.sort(key=lambda row: len(set(row[1])) == 1)  # fields that differ first
    text = environment.get_template("report.html.jinja").render(
        runs=runs,
        names=list(metrics),
        palette=PALETTE,
        script=Markup(script),
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        header=table_rows([run["header"] for run in runs]),
        summary=table_rows([summary_cells(run["summary"]) for run in runs]),
        panels=[(panel, inline_svg(metrics, panel)) for panel in shown_panels(metrics)],
        panels_note=NOTE,
        differing=[label for label, cells in configuration if len(set(cells)) > 1],
        configuration=configuration,
    )
    files.replace(path, text.encode(errors="replace"))  # completions may hold lone surrogates


def _shown_groups(rollout_folder: str | os.PathLike, completions: int) -> dict[str, Any] | None:
    """Groups of a rollout folder at even distances, and its totals; None for an empty folder."""
    from grre_jax import rollouts

    stored = is_url(rollout_folder) or Path(rollout_folder).is_dir()
    if not completions or not stored:
        return None
    reader = rollouts.read(rollout_folder)
    if not len(reader):
        return None
    total = sum(entry.completions for entry in reader.datasets)
    each = min(math.ceil(total / len(reader)), OF_A_GROUP, completions)
    count = min(max(completions // each, 1), len(reader))
    chosen = np.unique(np.linspace(0, len(reader) - 1, count).round().astype(int)).tolist()
    groups = [_shown(reader[number], each) for number in chosen]
    return {
        "groups": groups,
        "completions": sum(len(group["completions"]) for group in groups),
        "total_groups": len(reader),
        "total_completions": total,
    }


def _shown(group, most: int) -> dict[str, Any]:
    """A group with its best and worst completions, the best first."""
    version = int(group.policy_version[0]) if len(group.policy_version) else -1
    mean = group.judged_rewards.mean() if group.judged.any() else math.nan
    order = np.argsort(-group.rewards, kind="stable")  # NaN last
    if len(order) > most:
        order = np.delete(order, slice(most - most // 2, len(order) - most // 2))
    completions = []
    for number in order.tolist():
        tokens = slice(*group.offsets[number : number + 2])
        generated = group.mask[tokens] != 0
        logprob = math.nan
        if group.behavior_logprobs is not None and generated.any():
            logprob = float(np.mean(group.behavior_logprobs[tokens][generated]))
        completion = {
            "text": "\n".join(pieces(group, number)),
            "reward": float(group.rewards[number]),
            "advantage": float(group.rewards[number] - mean),
            "length": float(group.lengths[number]) if len(group.tokens) else math.nan,
            "logprob": logprob,
            "components": {name: v[number] for name, v in (group.components or {}).items()},
        }
        completions.append(completion)
    return {
        "name": group.question_id or group.group_id,
        "version": version if version >= 0 else math.nan,
        "prompt": group.prompt,
        "answer": group.answer,
        "total": len(group.rewards),
        "completions": completions,
    }


def _flat(config: Mapping[str, object], prefix: str = "") -> dict[str, str]:
    """A nested configuration as dotted fields, as the command line names them."""
    fields: dict[str, str] = {}
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            fields |= _flat(value, f"{prefix}{key}.")
        else:
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            fields[prefix + key] = text
    return fields
