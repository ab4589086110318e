import io
import json

import pytest
from rich.console import Console

from grre_jax import rollouts
from grre_jax.errors import DataError, UsageError
from grre_jax.rollouts import commands


@pytest.fixture
def console():
    return Console(file=io.StringIO(), width=220)


def printed(console):
    return console.file.getvalue()


def test_info(folder, console, make_group):
    rollouts.write(folder, [make_group(-1, version=-1)], writer="import", metadata={"contains": ["gsm8k/test"]})
    assert commands.info(folder, last=2, console=console) == 0
    text = printed(console)
    for part in ("groups", "13", "0 to 11", "unknown to 2", "import, sampler", "gsm8k/test", "arithmetic", "newest of 4 data sets"):
        assert part in text
    assert "sampler-v000002" in text and "sampler-v000000" not in text


def test_show(folder, console):
    assert commands.show(folder, 2, start=-3, width=5, console=console) == 0
    text = printed(console)
    assert "group 9: g9" in text and "group 10: g10" in text and "group 11" not in text
    assert "position 9" in text and "behavior, sampling, policy" in text and "é3 [b… (" in text


def test_show_filters(folder, console):
    commands.show(folder, 5, position=7, console=console)
    commands.show(folder, 5, question="q10", console=console)
    commands.show(folder, 1, signal=True, console=console)
    text = printed(console)
    assert "group 7:" in text and "group 10:" in text and "group 0:" not in text
    with pytest.raises(DataError, match="No group .* fits"):
        commands.show(folder, question="nobody asked this", console=console)
    with pytest.raises(UsageError, match="Cannot show 0"):
        commands.show(folder, 0, console=console)


def test_show_prints_square_brackets_as_they_are(folder, console):
    commands.show(folder, 1, width=1000, console=console)
    assert "[bold]" in printed(console)


def test_verify(folder, console, flip):
    assert commands.verify(folder, console=console) == 0
    assert "3 data sets, 12 groups" in printed(console) and "all intact" in printed(console)
    entry = rollouts.read(folder).datasets[1]
    flip(folder / entry.name / entry.data_file, 65600)
    (folder / "foreign").touch()
    assert commands.verify(folder, console=console) == 1
    text = printed(console)
    assert "damaged" in text and entry.data_file in text and "ignored: foreign" in text and "groups intact" in text


def test_import(tmp_path, console):
    line = {"prompt": "p", "completions": [{"text": "t", "reward": 1}]}
    (tmp_path / "a.jsonl").write_text(json.dumps(line))
    assert commands.import_("jsonl", tmp_path / "a.jsonl", tmp_path / "r", contains=("gsm8k/test",), console=console) == 0
    assert "Imported 1 groups" in printed(console) and "gsm8k/test" in printed(console)
    with pytest.raises(UsageError, match="Unknown format 'csv'; import one of gsm8k-solutions, jsonl"):
        commands.import_("csv", tmp_path / "a.jsonl", tmp_path / "r")
    with pytest.raises(UsageError, match="fixed fields"):
        commands.import_("gsm8k-solutions", tmp_path / "a.jsonl", tmp_path / "r", contains=("x",))


def test_an_empty_folder_is_named(tmp_path):
    for command in (commands.info, commands.show):
        with pytest.raises(DataError, match=f"{tmp_path} holds no data sets; sample some"):
            command(tmp_path)
