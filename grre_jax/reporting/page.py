"""The report as one page of HTML that needs nothing beside it: what ran, tables, curves,
completions, diagnostics, configuration. Its template, style and script are in `template/`.
"""

import base64
import hashlib
import io
import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from grre_jax.reporting.figures import NOTE, draw_panel, last_step, staleness_figure
from grre_jax.reporting.metric_names import described
from grre_jax.reporting.metrics import HEADER, STALENESS, Metrics, series, staleness_histogram
from grre_jax.reporting.panels import EDGE, GRID, INK, MUTED, PALETTE, STYLE, Panel, page_panels
from grre_jax.reporting.summary import outcomes, table_rows, tenth
from grre_jax.storage import files

PAGE_NAME = "report.html"
LONGEST_TEXT = 4000  # characters of a prompt or completion; the page states how many are cut
LONGEST_CELL = 200  # characters of a configuration's value
PANEL_INCHES = (4.3, 2.6)


def write_page(path: str | os.PathLike, runs: Sequence[Mapping[str, Any]], note: str = "") -> Path:
    """Writes the page in one rename.

    Args:
        path: of the HTML file.
        runs: in the order of the page, each with "summary" (a `RunSummary`), "metrics", "config"
            (nested; {} if it has none), "header" (what ran, in words by label) and "samples" (of
            `shown_groups`, or a sentence with the reason why there are none).
        note: a line under the title.

    Returns:
        The path.
    """
    import jinja2
    from markupsafe import Markup

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("grre_jax.reporting", "template"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters["cut"] = _cut
    environment.filters["code"] = _code
    script = environment.get_template("report.js").render()
    metrics = {run["summary"].name: run["metrics"] for run in runs}
    summaries = [run["summary"] for run in runs]
    configuration = _table([_flat(run["config"]) for run in runs])
    configuration.sort(key=lambda row: len(set(row[1])) == 1)  # fields that differ first
    text = environment.get_template("report.html.jinja").render(
        runs=runs,
        names=list(metrics),
        note=note,
        palette=PALETTE,
        script=Markup(script),
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        header=_table([run["header"] for run in runs]),
        summary=table_rows(summaries),
        outcomes=outcomes(summaries),
        panels=_panels(metrics),
        panels_note=NOTE,
        diagnostics=[_diagnostics(run["metrics"]) for run in runs],
        differing=[label for label, cells in configuration if len(set(cells)) > 1],
        configuration=configuration,
    )
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    files.replace(path, text.encode(errors="replace"))  # completions may hold lone surrogates
    return path


def _table(columns) -> list[tuple[str, list[str]]]:
    """Rows of label and cells, a cell per column; "–" for a column without the label."""
    labels = dict.fromkeys(label for column in columns for label in column)
    return [(label, [column.get(label, "–") for column in columns]) for label in labels]


def _panels(runs: Mapping[str, Metrics]) -> list[dict[str, object]]:
    """The curves as inline SVG, each with the meaning of its scalar."""
    from matplotlib import style
    from matplotlib.figure import Figure

    drawn = []
    with style.context(["default", STYLE, {"svg.fonttype": "none", "svg.hashsalt": "grre_jax"}]):
        for panel in page_panels(runs):
            figure = Figure(figsize=PANEL_INCHES)
            axis = figure.subplots()
            # Right of the axis, the last values: of eight characters at most, as in -0.00983.
            figure.subplots_adjust(left=0.13, right=0.81, top=0.94, bottom=0.12)
            draw_panel(axis, runs, panel, last_step(runs, [panel]))
            drawn.append((panel, figure))
        if any(map(staleness_histogram, runs.values())):
            figure = staleness_figure(runs, titled=False)
            figure.set_size_inches(*PANEL_INCHES)
            words = ("ages", "Ages of the groups", "over the whole run")
            drawn.append((Panel(*words, "train", key=f"{STALENESS}<n>"), figure))
        return [
            {"name": panel.name, "title": panel.title, "note": panel.note, "svg": _svg(figure)}
            | {"key": f"{panel.kind}: {panel.key}"}
            | {"entry": described(panel.kind, panel.key.replace("<n>", "0"))}
            for panel, figure in drawn
        ]


def _svg(figure):
    """A figure as SVG in the page's colour variables: it follows the reader's scheme."""
    from markupsafe import Markup

    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :].replace("'DejaVu Sans'", "system-ui, sans-serif")
    variables = {INK: "ink", MUTED: "muted", GRID: "line", EDGE: "muted", "#000000": "ink"}
    variables |= {colour: f"run-{index}" for index, colour in enumerate(PALETTE)}
    for colour, name in variables.items():
        text = text.replace(colour.lower(), f"var(--{name})")
    return Markup(text)


def _diagnostics(metrics: Metrics) -> list[tuple[str, list[dict[str, object]]]]:
    """Every scalar by the kind of its row: meaning, first and last values, and extremes."""
    ages = re.compile(rf"{STALENESS}\d+")  # shown by the histogram's picture
    tables = []
    for kind, rows in metrics.items():
        names = dict.fromkeys(name for row in rows for name in row if name not in HEADER)
        lines = []
        for name in names:
            _, values = series(rows, name)
            finite = values[np.isfinite(values)]
            if ages.fullmatch(name) or not finite.size:
                continue
            ends = (tenth(rows, name, last=False), tenth(rows, name))
            numbers = (*ends, finite.min(), finite.max())
            cells = ["nan" if number is None else f"{number:.4g}" for number in numbers]
            cells.append(str(len(values) - len(finite) or ""))
            lines.append({"name": name, "entry": described(kind, name), "cells": cells})
        if lines:
            tables.append((kind, lines))
    return tables


def _code(text: object):
    """The escaped text with what is between backquotes as code."""
    from markupsafe import Markup, escape

    return Markup(re.sub("`(.+?)`", r"<code>\1</code>", str(escape(text))))


def _cut(text: str) -> str:
    more = len(text) - LONGEST_TEXT
    return text[:LONGEST_TEXT] + (f"\n… {more:,} characters more" if more > 0 else "")


def _flat(config: Mapping[str, object], prefix: str = "") -> dict[str, str]:
    """A nested configuration as dotted fields, as the command line names them."""
    found: dict[str, str] = {}
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            found |= _flat(value, f"{prefix}{key}.")
        else:
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            found[prefix + key] = text if len(text) <= LONGEST_CELL else text[:LONGEST_CELL] + "…"
    return found
