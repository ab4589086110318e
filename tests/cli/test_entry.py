"""The commands as a person types them: exit statuses, one clear sentence, and what is done with a
run.
"""

import json
import re
from pathlib import Path

import pytest

import grre_jax
from grre_jax import objectives, reporting
from grre_jax.cli.entry import main
from grre_jax.errors import DataError, UsageError
from grre_jax.tasks import CharTokenizer

from ..run_processes import contents, written


@pytest.fixture(scope="module")
def config_file(make_config, tmp_path_factory):
    return str(written(make_config(tmp_path_factory.mktemp("config") / "tiny")))


@pytest.fixture
def fails(capsys):
    """`fails(status, *words)`: the sentence that a failing command prints; the same words raise
    with --debug.
    """

    def check(status, *words):
        words = [str(word) for word in words]
        assert main(words) == status
        printed = capsys.readouterr().err
        assert printed.startswith("grre: ") and printed.count("\n") == 1
        with pytest.raises(UsageError if status == 2 else DataError) as caught:
            main([*words, "--debug"])
        assert f"grre: {caught.value}\n" == printed
        return printed

    return check


def rows(folder, kind):
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line["kind"] == kind]


# ---- requests that fail


@pytest.mark.parametrize("words", ["", "trian", "train", "rollouts look x", "report x --nothing"])
def test_a_wrong_command_is_status_2(words, capsys):
    with pytest.raises(SystemExit) as caught:
        main(words.split())
    assert caught.value.code == 2
    assert "Traceback" not in capsys.readouterr().err
    with pytest.raises(SystemExit, match="^0$"):
        main(["--version"])
    assert grre_jax.__version__ in capsys.readouterr().out


@pytest.mark.parametrize(
    ("status", "words", "named"),
    [
        (2, "--objective.options.epsilon_lo 1", "epsilon_lo"),
        (2, "--objective.name none.py:loss", "there is no file"),
        (2, "--objective.name chord", "--data.mix"),
        (1, "--data.path nowhere", "nowhere"),
        (1, "--data.path empty", "empty"),
        (1, "--model.path gpt2", "GPT2LMHeadModel"),
        (1, "--resume", "config.json"),
    ],
)
def test_a_run_that_cannot_begin(fails, config_file, tmp_path, monkeypatch, status, words, named):
    monkeypatch.chdir(tmp_path)
    Path("empty").mkdir()
    CharTokenizer().save(Path("gpt2"))
    shape = {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2"}
    Path("gpt2/config.json").write_text(json.dumps(shape))
    assert named in fails(status, "train", config_file, "--run-dir", "run", *words.split())
    assert not Path("run").exists()


def test_what_is_not_there_is_named(fails, config_file, tmp_path):
    assert "tiny.py" in fails(2, "train", config_file.replace("tiny.py", "tini.py"))
    (tmp_path / "x").write_text("")
    for words in (["evaluate", tmp_path], ["export", tmp_path, tmp_path / "out"]):
        assert f"{tmp_path} is not a run folder" in fails(1, *words)
    assert str(tmp_path) in fails(1, "report", tmp_path)
    for action in ("info", "show", "verify"):
        assert f"{tmp_path} is not a rollout folder" in fails(1, "rollouts", action, tmp_path)
    words = ["import", "jsonl", tmp_path / "no.jsonl", tmp_path / "r"]
    assert "no.jsonl" in fails(1, "rollouts", *words)


def test_an_existing_run_is_refused_and_untouched(fails, tiny_run, config_file):
    before = contents(tiny_run)
    words = ["train", config_file, "--run-dir", tiny_run]
    assert f"run folder {tiny_run} already exists" in fails(2, *words)
    assert "different: seed" in fails(2, *words, "--resume", "--seed", "3")
    assert contents(tiny_run) == before


# ---- what is printed, and what is done with a run


def test_no_width_cuts_the_table_of_algorithms(capsys, fails, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    assert main(["algorithms", *objectives.algorithms()]) == 0
    printed = capsys.readouterr().out
    assert "…" not in printed
    assert set(objectives.algorithms()) <= set(printed.splitlines())
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


@pytest.mark.slow
def test_a_loss_of_your_own_trains_as_its_documentation_says(monkeypatch, config_file, tmp_path):
    """The page's example, copied out of it, with a penalty on the distance from the start."""
    monkeypatch.setattr(reporting, "report", lambda *_, **__: None)
    page = (Path(__file__).parents[2] / "docs" / "own-loss.md").read_text()
    source = re.search(r"```python\n(import.*?)```", page, re.DOTALL)[1]
    (tmp_path / "my_loss.py").write_text(source)
    words = f"--evaluation.questions 0 --run-dir {tmp_path / 'run'} --training.steps 4"
    words += f" --objective.name {tmp_path / 'my_loss.py'}:soft_clip"
    words += " --objective.options.width 0.3 --objective.options.kl_coef 0.1"
    assert main(["train", config_file, *words.split()]) == 0
    trained = rows(tmp_path / "run", "train")
    assert {"ratio_max", "effective_sample_size", "penalty"} <= trained[-1].keys()
    divergences = [row["kl_reference_k3"] for row in trained]
    assert len(divergences) == 4 and abs(divergences[0]) < 1e-9 and divergences[-1] > 1e-6


def test_evaluate_with_short_names(copy, capsys, monkeypatch, fails, tmp_path):
    monkeypatch.setenv("COLUMNS", "200")
    before = contents(copy)
    words = "--questions 8 --num-samples 4 --temperature 0.5 --max-new-tokens 3"
    assert main(["evaluate", str(copy), *words.split(), "--output", str(tmp_path / "e.json")]) == 0
    result = json.loads((tmp_path / "e.json").read_text())
    after = contents(copy)
    assert result == json.loads(after.pop("evaluation.json")) and after == before
    assert result["steps"] == [0, 8] and result["questions"] == 8
    assert result["sampling"].items() >= {"num_samples": 4, "temperature": 0.5}.items()
    printed = capsys.readouterr().out
    assert "pass@1" in printed and "KL" not in printed  # which takes the policy's own completions
    assert "evaluation.questions" in fails(2, "evaluate", copy, "--questions", "x")
    assert "--output" in fails(2, "evaluate", copy, "--output", tmp_path / "none" / "e.json")


def test_sample_and_export(fails, tiny_run, tmp_path, capsys):
    folder = tmp_path / "last"
    assert main(["export", str(tiny_run), str(folder)]) == 0
    before = contents(folder)
    assert str(folder) in fails(2, "export", tiny_run, folder)
    assert contents(folder) == before
    assert "step 3" in fails(1, "export", tiny_run, tmp_path / "third", "--step", "3")
    capsys.readouterr()
    words = "--prompt 3+5> --num-samples 2 --max-new-tokens 3 --output -".split()
    assert main(["sample", str(tiny_run), *words]) == 0
    drawn = json.loads(capsys.readouterr().out)
    assert len(drawn["completions"]) == 2 and drawn["model"]["step"] == 8
