"""From fields to parts."""

import dataclasses
import json

import numpy as np
import pytest

from grre_jax.errors import DataError, UsageError
from grre_jax.training import build

TASK = """
from grre_jax.tasks import Question, Verdict
class Mine:
    name = "mine"
    def question(self, position): return Question(f"q{position}", "1+1>", "2")
    def evaluation(self, count): return []
    def verify(self, question, completion): return Verdict(0.0)
def build(): return Mine()
"""


def test_build(make_config, tmp_path):
    config = make_config(tmp_path / "run")
    parts = build.build(config)
    provenance = json.loads(json.dumps(parts.provenance()))
    assert provenance["tokenizer"] == parts.task.tokenizer.fingerprint
    assert provenance["contains"] == ["arithmetic/train"] and provenance["model"] == "new"
    assert not config.folder.exists()
    # The weights are a function of the seed.
    for seed, equal in ((config.seed, True), (config.seed + 1, False)):
        model = build.build_model(dataclasses.replace(config, seed=seed), parts.tokenizer)
        assert np.array_equal(model.embed[...], parts.model.embed[...]) == equal


@pytest.mark.parametrize(
    "words, field",
    [
        ("--sampling.temperature 0", "sampling.temperature"),
        ("--mesh.data 1 --mesh.fsdp 64", "devices"),
        ("--training.pack_length 2", "pack_length"),
        ("--model.template_arguments.thinking false", "model.template_arguments"),
        ("--training.replay_routes true", "training.replay_routes"),  # of a dense model
        ("--model.num_experts 2 --training.replay_routes true", "sampling.record_routes"),
        ("--task.name mine.py:build", "model.path"),  # a task without a tokenizer
    ],
)
def test_what_cannot_be_built_is_named(make_config, tmp_path, monkeypatch, words, field):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(TASK)
    with pytest.raises(UsageError, match=field):
        build.build(make_config(tmp_path / "run", words))
    assert not (tmp_path / "run").exists()


def test_what_a_model_was_trained_on_is_read_from_its_folder(make_config, tmp_path):
    config = make_config(tmp_path / "run", f"--model.path {tmp_path}")
    assert build.model_contents(config) == set()
    file = tmp_path / "grre_provenance.json"
    file.write_text(json.dumps({"run": "a", "step": 3, "contains": ["gsm8k/test", "gsm8k/train"]}))
    assert build.model_contents(config) == {"gsm8k/test", "gsm8k/train"}
    for wrong in ("{", "{}"):
        file.write_text(wrong)
        with pytest.raises(DataError, match=r"grre_provenance\.json"):
            build.model_contents(config)
