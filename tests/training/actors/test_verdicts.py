"""Whole runs of a task whose rewards are -1 and 1: what of a verdict is logged, and as what."""

import io

import numpy as np
import pytest
from rich.console import Console

from grre_jax import rollouts
from grre_jax.training import loop
from grre_jax.training.config.run import (
    TaskConfig,
    TrainingConfig,
)

from ...run_processes import log

SHAPED = """
from grre_jax.tasks import Verdict
from grre_jax.tasks.datasets.arithmetic import Arithmetic


class Shaped:
    name, trusted_verifier = "shaped", True

    def __init__(self, says):
        self._inner, self._says = Arithmetic(operands=2), says
        self.tokenizer, self.question, self.evaluation = self._inner.tokenizer, self._inner.question, self._inner.evaluation

    def verify(self, question, completion):
        right = self._inner.verify(question, completion).correct
        return Verdict(1.0 if right else -1.0, {"ends": float(completion.endswith("$"))}, right if self._says else None)


def build(says=True):
    return Shaped(says)
"""


pytestmark = pytest.mark.usefixtures("no_reports")


@pytest.fixture(scope="module", params=[True, False])
def shaped_run(request, make_config, tmp_path_factory):
    """A run whose rewards are -1 and 1, of a task that says what is correct or does not."""
    folder = tmp_path_factory.mktemp("shaped")
    (folder / "shaped.py").write_text(SHAPED)
    config = make_config(
        folder / "run",
        task=TaskConfig(f"{folder / 'shaped.py'}:build", {"says": request.param}),
        training=TrainingConfig(steps=4, prompts_per_step=4),
    )
    return request.param, loop.train(config, console=Console(file=io.StringIO()))


@pytest.mark.slow
def test_reward_correctness_and_components_are_three_things(shaped_run):
    says, run = shaped_run
    rows, groups = log(run), list(rollouts.read(run / "rollouts"))
    assert all(("accuracy" in row) is says for row in rows if row["kind"] in ("train", "eval"))
    for row in (row for row in rows if row["kind"] == "train"):
        trained = groups[4 * (row["step"] - 1) : 4 * row["step"]]
        assert row["component_ends"] == pytest.approx(
            np.mean([g.components["ends"] for g in trained])
        )
        if says:
            assert (
                row["accuracy"]
                == pytest.approx(np.mean([g.correct for g in trained]))
                == pytest.approx((row["reward"] + 1) / 2)
            )
    for row in (row for row in rows if row["kind"] == "eval"):
        assert (
            row["reward_low"] < row["reward"] < row["reward_high"]
            and 0 <= row["component_ends"] <= 1
        )
        assert "component_correct" not in row and (
            not says or row["reward"] == pytest.approx(2 * row["accuracy"] - 1)
        )
    assert all(("correct" in group.components) is says for group in groups)
