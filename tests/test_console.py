"""What is printed is printed as it is: rich reads no markup and no emoji codes in it."""

import ast
import io
import json
import sys
from pathlib import Path

import pytest

from grre_jax import objectives, rollouts
from grre_jax.cli.entry import main
from grre_jax.console import make_console, progress_bar

PACKAGE = Path(__file__).parents[1] / "grre_jax"
ODD = "[bold]a[/bold] [/red] :warning: [x"


def test_a_console_prints_strings_and_cells_as_they_are():
    from rich.table import Table

    out = io.StringIO()
    console = make_console(file=out)
    console.print(ODD)
    table = Table(ODD, title=ODD)
    table.add_row(ODD)
    console.print(table)
    assert out.getvalue().count(ODD) == 4


def test_consoles_are_made_in_one_place():
    made = []
    for path in PACKAGE.rglob("*.py"):
        nodes = ast.walk(ast.parse(path.read_text()))
        calls = [node.func for node in nodes if isinstance(node, ast.Call)]
        names = {getattr(call, "id", getattr(call, "attr", "")) for call in calls}
        made += [path.relative_to(PACKAGE).as_posix()] * ("Console" in names)
    assert made == ["console.py"]


def test_the_list_of_algorithms_has_a_whole_line_for_each(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["algorithms"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for row, line in zip(objectives.algorithm_table(), lines, strict=False):
        assert line.startswith(f"{row.name} ") and line.endswith(f" {row.formula}")
        needed = {word.removesuffix("_logprobs") for word in row.requires - {"rewards"}}
        shown = line.removeprefix(row.name).removesuffix(row.formula)
        assert set(shown.replace(",", " ").split()) == (needed or {"-"})
    assert main(["algorithms", "gvpo"]) == 0
    assert "1/2 [beta (S - mean S) - A]^2 / (K - 1)" in capsys.readouterr().out


def test_explain_prints_the_names_of_a_configuration_as_they_are(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    path = tmp_path / "odd.py"
    path.write_text(
        "from grre_jax.config import Config, DataConfig, ObjectiveConfig\n"
        f"def config():\n    return Config(name={ODD!r}, data=DataConfig(path='[green]stored'), "
        "objective=ObjectiveConfig('gvpo', {'gvpo_beta': 0.1}))\n"
    )
    assert main(["explain", str(path)]) == 0
    printed = capsys.readouterr().out
    assert ODD in printed and "[green]stored" in printed and "[beta (S - mean S) - A]^2" in printed


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


@pytest.mark.parametrize("columns", ["40", "80", "200"])
def test_info_cuts_nothing_at_any_width(stored, capsys, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", columns)
    assert main(["rollouts", "info", str(stored)]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    entry = rollouts.read(stored).datasets[0]
    assert "…" not in printed and entry.name in printed
    for heading in ("policy version", "completions", "positions", "sealed (UTC)"):
        assert heading in printed


@pytest.mark.parametrize("columns", ["60", "80", "200"])
def test_explain_cuts_nothing_at_any_width(capsys, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", columns)
    config = PACKAGE.parent / "configs" / "arithmetic.py"
    assert main(["explain", str(config), "--regime.replay-ratio", "0.25"]) == 0
    printed = capsys.readouterr().out
    assert "…" not in printed and "Staleness over the run" in printed
    assert all(len(line) <= int(columns) for line in printed.splitlines())


@pytest.mark.parametrize("columns", [60, 200])
def test_evaluations_are_printed_whole_with_the_names_that_components_have(monkeypatch, columns):
    from grre_jax.reporting.evaluation_tables import print_evaluations

    monkeypatch.setenv("COLUMNS", str(columns))
    out = io.StringIO()
    row = {"accuracy": 0.5, "accuracy_low": 0.25, "accuracy_high": 0.75, "response_length": 12.0}
    row |= {"reward": 0.1, "reward_low": -0.1, "reward_high": 0.3, "component_[b]": 0.5}
    row |= {"kl_to_start": 0.01, "left_out": {"maj_at_k": "[bold]why"}}
    print_evaluations({"[red]policy": (100, row)}, make_console(file=out))
    printed = "".join(out.getvalue().replace("│", " ").split())
    assert "…" not in printed and "\\" not in printed
    assert "[b]" in printed and "[bold]why" in printed


def test_a_bar_on_a_terminal_and_nothing_elsewhere(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    for terminal, enabled in ((True, True), (False, True), (True, False)):
        out = io.StringIO()
        out.isatty = lambda terminal=terminal: terminal
        monkeypatch.setattr(sys, "stderr", out)
        with progress_bar(3, "things", enabled) as advance:
            advance()
            advance(1)
        assert ("2/3" in out.getvalue()) == bool(out.getvalue()) == (terminal and enabled)
