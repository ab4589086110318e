"""What is printed is printed as it is: rich reads no markup and no emoji codes in it."""

import json

import pytest

from grre_jax.cli.entry import main

ODD = "[bold]a[/bold] [/red] :warning: [x"


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
