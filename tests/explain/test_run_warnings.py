"""Settings that contradict each other are named, and those that make sense are not."""

import pytest

from grre_jax.config import Config, DataConfig, SamplingConfig, TrainingConfig
from grre_jax.explain.run_warnings import run_warnings
from grre_jax.objectives import algorithm
from grre_jax.training.data.regime import Regime

STALE = {"regime": Regime(sync_interval=4)}


def warnings(objective, first_stale, fields):
    return run_warnings(Config("x", **fields), algorithm(objective), first_stale)


@pytest.mark.parametrize(
    ("objective", "first_stale", "fields", "name"),
    [
        ("grpo", None, {}, "grpo"),
        ("reinforce", 1, STALE, "reinforce"),
        ("grpo", 1, {"regime": Regime(sync_interval=200)}, "regime"),
        ("grpo", None, {**STALE, "data": DataConfig(path="p")}, "regime"),
        ("grpo", 1, {**STALE, "data": DataConfig(prefer="reward")}, "data.prefer"),
        ("grpo", 1, {**STALE, "data": DataConfig(max_uses=1)}, "data.max_uses"),
        ("asymre", None, {"data": DataConfig(path="p")}, "data.drop_zero_variance"),
        ("chord", None, {"data": DataConfig(mix="p=0.5")}, "chord"),
        ("grpo", None, {"data": DataConfig(mix="p=0.5:expert")}, "grpo"),
        ("grpo", 1, {**STALE, "sampling": SamplingConfig(group_size=1)}, "sampling.group_size"),
    ],
)
def test_what_contradicts_itself_is_named(objective, first_stale, fields, name):
    assert any(
        line.startswith(name) or name in line for line in warnings(objective, first_stale, fields)
    )


@pytest.mark.parametrize(
    ("objective", "first_stale", "fields"),
    [
        ("reinforce", None, {}),
        ("grpo", 1, STALE),
        ("asymre", 1, {"regime": Regime(sync_offset=10)}),
        ("grpo", 1, {"regime": Regime(offline=True)}),
        ("grpo", 1, {"regime": Regime(reuse=4, replay_ratio=0.25)}),
        ("reinforce", None, {"training": TrainingConfig(steps=1)}),
    ],
)
def test_what_makes_sense_has_no_warning(objective, first_stale, fields):
    assert warnings(objective, first_stale, fields) == []
