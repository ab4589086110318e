"""What data sets say of reward functions."""

import grre_jax
from grre_jax import tasks
from grre_jax.tasks.provenance import reward_name


class Own:
    name, reward_version = "own", "7"


def test_rewards_have_a_function_and_a_version():
    assert reward_name(Own()) == f"{Own.__module__}:Own.verify 7"
    name = reward_name(tasks.build("gsm8k"))
    assert name == f"grre_jax.tasks.gsm8k:GSM8K.verify {grre_jax.__version__}"
