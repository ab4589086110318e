"""The commands as a person types them: exit statuses, one clear sentence, and one small run from
start to export.
"""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

import grre_jax
from grre_jax import models, objectives, reporting, rollouts
from grre_jax.cli.entry import main
from grre_jax.errors import DataError, UsageError
from grre_jax.tasks import CharTokenizer

CONFIG = """
from grre_jax.training.config import run as c
from grre_jax.training.data.regime import Regime
from grre_jax.training.optimizer import OptimizerConfig

def config():
    return c.Config(
        name="tiny",
        model=c.ModelSource(hidden_size=16, intermediate_size=32, num_layers=2, num_heads=2, num_kv_heads=1, head_dim=8),
        task=c.TaskConfig("arithmetic", {"operands": 2}),
        objective=c.ObjectiveConfig("rec_oneside_nois", {"epsilon_low": 0.6, "epsilon_high": 2.0}),
        regime=Regime(sync_interval=2),
        sampling=c.SamplingConfig(group_size=4, max_prompt_tokens=4, max_new_tokens=3, prompts_per_call=4),
        training=c.TrainingConfig(steps=4, prompts_per_step=4),
        optimizer=OptimizerConfig(learning_rate=1e-2),
        warm_start=c.WarmStartConfig(steps=3, demonstrations=32, batch_size=16, optimizer=OptimizerConfig(learning_rate=3e-2)),
        evaluation=c.EvaluationConfig(every=2, questions=12, num_samples=4),
        checkpoint=c.CheckpointConfig(every=2, export=True),
    )
"""


# What a run does besides training.
BARE = ["--evaluation.questions", "0", "--checkpoint.export", "false"]


@pytest.fixture(scope="module")
def config_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("config") / "tiny.py"
    path.write_text(CONFIG)
    return str(path)


@pytest.fixture(scope="module")
def run(config_file, tmp_path_factory):
    """The folder of a finished run; only to be looked at."""
    folder = tmp_path_factory.mktemp("cli") / "run"
    assert main(["train", config_file, "--run-dir", str(folder)]) == 0
    return folder


@pytest.fixture
def without_report(monkeypatch):
    """The runs of a test draw nothing."""
    monkeypatch.setattr(reporting, "report", lambda *_, **__: None)


@pytest.fixture
def copy(run, tmp_path):
    """A copy of the run, to be changed."""
    return shutil.copytree(run, tmp_path / "copy")


@pytest.fixture
def fails(capsys):
    """`fails(status, *words)`: the sentence that a failing command prints; the same words raise
    with --debug.
    """

    def check(status, *words):
        words = [str(word) for word in words]
        assert main(words) == status
        printed = capsys.readouterr().err
        assert (
            printed.startswith("grre: ") and printed.count("\n") == 1 and "Traceback" not in printed
        )
        with pytest.raises(UsageError if status == 2 else DataError) as caught:
            main([*words, "--debug"])
        assert f"grre: {caught.value}\n" == printed
        return printed

    return check


def files(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def rows(folder, kind):
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line["kind"] == kind]


def logprobs(folder):
    tokens = np.array([[3, 10, 5, 15, 8, 16], [0, 12, 9, 15, 0, 16]])
    return np.asarray(models.token_logprobs(models.load(folder), tokens))


def damage(folder):
    """Flips a bit of the first data set's records; returns the file's name."""
    entry = rollouts.read(folder).datasets[0]
    path = folder / entry.name / entry.data_file
    content = bytearray(path.read_bytes())
    content[65600] ^= 1
    path.write_bytes(content)
    return entry.data_file


# ---- requests that fail


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["trian"],
        ["train"],
        ["rollouts"],
        ["rollouts", "look", "x"],
        ["report", "x", "--nothing"],
    ],
)
def test_a_wrong_command_is_status_2(words, capsys):
    with pytest.raises(SystemExit) as caught:
        main(words)
    assert caught.value.code == 2
    assert "Traceback" not in capsys.readouterr().err


def test_version(capsys):
    with pytest.raises(SystemExit) as caught:
        main(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out == f"grre_jax {grre_jax.__version__}\n"


def test_algorithms(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    assert main(["algorithms"]) == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in objectives.algorithms())


def test_fields_are_printed_and_nothing_runs(config_file, tmp_path, capsys):
    words = [
        "train",
        config_file,
        "--print-config",
        "--run-dir",
        str(tmp_path / "run"),
        "--mesh.data",
        "-1",
        "--optimizer.learning-rate",
        "3e-4",
    ]
    assert main(words) == 0
    fields = json.loads(capsys.readouterr().out)
    assert fields["optimizer"]["learning_rate"] == 3e-4 and fields["mesh"]["data"] == -1
    assert not (tmp_path / "run").exists()


def test_a_typo_in_a_field(fails, config_file):
    assert "unknown field 'training.step'; did you mean --training.steps?" in fails(
        2, "train", config_file, "--training.step", "3"
    )


def test_a_value_of_the_wrong_kind(fails, config_file):
    assert "training.steps: expected a whole number, got 'ten'" in fails(
        2, "train", config_file, "--training.steps", "ten"
    )


def test_a_missing_config(fails, config_file, tmp_path):
    assert "tini.py does not exist; did you mean" in fails(
        2, "train", config_file.replace("tiny.py", "tini.py")
    )
    assert "no.py does not exist" in fails(2, "train", tmp_path / "no.py")


def test_an_unknown_objective_option(fails, config_file, tmp_path):
    printed = fails(
        2,
        "train",
        config_file,
        "--run-dir",
        tmp_path / "run",
        "--objective.options.epsilon_lo",
        "1",
    )
    assert "epsilon_lo" in printed and not (tmp_path / "run").exists()


def test_a_loss_of_your_own_trains_as_its_documentation_says(without_report, config_file, tmp_path):
    """The page's example, copied out of it."""
    page = (Path(__file__).parents[2] / "docs" / "own-loss.md").read_text()
    (tmp_path / "my_loss.py").write_text(
        re.search(r"```python\n(import.*?)```", page, re.DOTALL)[1]
    )
    folder = tmp_path / "run"
    name = f"{tmp_path / 'my_loss.py'}:soft_clip"
    options = [
        "--objective.name",
        name,
        "--objective.options.width",
        "0.3",
        "--objective.options.kl_coef",
        "0.1",
    ]
    assert (
        main(
            [
                "train",
                config_file,
                "--run-dir",
                str(folder),
                *options,
                *BARE,
                "--objective.options.kl_reference",
                "behavior",
            ]
        )
        == 0
    )
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    trained = [row for row in rows if "loss" in row]
    assert trained and {"ratio_max", "effective_sample_size", "penalty"} <= trained[-1].keys()


def test_a_loss_of_your_own_that_is_not_there(fails, config_file, tmp_path):
    printed = fails(
        2,
        "train",
        config_file,
        "--run-dir",
        tmp_path / "run",
        "--objective.name",
        f"{tmp_path}/none.py:loss",
    )
    assert "there is no file" in printed and not (tmp_path / "run").exists()


def test_the_reference_of_a_run_is_the_policy_it_started_from(
    without_report, config_file, tmp_path
):
    folder = tmp_path / "run"
    assert (
        main(
            [
                "train",
                config_file,
                "--run-dir",
                str(folder),
                *BARE,
                "--objective.name",
                "tis",
                "--objective.options.kl_coef",
                "0.1",
            ]
        )
        == 0
    )
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    divergences = [row["kl_reference_k3"] for row in rows if "kl_reference_k3" in row]
    assert len(divergences) == 4 and abs(divergences[0]) < 1e-9 and divergences[-1] > 1e-6


def test_an_objective_whose_data_a_run_does_not_have(fails, config_file, tmp_path):
    printed = fails(
        2, "train", config_file, "--run-dir", tmp_path / "run", "--objective.name", "chord"
    )
    assert "objective chord needs completions of an expert" in printed
    assert "--data.mix" in printed
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("columns", ["60", "80", "200"])
def test_no_width_cuts_the_table_of_algorithms(capsys, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", columns)
    assert main(["algorithms", *objectives.algorithms()]) == 0
    printed = capsys.readouterr().out
    assert "…" not in printed
    for row in objectives.algorithm_table():
        assert f" {row.name} " in printed


def test_algorithms_of_a_name(capsys, fails, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["algorithms", "opsm"]) == 0
    printed = capsys.readouterr().out
    assert "opsm_delta" in printed and "may be negative" in printed and "rloo" not in printed
    assert "did you mean opsm" in fails(2, "algorithms", "opms")


def test_an_unsupported_architecture_is_named(fails, config_file, tmp_path):
    folder = tmp_path / "gpt2"
    CharTokenizer().save(folder)
    (folder / "config.json").write_text(
        json.dumps({"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2"})
    )
    printed = fails(1, "train", config_file, "--run-dir", tmp_path / "run", "--model.path", folder)
    assert "GPT2LMHeadModel" in printed and "LlamaForCausalLM" in printed and str(folder) in printed
    assert not (tmp_path / "run").exists()


def test_a_missing_model(fails, config_file, tmp_path):
    assert main(
        [
            "train",
            config_file,
            "--run-dir",
            str(tmp_path / "run"),
            "--model.path",
            str(tmp_path / "nowhere"),
        ]
    ) in (1, 2)
    assert not (tmp_path / "run").exists()


def test_an_empty_data_set(fails, config_file, tmp_path):
    (tmp_path / "rollouts").mkdir()
    printed = fails(
        1, "train", config_file, "--run-dir", tmp_path / "run", "--data.path", tmp_path / "rollouts"
    )
    assert str(tmp_path / "rollouts") in printed and "holds no groups" in printed
    assert "does not exist" in fails(
        1, "train", config_file, "--run-dir", tmp_path / "run", "--data.path", tmp_path / "nowhere"
    )
    assert not (tmp_path / "run").exists()


def test_prompts_over_the_limit(fails, config_file, tmp_path):
    line = {
        "prompt": "1+2+3+4>",
        "completions": [{"text": "0$", "reward": 1}, {"text": "1$", "reward": 0}],
    }
    (tmp_path / "a.jsonl").write_text(
        "\n".join(json.dumps(line | {"question_id": str(i)}) for i in range(2))
    )
    assert (
        main(["rollouts", "import", "jsonl", str(tmp_path / "a.jsonl"), str(tmp_path / "r")]) == 0
    )
    words = [
        "--run-dir",
        tmp_path / "run",
        "--data.path",
        tmp_path / "r",
        "--warm_start.steps",
        "0",
        "--evaluation.questions",
        "0",
    ]
    printed = fails(1, "train", config_file, *words)
    assert "has no behaviour log-probs, and objective rec_oneside_nois needs them" in printed
    assert "--objective.name" in printed


def test_folders_that_are_no_run(fails, tmp_path):
    (tmp_path / "x").write_text("")
    for words in (["evaluate", tmp_path], ["export", tmp_path, tmp_path / "out"]):
        assert f"{tmp_path} is not a run folder" in fails(1, *words)
    assert str(tmp_path) in fails(1, "report", tmp_path)
    for action in ("info", "show", "verify"):
        assert f"{tmp_path} is not a rollout folder" in fails(1, "rollouts", action, tmp_path)


def test_a_missing_import_file(fails, tmp_path):
    assert "no.jsonl" in fails(
        1, "rollouts", "import", "jsonl", tmp_path / "no.jsonl", tmp_path / "r"
    )


# ---- one run


def test_what_a_run_leaves(run):
    assert json.loads((run / "config.json").read_text())["name"] == "tiny"
    for kind, steps in {"warm_start": [1, 2, 3], "train": [1, 2, 3, 4], "eval": [0, 2, 4]}.items():
        assert [row["step"] for row in rows(run, kind)] == steps
    needed = {
        "reward",
        "loss",
        "clip_fraction",
        "entropy",
        "response_length",
        "grad_norm",
        "learning_rate",
        "tokens_per_second",
        "staleness",
    }
    assert all(needed <= row.keys() for row in rows(run, "train"))
    assert [row["staleness"] for row in rows(run, "train")] == [0, 1, 0, 1]
    accuracies = {
        f"{which}accuracy{end}" for which in ("", "greedy_") for end in ("", "_low", "_high")
    }
    assert accuracies | {"response_length", "kl_to_start"} <= rows(run, "eval")[0].keys()
    assert rows(run, "eval")[0]["kl_to_start"] == pytest.approx(0, abs=1e-6)
    assert list((run / "plots").glob("*.png"))
    assert (run / "plots" / "overview.png").stat().st_size > 1000
    assert list((run / "tensorboard").rglob("*tfevents*"))
    assert json.loads((run / "summary.json").read_text())["runs"][0]["steps"] == 4
    assert json.loads((run / "model" / "grre_provenance.json").read_text()) == {
        "run": "tiny",
        "step": 4,
        "contains": ["arithmetic/train"],
    }


def test_everything_learned_from_is_in_shards(run):
    reader = rollouts.read(run / "rollouts")
    assert sorted(reader.index) == list(range(16))
    assert [entry.policy_version for entry in reader.datasets] == [0, 2]
    demonstrations = rollouts.read(run / "warm_start")
    assert len(demonstrations) == 32
    assert all(group.rewards.tolist() == [1.0] for group in demonstrations)


def test_an_existing_run_is_refused_and_untouched(fails, run, config_file):
    before = files(run)
    assert f"run folder {run} already exists" in fails(2, "train", config_file, "--run-dir", run)
    assert "different: seed" in fails(
        2, "train", config_file, "--run-dir", run, "--resume", "--seed", "3"
    )
    assert files(run) == before


def test_nothing_to_resume(fails, config_file, tmp_path):
    assert "there is no run to resume" in fails(
        1, "train", config_file, "--run-dir", tmp_path / "run", "--resume"
    )
    assert not (tmp_path / "run").exists()


def test_report(copy, capsys, tmp_path, run):
    shutil.rmtree(copy / "plots")
    (copy / "summary.json").unlink()
    assert main(["report", str(copy)]) == 0
    assert "copy" in capsys.readouterr().out
    assert (copy / "plots" / "overview.png").is_file() and (copy / "summary.json").is_file()
    assert main(["report", str(run), str(copy), "--output", str(tmp_path / "both")]) == 0
    assert len(json.loads((tmp_path / "both" / "summary.json").read_text())["runs"]) == 2


def test_evaluate(copy, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    before = (
        files(copy / "checkpoints"),
        (copy / "config.json").read_bytes(),
        (copy / "metrics.jsonl").read_bytes(),
    )
    assert main(["evaluate", str(copy), "--evaluation.questions", "8"]) == 0
    result = json.loads((copy / "evaluation.json").read_text())
    assert result["steps"] == [0, 4] and result["questions"] == 8
    assert result["first"]["kl_to_start"] == pytest.approx(0, abs=1e-6)
    assert 0 <= result["last"]["accuracy"] <= 1
    printed = capsys.readouterr().out
    assert "policy" in printed and "pass@k" in printed and "maj@k" in printed
    assert (
        files(copy / "checkpoints"),
        (copy / "config.json").read_bytes(),
        (copy / "metrics.jsonl").read_bytes(),
    ) == before


def test_evaluate_with_short_names(copy, capsys, monkeypatch, fails, tmp_path):
    monkeypatch.setenv("COLUMNS", "200")
    words = [
        "--questions",
        "8",
        "--num-samples",
        "2",
        "--temperature",
        "0.5",
        "--top-k",
        "3",
        "--top-p",
        "0.9",
        "--max-new-tokens",
        "2",
    ]
    assert main(["evaluate", str(copy), *words, "--output", str(tmp_path / "e.json")]) == 0
    result = json.loads((tmp_path / "e.json").read_text())
    assert result == json.loads((copy / "evaluation.json").read_text()) and result["questions"] == 8
    assert result["sampling"] == {
        "num_samples": 2,
        "temperature": 0.5,
        "top_k": 3,
        "top_p": 0.9,
        "min_p": 0.0,
        "max_new_tokens": 2,
        "stop": [],
    }
    assert result["last"]["response_length"] <= 2
    assert list(result["last"]["pass_at_k"]) == [
        "1",
        "2",
    ]
    assert (
        "kl_to_start" not in result["last"] and "KL" not in capsys.readouterr().out
    )  # that takes the policy's own completions
    assert "evaluation.questions: expected a whole number" in fails(
        2, "evaluate", copy, "--questions", "x"
    )
    assert "make it first" in fails(2, "evaluate", copy, "--output", tmp_path / "none" / "e.json")
    assert "--output /proc/e.json cannot be written" in fails(
        2, "evaluate", copy, "--output", "/proc/e.json"
    )


def test_evaluate_a_model(run, capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("COLUMNS", "200")
    words = [
        "--task.name",
        "arithmetic",
        "--task.options.operands",
        "2",
        "--questions",
        "8",
        "--num-samples",
        "4",
        "--max-new-tokens",
        "3",
    ]
    assert main(["evaluate", str(run / "model"), *words, "--output", str(tmp_path / "e.json")]) == 0
    result = json.loads((tmp_path / "e.json").read_text())
    assert result["task"] == "arithmetic"
    assert (
        0
        <= result["policy"]["maj_at_k"]["4"]["value"]
        <= result["policy"]["pass_at_k"]["4"]["value"]
        <= 1
    )
    assert "pass@k" in capsys.readouterr().out and not (run / "model" / "evaluation.json").exists()


def test_sample(run, capsys):
    words = ["--prompt", "3+5>", "--num-samples", "2", "--max-new-tokens", "3", "--output", "-"]
    assert main(["sample", str(run), *words]) == 0
    of_run = json.loads(capsys.readouterr().out)
    assert main(["sample", str(run / "model"), *words]) == 0
    assert of_run["completions"] == json.loads(capsys.readouterr().out)["completions"]
    assert of_run["model"]["step"] == 4


def test_export(fails, run, tmp_path, capsys):
    assert main(["export", str(run), str(tmp_path / "last")]) == 0
    assert "wrote the model of step 4" in capsys.readouterr().out
    assert main(["export", str(run), str(tmp_path / "first"), "--step", "0"]) == 0
    capsys.readouterr()
    np.testing.assert_array_equal(logprobs(tmp_path / "last"), logprobs(run / "model"))
    assert np.abs(logprobs(tmp_path / "first") - logprobs(tmp_path / "last")).max() > 1e-3
    before = files(tmp_path / "last")
    assert str(tmp_path / "last") in fails(2, "export", run, tmp_path / "last")
    assert files(tmp_path / "last") == before
    assert "has no checkpoint of step 3" in fails(
        1, "export", run, tmp_path / "third", "--step", "3"
    )


def test_resume_with_more_steps(copy, config_file):
    before = rows(copy, "train"), files(copy / "rollouts")
    assert (
        main(["train", config_file, "--run-dir", str(copy), "--resume", "--training.steps", "6"])
        == 0
    )
    assert [row["step"] for row in rows(copy, "train")] == [1, 2, 3, 4, 5, 6]
    assert rows(copy, "train")[:4] == before[0]
    assert [row["step"] for row in rows(copy, "eval")] == [0, 2, 4, 6]
    assert [row["step"] for row in rows(copy, "warm_start")] == [1, 2, 3]
    reader = rollouts.read(copy / "rollouts")
    assert sorted(reader.index) == list(range(24)) and reader.datasets[-1].policy_version == 4
    after = files(copy / "rollouts")
    assert all(
        after[name] == content for name, content in before[1].items() if name != "manifest.jsonl"
    )
    assert after["manifest.jsonl"].startswith(before[1]["manifest.jsonl"])
    assert json.loads((copy / "model" / "grre_provenance.json").read_text())["step"] == 6
    assert np.abs(logprobs(copy / "model") - logprobs_of_step(copy, 0)).max() > 1e-3


def logprobs_of_step(folder, step):
    assert main(["export", str(folder), str(folder / f"step{step}"), "--step", str(step)]) == 0
    return logprobs(folder / f"step{step}")


def test_rollouts_of_the_run(run, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["rollouts", "info", str(run / "rollouts")]) == 0
    assert "arithmetic/train" in capsys.readouterr().out
    assert main(["rollouts", "show", str(run / "rollouts"), "--count", "1", "--start", "5"]) == 0
    printed = capsys.readouterr().out
    assert (
        "group 5" in printed and "position 5" in printed and "behavior, sampling, policy" in printed
    )
    assert main(["rollouts", "verify", str(run / "rollouts")]) == 0
    assert "2 data sets, 16 groups" in capsys.readouterr().out


def test_a_damaged_shard_is_named(copy, capsys, fails, config_file, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")
    name = damage(copy / "rollouts")
    assert main(["rollouts", "verify", str(copy / "rollouts")]) == 1
    printed = capsys.readouterr().out
    assert "damaged" in printed and name in printed
    sentence = fails(
        1, "train", config_file, "--run-dir", tmp_path / "new", "--data.path", copy / "rollouts"
    )
    assert name in sentence and not (tmp_path / "new").exists()
