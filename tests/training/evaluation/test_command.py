"""A model evaluated without its run gives what the run's evaluation gives."""

import shutil

import pytest

from grre_jax.errors import UsageError
from grre_jax.training import evaluation, policies

TASK = ["--task.name", "arithmetic", "--task.options.operands", "2"]


@pytest.fixture(scope="module")
def model(tiny_run, tmp_path_factory):
    folder = tmp_path_factory.mktemp("exported") / "tiny"
    policies.export(tiny_run, folder, 0)
    return folder


def evaluated(model, *words):
    words = [*TASK, "--sampling.prompts-per-call", "4", *words]
    return evaluation.evaluate_model(model, words)


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
        ("--sampling.temperature 0.5", "sampling.temperature"),  # evaluation has its own
        ("--evaluation.max-new-tokens 3000", "evaluation.max_new_tokens"),
        ("", "arithmetic/held-out"),  # it trained on the questions
    ],
)
def test_wrong_requests(model, tmp_path, words, field):
    folder = shutil.copytree(model, tmp_path / "model")
    if not words:
        (folder / "grre_provenance.json").write_text('{"contains": ["arithmetic/held-out"]}')
    with pytest.raises(UsageError, match=field):
        evaluated(folder, *words.split())
