"""An objective is data: numbers are leaves, structure is static."""

import jax
import numpy as np
import pytest

from grre_jax import objectives


@pytest.mark.parametrize(
    ("name", "options", "required"),
    [
        ("reinforce", {}, set()),
        ("grpo", {}, {"old_logprobs"}),
        ("opmd", {}, {"old_logprobs"}),
        ("reinforce", {"kl_coef": 0.1}, {"ref_logprobs"}),
        ("reinforce", {"kl_coef": 0.1, "kl_reference": "behavior"}, {"old_logprobs"}),
        ("reinforce", {"kl_coef": 0.0}, set()),
        ("reinforce", {"kl_coef": 0.0, "kl_estimator": "k1"}, {"ref_logprobs"}),
    ],
)
def test_requires(name, options, required):
    assert objectives.algorithm(name, **options).requires == required


def test_numbers_share_a_compilation():
    traces = []

    @jax.jit
    def count(objective):
        traces.append(objective.name)
        return objective.hyperparameters["epsilon_high"]

    assert count(objectives.algorithm("rec_oneside_nois")) == np.float32(0.2)
    assert count(objectives.algorithm("rec_oneside_nois", epsilon_low=0.6, epsilon_high=2.0)) == 2
    assert len(traces) == 1
    assert count(objectives.algorithm("rec_twoside_nois")) == np.float32(0.2)
    assert len(traces) == 2


def test_a_stack_is_swept_by_vmap():
    settings = [
        objectives.algorithm("grpo", epsilon_low=low, epsilon_high=high)
        for low, high in ((0.2, 0.2), (0.6, 2.0), (0.0, 0.0))
    ]
    generator = np.random.default_rng(0)
    logprobs, old = (generator.normal(-2, 1, (4, 3)).astype(np.float32) for _ in range(2))
    rewards, groups = np.array([0.0, 1.0, 0.0, 1.0]), np.array([0, 0, 1, 1])

    def loss(objective):
        advantages = objectives.advantages(objective, rewards, groups)
        batch = objectives.padded_batch(
            advantages=advantages, mask=np.ones((4, 3)), groups=groups, old_logprobs=old
        )
        return objectives.policy_loss(objective, logprobs, batch)

    losses, metrics = jax.jit(jax.vmap(loss))(objectives.stack(settings))
    single = jax.jit(loss)
    for index, objective in enumerate(settings):
        expected, expected_metrics = single(objective)
        np.testing.assert_allclose(losses[index], expected, rtol=1e-5)
        np.testing.assert_allclose(
            metrics["clip_fraction"][index], expected_metrics["clip_fraction"], rtol=1e-6
        )
    assert len(set(metrics["clip_fraction"].tolist())) == 3


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
