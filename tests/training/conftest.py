"""What the learner's tests share: a tiny configuration, groups of tokens, and a whole small run."""

import dataclasses

import numpy as np
import pytest

from grre_jax.config import (
    CheckpointConfig,
    Config,
    EvaluationConfig,
    LoggingConfig,
    ModelSource,
    ObjectiveConfig,
    SamplingConfig,
    TaskConfig,
    TrainingConfig,
    WarmStartConfig,
)
from grre_jax.rollouts import Group
from grre_jax.training.regime import Regime
from grre_jax.training.state import OptimizerConfig


@pytest.fixture(scope="session")
def make_config():
    """`make_config(folder, **fields)`: a run of seconds that passes through every part of the road."""

    def make(folder, **fields):
        config = Config(
            name="tiny",
            run_dir=str(folder),
            model=ModelSource(hidden_size=16, intermediate_size=32, num_layers=2, num_heads=2, num_kv_heads=1, head_dim=8),
            task=TaskConfig("arithmetic", {"operands": 2}),
            objective=ObjectiveConfig("rec_oneside_nois", {"epsilon_low": 0.6, "epsilon_high": 2.0}),
            regime=Regime(sync_interval=3),
            sampling=SamplingConfig(num_samples=4, max_prompt_tokens=4, max_new_tokens=3, prompts_per_call=12),
            training=TrainingConfig(steps=8, groups_per_step=4),
            optimizer=OptimizerConfig(learning_rate=1e-2),
            warm_start=WarmStartConfig(steps=6, demonstrations=32, batch_size=16, optimizer=OptimizerConfig(learning_rate=3e-2)),
            evaluation=EvaluationConfig(every=4, questions=16),
            checkpoint=CheckpointConfig(every=4),
            logging=LoggingConfig(tensorboard=False),
        )
        return dataclasses.replace(config, **fields)

    return make


@pytest.fixture(scope="session")
def make_group():
    """`make_group(number, prompt=.., lengths=..)`: a group of random tokens of a vocabulary of 16."""

    def make(number, prompt=3, lengths=(2, 4, 1), **fields):
        draw = np.random.default_rng(number)
        total = sum(lengths)
        values = dict(
            group_id=f"g{number}",
            prompt="?",
            texts=[""] * len(lengths),
            rewards=draw.integers(0, 2, len(lengths)),
            prompt_tokens=draw.integers(0, 16, prompt),
            lengths=lengths,
            tokens=draw.integers(0, 16, total),
            behavior_logprobs=-draw.exponential(size=total),
        )
        return Group(**values | fields)

    return make
