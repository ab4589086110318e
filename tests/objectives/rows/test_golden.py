"""Losses and gradients of a public implementation (TRL 1.16.0) on one fixed batch, where the
file that holds them is at hand.
"""

import json
import os
from pathlib import Path

import numpy as np
import pytest

from grre_jax import objectives

from ..conftest import loss_and_gradient

pytestmark = pytest.mark.usefixtures("float64")

# case of the file: the same configuration here
CASES = {
    "grpo": ("grpo", {"aggregation": "response"}),
    "bnpo": ("grpo", {}),
    "dapo": ("dapo", {}),
    "dr_grpo": ("dr_grpo", {"constant_length": 10}),
    # TRL reads epsilon_high as an absolute cap in its cispo loss, so that its default 0.2, taken
    # literally, caps every weight at 0.2: clip_high=0.2 is the option that gives this. The cap that
    # its documentation recommends, 5, is the default here.
    "cispo_default": ("cispo", {"clip_high": 0.2}),
    "cispo_5": ("cispo", {}),
    "sapo": ("sapo", {}),
    "vespo": ("vespo", {}),
    "luspo": ("luspo", {"epsilon_low": 0.2, "epsilon_high": 0.2}),
    "gspo": ("gspo", {}),
    "two_sided": ("grpo_two_sided", {"delta": 1.5}),
    "opsm": ("opsm", {"opsm_delta": -0.05}),
}


@pytest.fixture(scope="module")
def golden():
    """The file named by GRRE_JAX_GOLDEN, or data/golden/trl.json in a folder beside the
    repository.
    """
    named = os.environ.get("GRRE_JAX_GOLDEN")
    repository = Path(__file__).resolve().parents[3]
    found = [Path(named)] if named else sorted(repository.parent.glob("*/data/golden/trl.json"))
    if not found:
        pytest.skip("no golden file: set GRRE_JAX_GOLDEN to a trl.json")
    contents = json.loads(found[0].read_text())
    assert contents["cases"].keys() == CASES.keys()
    return contents


@pytest.mark.parametrize("case", CASES)
def test_loss_and_gradient_match_trl(golden, case):
    name, options = CASES[case]
    inputs = {key: np.asarray(value, np.float64) for key, value in golden["inputs"].items()}
    loss, slope = loss_and_gradient(
        objectives.algorithm(name, **options),
        inputs["logp"],
        advantages=inputs["adv"],
        mask=inputs["mask"] > 0,
        groups=np.arange(8) // 4,
        old_logprobs=inputs["old"],
        dropped=np.zeros(8, bool),
    )
    expected = golden["cases"][case]
    np.testing.assert_allclose(loss, expected["loss"], atol=1e-6)
    np.testing.assert_allclose(slope, expected["grad"], atol=1e-6)
