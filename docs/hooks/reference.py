"""Makes the reference pages from the code whenever the site is built."""

import argparse
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))  # the package beside these pages

import formulas
from markdown_text import table, text

from grre_jax import domains, objectives
from grre_jax.cli.entry import make_parser
from grre_jax.config import Config
from grre_jax.objectives.objective import hyperparameters
from grre_jax.objectives.table import NOTATION
from grre_jax.reporting.metric_names import METRIC_NAMES, read_names
from grre_jax.training.config.run import fields

KINDS = {"train": "training steps", "warm_start": "steps of the warm start", "eval": "evaluations"}


CONFIGURATION = (
    "A field is set in the configuration's Python file,"
    " `Config(training=TrainingConfig(steps=100))`, or by its dotted name on the command line,"
    " `--training.steps 100`. `grre train CONFIG --print-config` prints the value of each."
)
COMMANDS = (
    "Where a command takes a configuration, any field is overridden by its dotted name"
    " ([Configuration](configuration.md)). A command ends with status 2 if the request is wrong,"
    " and 1 if the data is. `--debug` before any command shows the traceback of an error."
)


def on_files(files: Any, config: Any) -> Any:
    """Adds the pages."""
    from mkdocs.structure.files import File

    for name, make in PAGES.items():
        files.append(File.generated(config, f"reference/{name}.md", content=make()))
    return files


def configuration() -> str:
    """Renders every field of a configuration."""
    default = Config(name="default")
    sections: dict[str, list] = {}
    for field in fields(default):
        sections.setdefault(field.name.rpartition(".")[0], []).append(field)
    lines = ["# Configuration", "", CONFIGURATION]
    for name, rows in sections.items():
        section: Any = default
        for part in filter(None, name.split(".")):
            section = getattr(section, part)
        said = type(section).__doc__.strip().split("\n\n")[0]
        lines += ["", f"## {name or 'The run'}", "", text(" ".join(said.split())), ""]
        cells = []
        for row in rows:
            own = row.name.rpartition(".")[2]
            domain, meaning = domains.documented(row.section).get(own, ("", ""))
            kind = inspect.formatannotation(domains.plain(row.annotation))
            shown = "must be given" if row.name == "name" else f"`{row.default!r}`"
            words = map(text, (domain or domains.describe(row.annotation), meaning))
            cells.append((f"`{row.name}`", f"`{kind}`", shown, *words))
        lines += table(("field", "type", "default", "domain", "meaning"), cells)
    return "\n".join(lines) + "\n"


def metrics() -> str:
    """Renders every name in metrics.jsonl."""
    lines = [
        "# Metrics",
        "",
        (
            "A run writes `metrics.jsonl`, a JSON object per row; `kind` says what the row is of:"
            f" {', '.join(f'`{kind}`, {said}' for kind, said in KINDS.items())}."
        ),
        "",
    ]
    cells = (
        (
            f"`{row.name}`",
            " ".join(f"`{kind}`" for kind in row.kinds),
            *map(text, (row.unit, row.meaning, row.advice)),
        )
        for row in (*read_names("row_fields"), *METRIC_NAMES)
    )
    lines += table(("name", "rows", "unit", "meaning", "when it looks wrong"), cells)
    return "\n".join(lines) + "\n"


def commands() -> str:
    """Renders every command with its options."""
    lines = ["# Command line", "", COMMANDS]
    for path, parser, meaning in _parsers(make_parser()):
        parser.formatter_class = lambda prog: argparse.HelpFormatter(prog, width=100)
        said = parser.description or f"{meaning[:1].upper()}{meaning[1:]}."
        lines += [
            "",
            f"## {path}",
            "",
            text(said),
            "",
            "```text",
            parser.format_usage().strip(),
            "```",
            "",
        ]
        options = [action for action in parser._actions if action.help and action.dest != "help"]
        cells = ((_option(a), text(parser._get_formatter()._expand_help(a))) for a in options)
        lines += table(("argument", "meaning"), cells) if options else []
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
    """Renders every algorithm, and the hyperparameters of all."""
    lines = ["# Algorithms", "", formulas.as_markdown(NOTATION), ""]
    lines += ["`grre algorithms` prints these; `--objective.name NAME` trains with one.", ""]
    for row in objectives.algorithm_table():
        given = {name: "?" if value is None else value for name, value in row.defaults.items()}
        defaults = ", ".join(f"`{name}={value}`" for name, value in given.items())
        defaults += " (`?`: must be given)" * ("?" in given.values())
        variants = ", ".join(f"`{variant}`" for variant in row.variants)
        needs = sorted({*row.requires, "rewards"})
        lines += ["", f"## {row.name}", "", formulas.as_markdown(row.formula), ""]
        lines += [f"- defaults: {defaults}"]
        lines += [f"- variants: {variants}"] * (len(row.variants) > 1)
        lines += [
            f"- data: {', '.join(needs)}",
            f"- paper: [{row.paper}]({row.link})",
        ]
    lines += ["", "## Hyperparameters", ""]
    cells = (
        (f"`{name}`", text(n.meaning), text(n.domain)) for name, n in hyperparameters().items()
    )
    lines += table(("hyperparameter", "meaning", "domain"), cells)
    return "\n".join(lines) + "\n"


PAGES = {make.__name__: make for make in (configuration, metrics, commands, algorithms)}
