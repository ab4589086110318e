"""The header of a run, and its checks before it begins."""

import dataclasses
from types import SimpleNamespace

import pytest

from grre_jax.config import Config, OptimizerConfig, TrainingConfig, WarmStartConfig
from grre_jax.errors import UsageError
from grre_jax.training import preflight


@pytest.mark.parametrize(
    ("fields", "steps", "refused"),
    [
        ({}, 11, False),
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
    assert bool(preflight.spent_rate(config)) == refused
    if refused:
        decay = "warm_start.optimizer.decay_steps" if warm else "optimizer.decay_steps"
        with pytest.raises(UsageError, match=decay):
            preflight.check(SimpleNamespace(config=config, task=None), samples=False, contains=())
