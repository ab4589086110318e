"""Help texts of every command."""

import argparse

import pytest

from grre_jax.cli.entry import make_parser


def walk(parser, path=("grre",)):
    yield path, parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, inner in action.choices.items():
                yield from walk(inner, (*path, name))


PARSERS = {" ".join(path): parser for path, parser in walk(make_parser())}


@pytest.mark.parametrize("command", PARSERS)
def test_every_option_has_a_meaning_that_is_expanded(command):
    text = PARSERS[command].format_help()
    assert "%%" not in text and "%(" not in text
    for action in PARSERS[command]._actions:
        if not isinstance(action, argparse._SubParsersAction):
            assert action.help, f"{command} {action.option_strings or action.dest}"
        else:
            helped = {choice.dest for choice in action._choices_actions if choice.help}
            assert helped == set(action.choices), command


@pytest.mark.parametrize("command", ["grre", "grre rollouts"])
def test_a_list_of_commands_fits_a_screen(command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    lines = PARSERS[command].format_help().splitlines()
    assert len(lines) <= 24 and max(map(len, lines)) <= 80
