"""The header of a run, and its checks before it begins."""

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
    ("fields", "refused"),
    [
        ({}, False),
        ({"decay": "linear", "decay_steps": 11}, False),
        ({"decay": "linear", "decay_steps": 10, "final_fraction": 0.1}, False),
        ({"decay": "cosine", "decay_steps": 10}, True),
    ],
)
@pytest.mark.parametrize("warm", [False, True])
def test_steps_beyond_the_decay_are_refused(fields, refused, warm):
    optimizer = OptimizerConfig(**fields)
    if warm:
        section = "warm_start"
        stages = {section: WarmStartConfig(steps=11, optimizer=optimizer)}
        prefix = f"{section}."
    else:
        section = "training"
        stages = {section: TrainingConfig(steps=11), "optimizer": optimizer}
        prefix = ""
    config = Config("x", **{"training": TrainingConfig(steps=0)} | stages)
    assert bool(preflight.spent_rate(config)) == refused
    if refused:
        words = rf"^{prefix}optimizer\.decay_steps: .* 11 of {section}\.steps.* got 10\."
        with pytest.raises(UsageError, match=words):
            preflight.check(SimpleNamespace(config=config, task=None), samples=False, contains=())
