"""Makes the reference pages from the code, and typesets formulas, whenever the site is built."""

import argparse
import html
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))  # the package beside these pages

import formulas
from latex2mathml.converter import convert

from grre_jax import objectives
from grre_jax.cli import NEEDED_DATA, make_parser
from grre_jax.config import Config
from grre_jax.fields import fields
from grre_jax.objectives.numbers import NUMBERS
from grre_jax.reporting.metric_names import METRIC_NAMES

KINDS = {
    "train": "training steps",
    "warm_start": "steps of the warm start",
    "eval": "evaluations",
}


def on_files(files: Any, config: Any) -> Any:
    """Adds the pages."""
    from mkdocs.structure.files import File

    for name, make in PAGES.items():
        files.append(File.generated(config, f"reference/{name}.md", content=make()))
    return files


def on_page_content(content: str, **_: Any) -> str:
    """Formulas as MathML, which browsers set without a script."""
    inline = r'<span class="arithmatex">\\\((.+?)\\\)</span>'
    block = r'<div class="arithmatex">\s*\\\[(.+?)\\\]\s*</div>'
    for pattern, display in ((inline, "inline"), (block, "block")):
        content = re.sub(
            pattern,
            lambda found, display=display: convert(html.unescape(found[1]), display=display),
            content,
            flags=re.DOTALL,
        )
    return content


def configuration() -> str:
    """Every field of a configuration."""
    default = Config(name="default")
    sections: dict[str, list] = {}
    for field in fields(default):
        sections.setdefault(field.name.rpartition(".")[0], []).append(field)
    lines = [
        "# Configuration",
        "",
        "A field is set in the configuration's Python file, `Config(training=TrainingConfig(steps=100))`,"
        " or by its dotted name on the command line, `--training.steps 100`."
        " `grre train CONFIG --fields` prints the value of each.",
    ]
    for name, rows in sections.items():
        section: Any = default
        for part in filter(None, name.split(".")):
            section = getattr(section, part)
        said = type(section).__doc__.strip().split("\n\n")[0]
        lines += ["", f"## {name or 'The run'}", "", _text(" ".join(said.split())), ""]
        cells = (
            (
                f"`{row.name}`",
                f"`{row.type}`",
                "must be given" if row.required else f"`{row.default!r}`",
                _text(row.domain),
                _text(row.meaning),
            )
            for row in rows
        )
        lines += _table(("field", "type", "default", "domain", "meaning"), cells)
    return "\n".join(lines) + "\n"


def metrics() -> str:
    """Every name in metrics.jsonl."""
    lines = [
        "# Metrics",
        "",
        "A run writes `metrics.jsonl`, a JSON object per row; `kind` says what the row is of:"
        f" {', '.join(f'`{kind}`, {said}' for kind, said in KINDS.items())}.",
        "",
    ]
    cells = (
        (f"`{row.name}`", " ".join(f"`{kind}`" for kind in row.kinds), *map(_text, (row.unit, row.meaning, row.advice)))
        for row in METRIC_NAMES
    )
    lines += _table(("name", "rows", "unit", "meaning", "when it looks wrong"), cells)
    return "\n".join(lines) + "\n"


def commands() -> str:
    """Every command with its options."""
    lines = [
        "# Command line",
        "",
        "Where a command takes a configuration, any field is overridden by its dotted name"
        " ([Configuration](configuration.md)). A command ends with status 2 if the request is wrong,"
        " and 1 if the data is. `--debug` before any command shows the traceback of an error.",
    ]
    for path, parser, meaning in _parsers(make_parser()):
        parser.formatter_class = lambda prog: argparse.HelpFormatter(prog, width=100)
        said = parser.description or f"{meaning[:1].upper()}{meaning[1:]}."
        lines += ["", f"## {path}", "", _text(said), "", "```text", parser.format_usage().strip(), "```", ""]
        options = [a for a in parser._actions if a.help and a.dest != "help" and a.help != argparse.SUPPRESS]
        cells = ((_option(a), _text(parser._get_formatter()._expand_help(a))) for a in options)
        lines += _table(("argument", "meaning"), cells) if options else []
    return "\n".join(lines) + "\n"


def _parsers(parser: argparse.ArgumentParser, meaning: str = "") -> Iterator[tuple[str, Any, str]]:
    inner = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    if not inner:
        yield parser.prog, parser, meaning
    for action in inner:
        said = {choice.dest: choice.help for choice in action._choices_actions}
        for name, chosen in action.choices.items():
            yield from _parsers(chosen, said[name])


def _option(action: argparse.Action) -> str:
    value = action.metavar or "|".join(action.choices or [action.dest.upper()])
    words = ", ".join(action.option_strings) or action.metavar or action.dest
    words += f" {value}" * bool(action.option_strings and action.nargs != 0)
    return f"`{words}`"


def algorithms() -> str:
    """Every algorithm, and the numbers that they take."""
    notation = sys.modules["grre_jax.objectives.table"].__doc__.split("\n\n")[2]
    lines = ["# Algorithms", "", formulas.as_markdown(" ".join(notation.split())), ""]
    lines += ["`grre algorithms` prints these; `--objective.name NAME` trains with one.", ""]
    for row in objectives.algorithm_table():
        numbers = (f"`{name}={'?' if value is None else value}`" for name, value in row.defaults.items())
        needs = sorted({*row.requires, "rewards"})
        lines += ["", f"## {row.name}", "", formulas.as_markdown(row.formula), ""]
        lines += [f"- defaults: {', '.join(numbers)}" + (" (`?`: must be given)" * (None in row.defaults.values()))]
        lines += [f"- variants: {', '.join(f'`{v}`' for v in row.variants)}"] * (len(row.variants) > 1)
        lines += [f"- data: {', '.join(NEEDED_DATA[name] for name in needs)}", f"- paper: [{row.paper}]({row.link})"]
    lines += ["", "## Numbers", ""]
    cells = ((f"`{name}`", _text(n.meaning), _text(n.domain)) for name, n in NUMBERS.items())
    lines += _table(("number", "meaning", "domain"), cells)
    return "\n".join(lines) + "\n"


def _table(titles: Sequence[str], rows: Any) -> list[str]:
    return [f"| {' | '.join(cells)} |" for cells in (titles, ["---"] * len(titles), *rows)]


def _text(text: str) -> str:
    """Plain text as Markdown that shows it as it is; what stands in backticks stays code."""
    parts = text.split("`")
    for place in range(0, len(parts), 2):
        parts[place] = re.sub(r"([*_\[\]$|\\])", r"\\\1", html.escape(parts[place], quote=False))
    return "`".join(parts)


PAGES = {make.__name__: make for make in (configuration, metrics, commands, algorithms)}
