import pytest

from grre_jax import rollouts
from grre_jax.errors import DataError, UsageError
from grre_jax.rollouts.tools import commands


def test_info(folder, printed, make_group):
    rollouts.write(
        folder, [make_group(-1, version=-1)], writer="import", metadata={"contains": ["gsm8k/test"]}
    )
    assert commands.info(folder, last=2) == 0
    text = printed()
    for part in ("13", "0 to 11", "unknown to 2", "import, sampler", "gsm8k/test", "arithmetic"):
        assert part in text
    assert "sampler-v000002" in text and "sampler-v000000" not in text


def test_verify(folder, printed, flip):
    assert commands.verify(folder) == 0
    assert "3 data sets, 12 groups" in printed() and "all intact" in printed()
    entry = rollouts.read(folder).datasets[1]
    flip(folder / entry.name / entry.data_file, 65600)
    (folder / "foreign").touch()
    assert commands.verify(folder) == 1
    text = printed()
    assert "damaged" in text and entry.data_file in text and "ignored" in text


def test_export_and_import(folder, tmp_path, printed):
    path, contains = tmp_path / "e.jsonl", ("gsm8k/test",)
    assert commands.export(folder, path) == 0
    assert commands.import_("jsonl", path, tmp_path / "r", contains=contains) == 0
    for part in ("12 groups to", "12 groups, 48 completions", "3 data sets", "gsm8k/test"):
        assert part in printed()
    with pytest.raises(UsageError, match="fixed fields"):
        commands.import_("gsm8k-solutions", path, tmp_path / "r", contains=contains)


def test_an_empty_folder_is_named(tmp_path):
    with pytest.raises(DataError, match=f"{tmp_path} has no data sets; sample some"):
        commands.info(tmp_path)


def test_a_mapping_file(tmp_path):
    (tmp_path / "m.json").write_text('{"prompt": "question"}')
    assert commands.read_mapping(tmp_path / "m.json") == {"prompt": "question"}
    (tmp_path / "m.json").write_text("[1]")
    with pytest.raises(UsageError, match="m.json: expected a JSON object"):
        commands.read_mapping(tmp_path / "m.json")
    with pytest.raises(UsageError, match="nowhere.json: cannot be read"):
        commands.read_mapping(tmp_path / "nowhere.json")


def test_a_copy_that_left_something_out_says_so(printed):
    report = rollouts.CopyReport("x", 1, groups=3, read=6, duplicates=2, damaged=["a [file]"])
    assert commands.print_copy(report) == 1
    for part in ("3 of 6 groups", "2 left out", "left out: a [file]"):
        assert part in printed()
