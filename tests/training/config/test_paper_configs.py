"""The paper's four settings; test_frozen_numbers.py trains each for two steps."""

from pathlib import Path

import pytest

from grre_jax import config as configs
from grre_jax.models.published import published
from grre_jax.training.data.regime import Regime

FOLDER = Path(__file__).parents[3] / "configs" / "paper"
NAMES = ["gsm8k_qwen2_5_1_5b", "guru_math_qwen2_5_7b", "math_llama3_1_8b", "toolace_llama3_2_3b"]


@pytest.mark.parametrize("name", NAMES)
def test_what_a_config_says(name):
    config = configs.load_file(FOLDER / f"{name}.py")
    assert config.name == name and config.regime == Regime() and config.sampling.group_size == 8
    sampling = config.sampling
    optimizer = config.optimizer
    assert (sampling.temperature, sampling.max_new_tokens) == (1.0, 1024)
    assert (optimizer.name, optimizer.learning_rate, optimizer.clip_norm) == ("adamw", 1e-6, 1.0)
    assert config.training.prompts_per_step == 96 and optimizer.weight_decay == 0
    published(config.model.shape)
