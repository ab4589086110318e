"""The header of a run, and its checks before it begins."""

import json

import pytest

from grre_jax.config import Config
from grre_jax.domains import ConfigError
from grre_jax.explain.objective_report import objective_report
from grre_jax.objectives import algorithm
from grre_jax.training import preflight
from grre_jax.training.config.overrides import override


def test_the_header_has_the_lines_of_explain(tiny_run, make_config):
    config = make_config(tiny_run)
    report = objective_report(config, algorithm(config.objective.name), None)
    header = json.loads((tiny_run / "provenance.json").read_text())["header"]
    assert report["left out"] and header["left out"].splitlines() == report["left out"]


@pytest.mark.parametrize("section, prefix", [("training", ""), ("warm_start", "warm_start.")])
def test_steps_beyond_the_decay_are_refused(section, prefix):
    def check(**fields):
        given = {"warmup_steps": 0, "decay_steps": 10} | fields
        words = [f"--{prefix}optimizer.{name}={value}" for name, value in given.items()]
        config = override(Config("x"), ["--training.steps=0", f"--{section}.steps=11", *words])
        preflight.check_decay(config)

    check(decay="none")
    check(decay="linear", decay_steps=11)
    check(decay="linear", final_fraction=0.1)
    with pytest.raises(ConfigError) as caught:
        check(decay="cosine")
    assert caught.value.field == f"{prefix}optimizer.decay_steps"
