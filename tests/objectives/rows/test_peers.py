"""Losses, gradients and advantages of verl 0.9.1, Trinity-RFT 0.6.0 and public code of 2026, made
by their own functions on one fixed batch in float64.

golden/verl.json and golden/trinity.json hold the batch (8 responses of at most 10 tokens, 2 groups
of 4), which is recent.json's too. Each case has its options as the peer names them, `here` the
algorithm and its options that are the same thing, the loss, and the gradient with respect to the
log-probs (rows cut at the end of the response). `batch` is what the peer puts into the loss where
it is data here; with `of_rewards` advantages are of the batch's rewards; where `gradient_only`, the
peer's value is another. A case without `here` is another loss, on purpose, or has no name:
docs/objectives-mapping.md explains them row by row.
"""

import json
from pathlib import Path

import numpy as np
import pytest

from grre_jax import objectives

from ..conftest import loss_and_gradient

pytestmark = [pytest.mark.usefixtures("float64"), pytest.mark.parity]
FOLDER = Path(__file__).parents[1] / "golden"
GOLDEN = {
    name: json.loads((FOLDER / f"{name}.json").read_text())
    for name in ("verl", "trinity", "recent")
}
INPUTS = {name: np.array(values) for name, values in GOLDEN["trinity"]["inputs"].items()}
LENGTHS = INPUTS["mask"].sum(1)


def same_here(kind):
    return [
        pytest.param(case, id=f"{peer}-{name}")
        for peer, found in GOLDEN.items()
        for name, case in found[kind].items()
        if "here" in case
    ]


@pytest.mark.parametrize("case", same_here("cases"))
def test_loss_and_gradient_match_the_peer(case):
    name, options = case["here"]
    objective = objectives.algorithm(name, **options)
    given = {
        "advantages": INPUTS["advantages"],
        "mask": INPUTS["mask"] > 0,
        "groups": INPUTS["groups"],
        "old_logprobs": INPUTS["old"],
        "prox_logprobs": INPUTS["proximal"],
        "ref_logprobs": INPUTS["reference"],
        "expert": INPUTS["expert"] > 0 if name == "chord" else None,
        "dropped": np.zeros(8, bool),
    }
    if "of_rewards" in case:
        given["advantages"] = objectives.advantages(objective, INPUTS["rewards"], INPUTS["groups"])
    given |= {field: np.array(values) for field, values in case.get("batch", {}).items()}
    loss, slope = loss_and_gradient(objective, INPUTS["logprobs"], **given)
    time = INPUTS["mask"].shape[1]
    expected = [row + [0.0] * (time - len(row)) for row in case["grad"]]
    np.testing.assert_allclose(slope, expected, rtol=0, atol=1e-6)
    if "gradient_only" not in case:
        np.testing.assert_allclose(loss, case["loss"], rtol=0, atol=1e-6)


@pytest.mark.parametrize("case", same_here("advantages"))
def test_advantages_match_the_peer(case):
    name, options = case["here"]
    if "components" in case:
        options = options | {"components": case["components"]}
    components = {name: np.array(values) for name, values in GOLDEN["recent"]["components"].items()}
    advantages = objectives.advantages(
        objectives.algorithm(name, **options),
        INPUTS["rewards"],
        INPUTS["groups"],
        lengths=LENGTHS,
        components=components,
    )
    # Trinity-RFT and GDPO's verl compute advantages in float32 whatever the rewards are.
    np.testing.assert_allclose(advantages, case["advantages"], rtol=0, atol=1e-6)
