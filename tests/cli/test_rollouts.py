import json

import pytest

from grre_jax import rollouts, tasks
from grre_jax.cli.entry import main
from grre_jax.errors import DataError, UsageError


@pytest.fixture
def run():
    """`run("info", folder)`: the exit status of `grre rollouts info FOLDER`."""
    return lambda *words: main(["--debug", "rollouts", *map(str, words)])


def test_look_and_verify(folder, run, capsys, flip):
    assert run("info", folder) == run("verify", folder) == 0
    assert run("show", folder, "--count", 1, "--where", "position == 4") == 0
    assert "g4" in capsys.readouterr().out
    entry = rollouts.read(folder).datasets[1]
    flip(folder / entry.name / entry.data_file, 65600)
    assert run("verify", folder) == 1
    text = capsys.readouterr().out
    assert "damaged" in text and entry.data_file in text
    with pytest.raises(DataError, match=entry.data_file):
        run("merge", folder, "--output", folder.parent / "rest")


def test_filter_and_merge(folder, tmp_path, run):
    where = "min(policy_version) >= 1 and length_max <= 4 and position != 5"
    assert run("filter", folder, "--output", tmp_path / "f", "--where", where) == 0
    kept = rollouts.read(tmp_path / "f")
    of_later = [g for g in rollouts.read(folder) if g.policy_version.min() >= 1]
    expected = [g for g in of_later if g.lengths.max() <= 4 and g.position != 5]
    assert list(kept) == expected and 0 < len(expected) < 8
    assert kept.datasets[0].metadata["history"][0]["kept"] == where
    for wrong in ("position < 0", "position == 1) or (1"):
        with pytest.raises((DataError, UsageError)):
            run("filter", folder, "--output", tmp_path / "none", "--where", wrong)
    assert not (tmp_path / "none").exists()
    assert run("merge", tmp_path / "f", folder, "--output", tmp_path / "m") == 0
    assert len(rollouts.read(tmp_path / "m")) == 12


def test_export_and_import(folder, tmp_path, run):
    assert run("export", folder, tmp_path / "e.jsonl") == 0
    run(
        "import",
        "jsonl",
        tmp_path / "e.jsonl",
        tmp_path / "r",
        "--contains",
        "math/test,gsm8k/test",
    )
    again = rollouts.read(tmp_path / "r")
    assert list(again) == list(rollouts.read(folder)) and again.contains == {
        "math/test",
        "gsm8k/test",
    }
    (tmp_path / "a.jsonl").write_text(json.dumps({"q": "1+1", "text": "2", "reward": 1}))
    words = ("import", "jsonl", tmp_path / "a.jsonl", tmp_path / "s", "--task", "sums")
    with pytest.raises(UsageError, match="mapping"):
        run(*words, "--mapping", "{")
    run(*words, "--mapping", '{"prompt": "q"}')
    (group,) = rollouts.read(tmp_path / "s")
    assert (group.prompt, group.task) == ("1+1", "sums")


def test_a_tokenizer_renders_what_is_imported(tmp_path, run):
    tasks.CharTokenizer().save(tmp_path / "t")
    completion = {"text": "3", "reward": 1, "tokens": [3, 16]}
    row = {"prompt": "1+2>", "prompt_tokens": [1], "completions": [completion]}
    (tmp_path / "a.jsonl").write_text(json.dumps(row))
    words = ("import", "jsonl", tmp_path / "a.jsonl", tmp_path / "r")
    with pytest.raises(UsageError, match="--tokenizer"):
        run(*words, "--system-prompt", "Think.")
    assert run(*words, "--tokenizer", tmp_path / "t") == 0
    metadata = rollouts.read(tmp_path / "r").datasets[0].metadata
    assert metadata["tokenizer"] == tasks.CharTokenizer().fingerprint
