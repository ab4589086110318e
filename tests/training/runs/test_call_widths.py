"""A run's samples do not depend on how wide its calls of the sampler are."""

import shutil

import numpy as np
import pytest

from grre_jax import rollouts
from grre_jax.config import (
    CheckpointConfig,
    EvaluationConfig,
    Regime,
    SamplingConfig,
    TrainingConfig,
    WarmStartConfig,
)
from grre_jax.reporting import read_metrics
from grre_jax.training import loop

pytestmark = pytest.mark.usefixtures("no_reports")


@pytest.mark.slow
def test_a_run_in_wide_calls_is_that_in_narrow_ones(make_config, tmp_path):
    """Draws are addressed: tokens and rewards are equal. Products of other numbers of rows round
    otherwise, so log-probs and losses are equal up to that. A resumed run makes the same calls.
    """

    def made(name, **calls):
        return make_config(
            tmp_path / name,
            regime=Regime(sync_interval=4),
            sampling=SamplingConfig(group_size=4, max_prompt_tokens=4, max_new_tokens=3, **calls),
            training=TrainingConfig(steps=4, prompts_per_step=4),
            warm_start=WarmStartConfig(steps=0),
            evaluation=EvaluationConfig(questions=0),
            checkpoint=CheckpointConfig(every=1, keep=10),
        )

    loop.train(made("wide"))
    loop.train(made("narrow", prompts_per_call=4))
    wide, narrow = (rollouts.read(tmp_path / name / "rollouts") for name in ("wide", "narrow"))
    assert len(wide) == len(narrow) == 16
    for position in range(16):
        one, other = (reader.at(position, 0) for reader in (wide, narrow))
        np.testing.assert_array_equal(one.tokens, other.tokens)
        np.testing.assert_array_equal(one.rewards, other.rewards)
        np.testing.assert_allclose(one.behavior_logprobs, other.behavior_logprobs, atol=2e-5)

    def losses(name):
        return [row["loss"] for row in read_metrics(tmp_path / name)["train"]]

    whole = losses("wide")
    np.testing.assert_allclose(whole, losses("narrow"), rtol=1e-3, atol=1e-6)

    # ---- resumed within the interval, or between two
    for step in (3, 4):
        shutil.rmtree(tmp_path / "wide" / "checkpoints" / str(step))
    loop.train(made("wide"), resume=True)
    assert losses("wide") == whole
