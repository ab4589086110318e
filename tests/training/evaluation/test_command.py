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
    words = "--evaluation.questions 12 --evaluation.num-samples 4".split()
    found = evaluated(model, *words, "--sampling.max-new-tokens", "3")
    copy = shutil.copytree(tiny_run, tmp_path / "copy")  # the result is written there
    figures = command.evaluate_run(copy, words)["first"]
    del figures["kl_to_start"]
    assert found["policy"] == figures and found["questions"] == 12
    assert found["task"] == "arithmetic" and found["model"] == str(model) and json.dumps(found)
    settings = found["sampling"]
    assert settings["num_samples"] == 4 and settings["max_new_tokens"] == 3


def test_greedy_answers_agree(model):
    """And the prompts' limit fits the questions: 4 tokens here, where the configuration says 2."""
    words = "--evaluation.questions 12 --evaluation.num-samples 4 --evaluation.temperature 0"
    words += " --sampling.max-new-tokens 3 --sampling.max-prompt-tokens 2"
    found = evaluated(model, *words.split())
    policy = found["policy"]
    estimates = [*policy["pass_at_k"].values(), *policy["maj_at_k"].values()]
    values = [estimate["value"] for estimate in estimates]
    assert values == pytest.approx([policy["accuracy"]] * 6) and len(set(values)) == 1


@pytest.mark.parametrize(
    ("words", "field"),
    [
        ("--training.steps 3", "training.steps"),
        ("--evaluation.questions 0", "evaluation.questions"),
        ("--evaluation.max-new-tokens 3000", "2048"),
        ("--model.dtype int8", "model.dtype"),
        ("", "arithmetic/held-out"),  # it trained on the questions
    ],
)
def test_wrong_requests(model, tmp_path, words, field):
    folder = shutil.copytree(model, tmp_path / "model")
    if not words:
        (folder / "grre_provenance.json").write_text('{"contains": ["arithmetic/held-out"]}')
    with pytest.raises(UsageError, match=field):
        evaluated(folder, *words.split())


def test_a_run_and_a_model_are_told_apart(model, tiny_run, tmp_path):
    assert policies.is_run(tiny_run) and not policies.is_run(model)
    for path in (tmp_path, model / "model.safetensors"):
        with pytest.raises(DataError, match=str(path)):
            policies.is_run(path)
    (tmp_path / "config.json").write_text("{")
    assert not policies.is_run(tmp_path)
    (tmp_path / "checkpoints").mkdir()
    assert policies.is_run(tmp_path)
