"""The report as one page of HTML that needs nothing beside it: tables, pictures, configuration, diagnostics and sampled completions."""

import base64
import html
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from grre_jax import whole_files
from grre_jax.reporting.completions import ShownGroup
from grre_jax.reporting.metrics import HEADER, Metrics, series
from grre_jax.reporting.panels import overview_panels
from grre_jax.reporting.staleness import PREFIX
from grre_jax.reporting.summary import RunSummary, outcomes, table_rows

PAGE_NAME = "report.html"
LONGEST_TEXT = 4000  # characters of a prompt or completion; more is cut, and said to be
LONGEST_CELL = 200  # characters of a configuration's value

STYLE = """
:root { color-scheme: light dark; --ink: #1f2328; --muted: #59636e; --line: #d8dee4; --ground: #ffffff; --soft: #f6f8fa; --good: #1a7f37; --bad: #b35900; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --muted: #9198a1; --line: #3d444d; --ground: #0d1117; --soft: #151b23; --good: #3fb950; --bad: #f0883e; } }
body { margin: 0 auto; padding: 2rem 1.5rem 4rem; max-width: 70rem; font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--ground); }
h1 { font-size: 1.6rem; margin: 0; } h2 { font-size: 1.2rem; margin: 2.5rem 0 .75rem; border-bottom: 1px solid var(--line); padding-bottom: .3rem; }
h3 { font-size: 1rem; margin: 1.5rem 0 .5rem; } p.note { color: var(--muted); margin: .25rem 0 1rem; }
nav a { margin-right: 1rem; } a { color: inherit; }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .75rem; border-bottom: 1px solid var(--line); text-align: right; vertical-align: top; }
th:first-child, td:first-child { text-align: left; color: var(--muted); } tr.differs td:first-child { color: var(--ink); font-weight: 600; }
figure { margin: 0; } figure img { max-width: 100%; height: auto; background: #ffffff; border: 1px solid var(--line); border-radius: 6px; }
.panels { display: grid; grid-template-columns: repeat(auto-fit, minmax(20rem, 1fr)); gap: 1rem; margin-top: 1rem; }
.dot { display: inline-block; width: .7em; height: .7em; border-radius: 50%; margin-right: .4em; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; margin: 0; padding: .5rem .75rem; background: var(--soft); border-radius: 6px; font-size: 13px; }
.completion { display: grid; grid-template-columns: 7rem 1fr; gap: .75rem; margin: .4rem 0; } .reward { font-weight: 600; } .best { color: var(--good); } .worst { color: var(--bad); }
summary { cursor: pointer; }
""".strip()


def write_page(
    path: str | os.PathLike,
    summaries: Sequence[RunSummary],
    runs: Mapping[str, Metrics],
    plots: Sequence[Path],
    colours: Mapping[str, str],
    *,
    configs: Mapping[str, Mapping[str, object]],
    samples: Mapping[str, Sequence[ShownGroup] | str],
    note: str = "",
) -> Path:
    """Writes the page in one rename.

    Args:
      path: of the HTML file.
      summaries: one a run.
      runs: name to metrics, in the same order.
      plots: the pictures, the overview first; they are put into the page.
      colours: name to "#rrggbb", as in the pictures.
      configs: name to the run's configuration, nested; runs without one are left out.
      samples: name to groups of completions to show, or to a sentence that says why there are none.
      note: a line under the title.

    Returns:
      The path.
    """
    names = list(runs)
    sections = [
        ("summary", "What became of " + ("the run" if len(names) == 1 else "the runs"), _summary_table(summaries, colours)),
        ("curves", "Curves", _pictures(plots, runs)),
        ("diagnostics", "Diagnostics", "".join(_diagnostics(name, runs[name], len(names) == 1) for name in names)),
        (
            "completions",
            "Sampled completions",
            "".join(_samples(name, samples[name], len(names) == 1) for name in names if name in samples),
        ),
        ("configuration", "Configuration", _configuration({name: _flat(configs[name]) for name in names if name in configs})),
    ]
    sections = [section for section in sections if section[2]]
    title = html.escape(" · ".join(names))
    links = "".join(f'<a href="#{key}">{html.escape(heading)}</a>' for key, heading, _ in sections)
    body = "".join(f'<section id="{key}"><h2>{html.escape(heading)}</h2>{content}</section>\n' for key, heading, content in sections)
    text = (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<link rel="icon" href="data:,"><title>{title}</title><style>{STYLE}</style></head>\n'
        f'<body><h1>{title}</h1><p class="note">{html.escape(note)}</p><nav>{links}</nav>\n{body}</body></html>\n'
    )
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    whole_files.replace(path, text.encode(errors="replace"))  # completions may hold lone surrogates
    return path


def _table(head: Sequence[str], rows: Sequence[tuple[str, Sequence[str]]], marked: frozenset[str] = frozenset()) -> str:
    """Cells are HTML; `marked` are the labels of rows that stand out."""
    lines = "".join(
        f"<tr{' class=differs' if label in marked else ''}><td>{html.escape(label)}</td>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"
        for label, cells in rows
    )
    return f'<div class="wide"><table><thead><tr><th></th>{"".join(f"<th>{cell}</th>" for cell in head)}</tr></thead><tbody>{lines}</tbody></table></div>'


def _summary_table(summaries: Sequence[RunSummary], colours: Mapping[str, str]) -> str:
    from rich.text import Text  # cells are made for the console: its markup is taken off here

    head = [f'<span class="dot" style="background:{html.escape(colours[s.name])}"></span>{html.escape(s.name)}' for s in summaries]
    rows = [
        (label, [html.escape(Text.from_markup(cell or "–").plain) for cell in cells])
        for label, cells in table_rows(summaries, unicode=True)
        if any(cells)
    ]
    said = "".join(f"<p>{html.escape(sentence)}</p>" for sentence in outcomes(summaries))
    return _table(head, rows) + said


def _pictures(plots: Sequence[Path], runs: Mapping[str, Metrics]) -> str:
    def figure(path: Path) -> str:
        data = base64.b64encode(Path(path).read_bytes()).decode()
        return f'<figure><img alt="{html.escape(Path(path).stem)}" src="data:image/png;base64,{data}"></figure>'

    overview, *others = plots
    drawn = {panel.name for panel in overview_panels(runs.values())}  # the overview holds these
    others = [path for path in others if Path(path).stem not in drawn]
    return figure(overview) + (f'<div class="panels">{"".join(map(figure, others))}</div>' if others else "")


def _diagnostics(name: str, metrics: Metrics, alone: bool) -> str:
    """Every scalar of the training rows: where it began and ended, and its extremes."""
    rows = metrics.get("train", [])
    scalars = dict.fromkeys(key for row in rows for key in row if key not in HEADER and not _is_age(key))
    lines = []
    for key in scalars:
        _, values = series(rows, key)
        finite = values[np.isfinite(values)]
        if not finite.size:
            continue
        cells = [*_means(values, max(len(values) // 10, 1)), finite.min(), finite.max()]
        lines.append((key, [*(html.escape(f"{cell:.4g}") for cell in cells), str(len(values) - len(finite) or "")]))
    if not lines:
        return ""
    table = _table(["mean of the first tenth", "mean of the last tenth", "least", "greatest", "not finite"], lines)
    return table if alone else f"<details><summary>{html.escape(name)}</summary>{table}</details>"


def _means(values: np.ndarray, tenth: int) -> list[float]:
    """Means over the first and the last tenth, of what is finite there; NaN where nothing is."""
    ends = (part[np.isfinite(part)] for part in (values[:tenth], values[-tenth:]))
    return [float(part.mean()) if part.size else float("nan") for part in ends]


def _is_age(key: str) -> bool:
    return key.startswith(PREFIX) and key.removeprefix(PREFIX).isdecimal()  # the histogram's picture shows these


def _samples(name: str, groups: Sequence[ShownGroup] | str, alone: bool) -> str:
    parts = [f'<p class="note">{html.escape(groups)}</p>'] if isinstance(groups, str) else []
    for group in () if isinstance(groups, str) else groups:
        best, worst = max(reward for reward, _, _ in group.completions), min(reward for reward, _, _ in group.completions)
        lines = "".join(
            f'<div class="completion"><span class="reward {_rank(reward, best, worst)}">reward {reward:g}</span><pre>{_text(text)}</pre></div>'
            for reward, _, text in group.completions
        )
        answer = f" · expected {html.escape(group.answer[:LONGEST_CELL])}" if group.answer else ""
        parts.append(f"<h3>{html.escape(group.title)}{answer}</h3><pre>{_text(group.prompt)}</pre>{lines}")
    content = "".join(parts)
    return content if alone else f"<details><summary>{html.escape(name)}</summary>{content}</details>"


def _rank(reward: float, best: float, worst: float) -> str:
    return "" if best == worst else "best" if reward == best else "worst" if reward == worst else ""


def _text(text: str) -> str:
    cut = f"\n… {len(text) - LONGEST_TEXT:,} characters more" if len(text) > LONGEST_TEXT else ""
    return html.escape(text[:LONGEST_TEXT] + cut)


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


def _configuration(configs: Mapping[str, Mapping[str, str]]) -> str:
    """Fields that differ between the runs come first and stand out."""
    if not configs:
        return ""
    fields = list(dict.fromkeys(field for config in configs.values() for field in config))
    differing = frozenset(field for field in fields if len({config.get(field) for config in configs.values()}) > 1)
    rows = [
        (field, [html.escape(config.get(field, "–")) for config in configs.values()])
        for field in sorted(fields, key=lambda f: f not in differing)
    ]
    table = _table([html.escape(name) for name in configs], rows, differing)
    return f"<details{' open' if differing else ''}><summary>{len(fields)} fields{f', {len(differing)} differ' if differing else ''}</summary>{table}</details>"
