"""What an objective requires, and what cannot be stacked."""

import numpy as np
import pytest

from grre_jax import objectives


@pytest.mark.parametrize(
    "name, options, required",
    [
        ("grpo", {}, {"old_logprobs"}),
        ("reinforce", {"kl_coef": 0.1}, {"ref_logprobs"}),
        ("reinforce", {"kl_coef": 0.1, "kl_reference": "behavior"}, {"old_logprobs"}),
        ("reinforce", {"kl_coef": 0.0}, set()),
        ("reinforce", {"kl_coef": 0.0, "kl_estimator": "k1"}, {"ref_logprobs"}),
    ],
)
def test_requires(name, options, required):
    assert objectives.algorithm(name, **options).requires == required


def test_what_cannot_be_stacked_is_refused():
    asymre = objectives.algorithm("asymre")
    for several, message in (([objectives.algorithm("grpo"), asymre], "differ"), ([], "at least")):
        with pytest.raises(ValueError, match=message):
            objectives.stack(several)
    batch = objectives.padded_batch(
        advantages=np.zeros(1), mask=np.ones((1, 2)), groups=np.array([0])
    )
    with pytest.raises(ValueError, match="jax.vmap"):
        objectives.policy_loss(objectives.stack([asymre] * 2), np.zeros((1, 2)), batch)
