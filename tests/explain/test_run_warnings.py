"""Settings that contradict each other are named, and those that make sense are not."""

import pytest

from grre_jax.config import Config, DataConfig, SamplingConfig, TrainingConfig
from grre_jax.explain.objective_report import run_warnings
from grre_jax.objectives import algorithm
from grre_jax.training.data.plan import Regime

STALE = {"regime": Regime(sync_interval=4)}


STORED = DataConfig(path="p")


@pytest.mark.parametrize(
    ("objective", "first_stale", "fields", "name"),
    [
        ("grpo", None, {}, "grpo"),
        ("reinforce", 1, STALE, "reinforce"),
        ("grpo", 1, {"regime": Regime(sync_interval=200)}, "regime"),
        ("grpo", None, {**STALE, "data": STORED}, "regime"),
        ("asymre", None, {"data": STORED}, "data.drop_zero_variance"),
        ("chord", None, {"data": DataConfig(mix="p=0.5")}, "chord"),
        ("grpo", None, {"data": DataConfig(mix="p=0.5:expert")}, "grpo"),
        ("grpo", 1, {**STALE, "sampling": SamplingConfig(group_size=1)}, "sampling.group_size"),
        # What makes sense has no warning.
        ("reinforce", None, {}, None),
        ("grpo", 1, STALE, None),
        ("asymre", 1, {"regime": Regime(sync_offset=10)}, None),
        ("grpo", 1, {"regime": Regime(offline=True)}, None),
        ("grpo", 1, {"regime": Regime(reuse=4, replay_ratio=0.25)}, None),
        ("reinforce", None, {"training": TrainingConfig(steps=1)}, None),
    ],
)
def test_what_contradicts_itself_is_named(objective, first_stale, fields, name):
    found = run_warnings(Config("x", **fields), algorithm(objective), first_stale)
    assert any(name in line for line in found) if name else found == []
