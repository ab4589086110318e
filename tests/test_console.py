"""What is printed is printed as it is: rich reads no markup and no emoji codes in it."""

import io
import json
import sys
from pathlib import Path

import pytest

from grre_jax import objectives
from grre_jax.cli.entry import main
from grre_jax.console import make_console, progress_bar

PACKAGE = Path(__file__).parents[1] / "grre_jax"
ODD = "[bold]a[/bold] [/red] :warning: [x"


def test_a_console_prints_strings_and_cells_as_they_are(capsys):
    from rich.table import Table

    console = make_console()
    console.print(ODD)
    table = Table(ODD, title=ODD)
    table.add_row(ODD)
    console.print(table)
    assert capsys.readouterr().out.count(ODD) == 4


def test_the_list_of_algorithms_has_a_whole_line_for_each(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["algorithms"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for row, line in zip(objectives.algorithm_table(), lines, strict=False):
        assert line.startswith(f"{row.name} ") and line.endswith(f" {row.formula}")
        needed = {word.removesuffix("_logprobs") for word in row.requires - {"rewards"}}
        shown = line.removeprefix(row.name).removesuffix(row.formula)
        assert set(shown.replace(",", " ").split()) == (needed or {"-"})


@pytest.fixture
def stored(tmp_path):
    rows = {
        "prompt": ODD,
        "answer": "[/b]",
        "completions": [{"text": ODD, "reward": 1}, {"text": "[red]b", "reward": 0}],
    }
    (tmp_path / "[i]rows.jsonl").write_text(json.dumps(rows))
    folder = tmp_path / "[b]stored"
    words = ["rollouts", "import", "jsonl", str(tmp_path / "[i]rows.jsonl"), str(folder)]
    assert main([*words, "--contains", "[bold]split"]) == 0
    return folder


def test_rollouts_print_texts_as_they_are(stored, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["rollouts", "show", str(stored)]) == 0
    assert capsys.readouterr().out.count(ODD) == 2
    assert main(["rollouts", "info", str(stored)]) == 0
    assert "[bold]split" in capsys.readouterr().out
    assert main(["rollouts", "verify", str(stored)]) == 0
    assert str(stored) in capsys.readouterr().out


def test_a_bar_on_a_terminal_and_nothing_elsewhere(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    for terminal in (True, False):
        out = io.StringIO()
        out.isatty = lambda terminal=terminal: terminal
        monkeypatch.setattr(sys, "stderr", out)
        with progress_bar(3, "things") as advance:
            advance()
            advance(1)
        assert ("2/3" in out.getvalue()) == bool(out.getvalue()) == terminal
