"""Losses and gradients of a public implementation (TRL 1.16.0) on one fixed batch, where the file that holds them is at hand."""

import json
import os
from pathlib import Path

import jax
import numpy as np
import pytest

from grre_jax import objectives

# case of the file: the same configuration here
CASES = {
    "grpo": ("grpo", {"aggregation": "response"}),
    "bnpo": ("grpo", {}),
    "dapo": ("grpo", {"epsilon_high": 0.28}),
    "dr_grpo": ("grpo", {"aggregation": "constant", "constant_length": 10}),
}


@pytest.fixture(scope="module")
def golden():
    """The file named by GRRE_JAX_GOLDEN, or data/golden/trl.json in a folder beside the repository."""
    named = os.environ.get("GRRE_JAX_GOLDEN")
    repository = Path(__file__).resolve().parents[2]
    found = [Path(named)] if named else sorted(repository.parent.glob("*/data/golden/trl.json"))
    if not found:
        pytest.skip("no golden file: set GRRE_JAX_GOLDEN to a trl.json")
    return json.loads(found[0].read_text())


@pytest.mark.parametrize("case", CASES)
def test_loss_and_gradient_match_trl(golden, case):
    name, options = CASES[case]
    inputs = {key: np.asarray(value, np.float32) for key, value in golden["inputs"].items()}
    objective = objectives.algorithm(name, **options)
    batch = objectives.padded_batch(advantages=inputs["adv"], mask=inputs["mask"], groups=np.arange(8) // 4, old_logprobs=inputs["old"])
    loss, slope = jax.jit(jax.value_and_grad(lambda logprobs: objectives.policy_loss(objective, logprobs, batch)[0]))(inputs["logp"])
    expected = golden["cases"][case]
    np.testing.assert_allclose(loss, expected["loss"], atol=1e-6)
    np.testing.assert_allclose(slope, expected["grad"], atol=1e-6)
