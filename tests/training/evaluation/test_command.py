"""A model evaluated without its run gives what the run's evaluation gives."""

import json
import shutil

import pytest

from grre_jax.errors import DataError, UsageError
from grre_jax.training import policies
from grre_jax.training.evaluation import command

TASK = ["--task.name", "arithmetic", "--task.options.operands", "2"]


@pytest.fixture(scope="module")
def model(tiny_run, tmp_path_factory):
    folder = tmp_path_factory.mktemp("exported") / "tiny"
    policies.export(tiny_run, folder, 0)
    return folder


def evaluated(model, *words):
    words = [*TASK, "--sampling.prompts-per-call", "4", *words]
    return command.evaluate_model(model, words)


@pytest.mark.slow
def test_the_figures_are_those_of_the_run(model, tiny_run, tmp_path):
    """The first policy of the run: a model is evaluated at step 0, which is part of the address
    of its draws.
    """
    words = (
        "--evaluation.questions 12 --evaluation.num-samples 4 --sampling.max-new-tokens 3".split()
    )
    found = evaluated(model, *words)
    copy = shutil.copytree(tiny_run, tmp_path / "copy")  # the result is written there
    of_run = command.evaluate_run(copy, words[:4])["first"]
    assert found["policy"] == {
        name: value for name, value in of_run.items() if name != "kl_to_start"
    }
    assert (
        found["questions"] == 12
        and found["task"] == "arithmetic"
        and found["model"] == str(model)
        and json.dumps(found)
    )
    assert found["sampling"] == {
        "num_samples": 4,
        "temperature": 1.0,
        "top_k": 0,
        "top_p": 1.0,
        "min_p": 0.0,
        "max_new_tokens": 3,
        "stop": [],
    }


def test_greedy_answers_agree(model):
    """And the prompts' limit fits the questions: 4 tokens here, where the configuration says 2."""
    words = "--evaluation.questions 12 --evaluation.num-samples 4 --evaluation.temperature 0"
    words += " --sampling.max-new-tokens 3 --sampling.max-prompt-tokens 2"
    found = evaluated(model, *words.split())
    values = [
        estimate["value"]
        for name in ("pass_at_k", "maj_at_k")
        for estimate in found["policy"][name].values()
    ]
    assert (
        len(values) == 6
        and len(set(values)) == 1
        and values[0] == pytest.approx(found["policy"]["accuracy"])
    )


@pytest.mark.parametrize(
    ("words", "field"),
    [
        (["--training.steps", "3"], "training.steps"),
        (["--evaluation.questions", "0"], "evaluation.questions"),
        (["--evaluation.max-new-tokens", "3000"], "2048"),
        (["--model.dtype", "int8"], "model.dtype"),
    ],
)
def test_wrong_requests(model, words, field):
    with pytest.raises(UsageError, match=field):
        evaluated(model, *words)


def test_a_model_that_trained_on_the_questions_is_refused(model, tmp_path):
    for file in model.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "grre_provenance.json").write_text(
        json.dumps({"contains": ["arithmetic/held-out"]})
    )
    with pytest.raises(UsageError, match="arithmetic/held-out"):
        evaluated(tmp_path)


def test_a_run_and_a_model_are_told_apart(model, tiny_run, tmp_path):
    assert policies.is_run(tiny_run) and not policies.is_run(model)
    for path in (tmp_path, model / "model.safetensors"):
        with pytest.raises(DataError, match=str(path)):
            policies.is_run(path)
    (tmp_path / "config.json").write_text("{")
    assert not policies.is_run(tmp_path)
    (tmp_path / "checkpoints").mkdir()
    assert policies.is_run(tmp_path)
