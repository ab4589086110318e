"""The header of a run, and its checks before it begins."""

import json
from types import SimpleNamespace

import pytest

from grre_jax.config import Config
from grre_jax.errors import UsageError
from grre_jax.explain.objective_report import objective_report
from grre_jax.objectives import algorithm
from grre_jax.training import preflight
from grre_jax.training.config.overrides import override


def test_the_header_has_the_lines_of_explain(tiny_run, make_config):
    config = make_config(tiny_run)
    report = objective_report(config, algorithm(config.objective.name), None)
    header = json.loads((tiny_run / "provenance.json").read_text())["header"]
    assert report["left out"] and header["left out"].splitlines() == report["left out"]


@pytest.mark.parametrize(
    ("fields", "refused"),
    [
        ("decay none", False),
        ("decay linear decay_steps 11", False),
        ("decay linear decay_steps 10 final_fraction 0.1", False),
        ("decay cosine decay_steps 10", True),
    ],
)
@pytest.mark.parametrize("section", ["training", "warm_start"])
def test_steps_beyond_the_decay_are_refused(fields, refused, section):
    prefix = "warm_start.optimizer" if section == "warm_start" else "optimizer"
    names = fields.split()
    words = ["--training.steps=0", f"--{section}.steps=11", f"--{prefix}.warmup_steps=0"]
    words += [
        f"--{prefix}.{name}={value}" for name, value in zip(names[::2], names[1::2], strict=True)
    ]
    config = override(Config("x"), words)
    if not refused:
        preflight.check_decay(config)
        return
    message = rf"^{prefix}\.decay_steps: .* 11 of {section}\.steps.* got 10"
    with pytest.raises(UsageError, match=message):
        preflight.check(SimpleNamespace(config=config, task=None), contains=())
