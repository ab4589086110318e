"""The header of a run, and its checks before it begins."""

import dataclasses
import json
from types import SimpleNamespace

import pytest

from grre_jax.config import Config, OptimizerConfig, TrainingConfig, WarmStartConfig
from grre_jax.errors import UsageError
from grre_jax.explain.objective_report import objective_report
from grre_jax.objectives import algorithm
from grre_jax.training import preflight


def test_the_header_has_the_lines_of_explain(tiny_run, make_config):
    config = make_config(tiny_run)
    report = objective_report(config, algorithm(config.objective.name), None)
    header = json.loads((tiny_run / "provenance.json").read_text())["header"]
    assert report["left out"] and header["left out"].splitlines() == report["left out"]


@pytest.mark.parametrize(
    ("fields", "steps", "refused"),
    [
        ({}, 11, False),
        ({"decay": "linear", "decay_steps": 11}, 11, False),
        ({"decay": "linear", "decay_steps": 10, "final_fraction": 0.1}, 11, False),
        ({"decay": "cosine", "decay_steps": 10}, 11, True),
    ],
)
@pytest.mark.parametrize("warm", [False, True])
def test_steps_beyond_the_decay_are_refused(fields, steps, refused, warm):
    optimizer = OptimizerConfig(**fields)
    config = Config("x", training=TrainingConfig(steps=0), warm_start=WarmStartConfig(steps=0))
    if warm:
        stage = dataclasses.replace(config.warm_start, steps=steps, optimizer=optimizer)
        config = dataclasses.replace(config, warm_start=stage)
    else:
        training = dataclasses.replace(config.training, steps=steps)
        config = dataclasses.replace(config, training=training, optimizer=optimizer)
    section = "warm_start" if warm else "training"
    assert bool(preflight.spent_rate(config)) == refused
    if refused:
        decay = "warm_start.optimizer.decay_steps" if warm else "optimizer.decay_steps"
        with pytest.raises(UsageError, match=rf"^{decay}: .* 11 of {section}\.steps.* got 10\."):
            preflight.check(SimpleNamespace(config=config, task=None), samples=False, contains=())
