"""The commands as a person types them: exit statuses, one clear sentence, and what is done with a
run.
"""

import json
from pathlib import Path

import pytest

from grre_jax.cli.entry import main
from grre_jax.tasks import CharTokenizer

from ..run_processes import contents, written


@pytest.fixture(scope="module")
def config_file(make_config, tmp_path_factory):
    return str(written(make_config(tmp_path_factory.mktemp("config") / "tiny")))


@pytest.fixture
def fails(capsys):
    """`fails(status, *words)`: the sentence that a failing command prints."""

    def check(status, *words):
        assert main([str(word) for word in words]) == status
        printed = capsys.readouterr().err
        assert printed.startswith("grre: ") and printed.count("\n") == 1
        return printed

    return check


# ---- requests that fail


def test_a_wrong_command_is_status_2():
    for words in ("trian", "report x --nothing"):
        with pytest.raises(SystemExit, match="^2$"):
            main(words.split())


@pytest.mark.parametrize(
    ("status", "words", "named"),
    [
        (2, "--objective.name none.py:loss", "No such file"),
        (2, "--objective.name chord", "--data.mix"),
        (1, "--data.path nowhere", "nowhere"),
        (1, "--model.path gpt2", "GPT2LMHeadModel"),
        (1, "--resume", "config.json"),
    ],
)
def test_a_run_that_cannot_begin(fails, config_file, tmp_path, monkeypatch, status, words, named):
    monkeypatch.chdir(tmp_path)
    CharTokenizer().save(Path("gpt2"))
    shape = {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2"}
    Path("gpt2/config.json").write_text(json.dumps(shape))
    assert named in fails(status, "train", config_file, "--run-dir", "run", *words.split())
    assert not Path("run").exists()


@pytest.mark.parametrize(
    "words", ["evaluate RUN", "export RUN out", "report RUN", "rollouts info RUN"]
)
def test_what_is_no_run_is_named(fails, tmp_path, words):
    assert str(tmp_path) in fails(1, *words.replace("RUN", str(tmp_path)).split())


# ---- what is printed, and what is done with a run


def test_algorithms_are_looked_up_by_name(capsys, fails):
    assert main(["algorithms", "opsm"]) == 0
    printed = capsys.readouterr().out
    assert "opsm_delta" in printed and "rloo" not in printed
    assert "opsm" in fails(2, "algorithms", "opms")


def test_fields_are_printed_and_nothing_runs(config_file, tmp_path, capsys):
    words = ["train", config_file, "--print-config", "--run-dir", str(tmp_path / "run")]
    assert main([*words, "--mesh.data", "-1", "--optimizer.learning-rate", "3e-4"]) == 0
    fields = json.loads(capsys.readouterr().out)
    assert fields["optimizer"]["learning_rate"] == 3e-4 and fields["mesh"]["data"] == -1
    assert not (tmp_path / "run").exists()


def test_a_finished_run_is_evaluated(copy, capsys, fails, tmp_path):
    """The run stays as it was."""
    before = contents(copy)
    names = {"questions": 8, "num-samples": 4, "max-new-tokens": 3}
    words = " ".join(f"--evaluation.{name} {value}" for name, value in names.items())
    assert main(["evaluate", str(copy), *words.split(), "--output", str(tmp_path / "e.json")]) == 0
    result = json.loads((tmp_path / "e.json").read_text())
    after = contents(copy)
    assert result == json.loads(after.pop("evaluation.json")) and after == before
    assert result["steps"] == [0, 8] and result["questions"] == 8
    assert result["sampling"]["num_samples"] == 4
    assert result["first"]["kl_to_start"] == pytest.approx(0, abs=1e-6)
    assert result["last"]["kl_to_start"] > 0
    assert "pass@1" in capsys.readouterr().out
    assert "--output" in fails(2, "evaluate", copy, "--output", tmp_path / "none" / "e.json")


def test_an_export_replaces_nothing(fails, tiny_run, tmp_path):
    folder = tmp_path / "last"
    assert main(["export", str(tiny_run), str(folder)]) == 0
    before = contents(folder)
    assert str(folder) in fails(2, "export", tiny_run, folder)
    assert contents(folder) == before
    assert "step 3" in fails(1, "export", tiny_run, tmp_path / "third", "--step", "3")
