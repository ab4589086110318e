"""Commands that the documentation shows are commands that exist, with options that they have."""

import argparse
import json
import re
import shlex
from pathlib import Path

import pytest

from grre_jax.cli.entry import make_parser
from grre_jax.config import Config
from grre_jax.training.config.run import fields

ROOT = Path(__file__).parents[2]
FOUND = [
    *(ROOT / "docs").rglob("*.md"),
    *(ROOT / "notebooks").glob("*.ipynb"),
    *(ROOT / "grre_jax").rglob("*.py"),
]
FOUND = [ROOT / "README.md", *sorted(FOUND)]
PAGES = [path for path in FOUND if re.search(r"\bgrre [a-z]", path.read_text())]
FIELDS = {field.name for field in fields(Config(name="default"))}


def walk(parser, path=()):
    yield path, parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, inner in action.choices.items():
                yield from walk(inner, (*path, name))


PARSERS = dict(walk(make_parser()))
COMMANDS = PARSERS.keys() - {command[:-1] for command in PARSERS}  # that have no commands below


def text_of(page):
    text = page.read_text()
    if page.suffix != ".ipynb":
        return text
    return "\n".join("".join(cell["source"]) for cell in json.loads(text)["cells"])


def shown(text):
    """Every command line that begins with `grre`, cut where the shell would end it."""
    command = r"(?:^|[`\s!])grre ([a-z]+\b[^`\n]*)"
    for match in re.finditer(command, text.replace("\\\n", " "), re.MULTILINE):
        line = re.split(r"\s#|&&|\|(?=\s)|;|\s>\s", match[1])[0]
        try:
            yield shlex.split(line)
        except ValueError:  # an apostrophe of the sentence after it
            yield line.split()


def unknown_options(words):
    """Options that a command line's command does not have; a sentence is no command line."""
    found = [command for command in COMMANDS if tuple(words[: len(command)]) == command]
    if not found:
        return []
    own = {option for action in PARSERS[found[0]]._actions for option in action.option_strings}
    given = [word for word in words if re.match(r"--[a-z]", word)]
    given = [word.partition("=")[0].rstrip(",.:)\"'") for word in given]
    names = {word: word[2:].replace("-", "_") for word in given}
    options = ("objective.options.", "task.options.")
    foreign = [word for word in given if word not in own and names[word] not in FIELDS]
    return [word for word in foreign if not names[word].startswith(options)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_options_exist(page):
    wrong = [(words, bad) for words in shown(text_of(page)) if (bad := unknown_options(words))]
    assert not wrong
