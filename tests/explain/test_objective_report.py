"""What is reported of an objective agrees with what the objective does."""

import dataclasses

import pytest

from grre_jax import objectives
from grre_jax.config import Config, DataConfig
from grre_jax.explain import objective_report
from grre_jax.training.data.plan import Regime

from ..objectives.all_objectives import REQUIRED

ALL = [objectives.algorithm(name, **REQUIRED.get(name, {})) for name in objectives.algorithms()]
CONFIG = Config("x", regime=Regime(sync_interval=4))
WITHOUT_RATIO = {"reinforce", "asymre", "red_drop", "red_weight", "rloo", "raft", "dpo", "opmd"}
CLIPPED = {"rec_oneside_nois", "rec_ring_is", "grpo", "gspo", "cispo", "topr", "m2po", "sapo"}


@pytest.mark.parametrize("objective", ALL, ids=lambda objective: objective.name)
def test_the_report_of_every_objective(objective):
    report = objective_report(CONFIG, objective, 1)
    found = {line.partition(":")[0] for line in report["sources"].splitlines()}
    assert found == set(objective.requires)
    if objective.name in WITHOUT_RATIO:
        assert not report["ratio"] and not report["clipping"]
    if objective.name in CLIPPED:
        assert "can act from step 1 on" in report["clipping"]


def test_clipping_acts_on_stale_data_alone():
    stored = dataclasses.replace(CONFIG, data=DataConfig(path="p"))
    for config, name, first_stale, said in (
        (Config("x"), "grpo", None, "cannot act"),
        (CONFIG, "grpo", 0, "from the first step on"),
        (stored, "grpo", None, "from the first step on"),
        (CONFIG, "tis", 1, "never acts"),
        # Its ratio is to the expectation of a group, which is no single completion's probability.
        (Config("x"), "gepo", None, "from the first step on"),
    ):
        report = objective_report(config, objectives.algorithm(name), first_stale)
        assert said in report["clipping"]


def test_what_is_left_out():
    def left_out(name, **data):
        config = dataclasses.replace(CONFIG, data=DataConfig(**data))
        objective = objectives.algorithm(name)
        return objective_report(config, objective, 1)["left out"]

    assert left_out("reinforce") == left_out("asymre", path="p", drop_zero_variance=False) == ""
    assert "drop_zero_variance" in left_out("chord", mix="p=0.5")
