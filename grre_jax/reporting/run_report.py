"""`grre report RUN [RUN ...]`: curves of a run, or of several overlaid, its page and a table of its
figures.
"""

import base64
import io
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from grre_jax.console import make_console
from grre_jax.errors import DataError
from grre_jax.reporting.figures import overview_figure, shown_panels
from grre_jax.reporting.metrics import FILE_NAME, json_safe, read_metrics
from grre_jax.reporting.summary import print_columns, summarise, summary_cells, table_rows
from grre_jax.rollouts.views import pieces
from grre_jax.storage import files
from grre_jax.storage.remote import is_url

GROUPS = 24  # of a run on the page, unless another number is given
DPI = 160  # pixels per inch of the overview, which is 12 inches wide
PAGE_NAME = "report.html"


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
        output: folder of the report. By default one run's own; of several runs, `<a>-vs-<b>` beside
            the first.
        rollouts: by run folder, the path or URL of its rollout folder if that is not `rollouts` in
            it.
        groups: how many of each run to put on the page, with their completions; 0 for none.
        console: the rich console; one on standard output by default.

    Returns:
        The page's path.

    Raises:
        DataError: a run's folder or its metrics are missing, broken or empty; names the folder.
    """
    console = console or make_console()
    stored = {Path(folder).resolve(): source for folder, source in (rollouts or {}).items()}
    folders = [*dict.fromkeys(Path(folder).resolve() for folder in run_folders)]
    # Each is named by its path below the folder that contains all of them.
    root = os.path.commonpath([folder.parent for folder in folders])
    names = [folder.relative_to(root).as_posix() for folder in folders]
    target = folders[0]
    if len(folders) > 1:
        target = target.parent / "-vs-".join(names).replace("/", "-")[:200]
    if output is not None:
        target = Path(output)
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
        names=[run["name"] for run in runs],
        header=table_rows([run["header"] for run in runs]),
        summary=table_rows([summary_cells(run["summary"]) for run in runs]),
        picture=base64.b64encode(picture).decode(),
        panels=shown_panels({run["name"]: run["metrics"] for run in runs}),
    )
    files.replace(path, text.encode(errors="replace"))  # completions may hold lone surrogates


def _shown_groups(rollout_folder: str | os.PathLike, most: int) -> dict[str, Any] | None:
    """Groups of a rollout folder at even distances, and their number; None for an empty folder."""
    from grre_jax import rollouts

    stored = is_url(rollout_folder) or Path(rollout_folder).is_dir()
    if not most or not stored:
        return None
    reader = rollouts.read(rollout_folder)
    if not len(reader):
        return None
    count = min(most, len(reader))
    chosen = np.linspace(0, len(reader) - 1, count).round().astype(int).tolist()
    return {"groups": [_shown(reader[number]) for number in chosen], "total": len(reader)}


def _shown(group) -> dict[str, Any]:
    """A group with its completions, the best first."""
    completions = [
        {
            "text": "\n".join(pieces(group, number)),
            "reward": float(group.rewards[number]),
            "tokens": int(group.lengths[number]),
            "components": {name: row[number] for name, row in group.components.items()},
        }
        for number in np.argsort(-group.rewards, kind="stable").tolist()  # NaN last
    ]
    return {
        "name": group.question_id or group.group_id,
        "version": int(group.policy_version[0]),
        "prompt": group.prompt,
        "answer": group.answer,
        "completions": completions,
    }
