"""The commands of `grre rollouts` as they are typed; what they do: rollouts/tools/."""

import json

import pytest

from grre_jax import rollouts, tasks
from grre_jax.cli.entry import main
from grre_jax.errors import DataError, UsageError


@pytest.fixture
def run():
    """`run("info", folder)`: the exit status of `grre rollouts info FOLDER`."""
    return lambda *words: main(["--debug", "rollouts", *map(str, words)])


def test_look_verify_and_merge(folder, tmp_path, run, capsys, flip):
    assert run("info", folder) == run("verify", folder) == 0
    assert run("show", folder, "--count", 1, "--where", "position == 4") == 0
    assert "g4" in capsys.readouterr().out
    entry = rollouts.read(folder).datasets[1]
    flip(folder / entry.name / entry.data_file, 65600)
    assert run("verify", folder) == 1
    assert entry.data_file in capsys.readouterr().out
    with pytest.raises(DataError, match=entry.data_file):
        run("merge", folder, "--output", tmp_path / "rest")


def test_filter(folder, tmp_path, run):
    where = "position == 4 or position > 9"
    assert run("filter", folder, "--output", tmp_path / "f", "--where", where) == 0
    assert [group.position for group in rollouts.read(tmp_path / "f")] == [4, 10, 11]
    with pytest.raises(DataError):
        run("filter", folder, "--output", tmp_path / "none", "--where", "position < 0")
    assert not len(rollouts.read(tmp_path / "none"))


def test_export_and_import(folder, tmp_path, run):
    file = tmp_path / "e.jsonl"
    assert run("export", folder, file) == 0
    run("import", "jsonl", file, tmp_path / "r", "--contains", "math/test,gsm8k/test")
    again = rollouts.read(tmp_path / "r")
    assert list(again) == list(rollouts.read(folder))
    assert again.contains == {"math/test", "gsm8k/test"}
    tasks.CharTokenizer().save(tmp_path / "t")
    file.write_text(json.dumps({"q": "1+1", "text": "2", "reward": 1}))
    words = ("import", "jsonl", file, tmp_path / "s", "--task", "sums")
    with pytest.raises(UsageError, match="--tokenizer"):
        run(*words, "--system-prompt", "Think.")
    run(*words, "--mapping", '{"prompt": "q"}', "--tokenizer", tmp_path / "t")
    (group,) = rollouts.read(tmp_path / "s")
    assert (group.prompt, group.task) == ("1+1", "sums")
