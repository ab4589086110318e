"""A user's own loss gets what the built-in ones get, and is refused with a reason where it
cannot be one.
"""

import jax.numpy as jnp
import numpy as np
import pytest

from grre_jax import objectives

from .conftest import assert_close

pytestmark = pytest.mark.usefixtures("float64")


def clipped(x, *, low=0.2, high=0.2):
    """PPO's objective, left to automatic differentiation."""
    ratio = jnp.exp(x.log_ratio)
    return -jnp.minimum(ratio * x.advantages, jnp.clip(ratio, 1 - low, 1 + high) * x.advantages)


def sequence(x):
    """GSPO's ratio, differentiated through the whole response."""
    return -jnp.exp(x.mean_over_response(x.log_ratio)) * x.advantages


def needy(x, *, weight):
    return -weight * x.ref_logprobs * x.logprobs * x.staleness


def test_it_is_the_built_in_loss_that_it_states(gradient, example):
    """Under a correction its ratio is to the proximal policy."""
    options = {"filter": "opsm", "correction": "tis", "kl_coef": 0.2, "kl_reference": "behavior"}
    own = objectives.algorithm(clipped, high=0.5, advantage="group_std", **options)
    built_in = objectives.algorithm("grpo", epsilon_high=0.5, **options)
    assert own.requires == built_in.requires
    slope, metrics = gradient.both(own, example)
    expected, expected_metrics = gradient.both(built_in, example)
    assert_close(slope, expected, 1e-12)
    for name in ("loss", "penalty", "filtered_fraction", "ratio_max"):
        assert_close(metrics[name], expected_metrics[name], 1e-12)


def test_the_gradient_of_whole_responses_is_that_of_the_value_under_a_correction_of_tokens(
    gradient, example
):
    own = objectives.algorithm(sequence, correction="tis", correction_cap=1.4)
    slope, _ = gradient.both(own, example)
    direction = np.random.default_rng(3).normal(size=slope.shape)
    losses = [
        gradient.both(own, example.replace(logprobs=example.logprobs + step * direction))[1]["loss"]
        for step in (1e-6, -1e-6)
    ]
    difference = (losses[0] - losses[1]) / 2e-6
    assert np.sum(slope * direction) == pytest.approx(difference, rel=1e-6)


def test_what_it_reads_is_what_it_requires():
    assert objectives.algorithm(needy, weight=1.0).requires == {"ref_logprobs", "staleness"}


def wrong_shape(x):
    return jnp.sum(x.logprobs)


def text_number(x, *, mode="fast"):
    return x.logprobs


def taken_name(x, *, denominator=1.0):
    return x.logprobs


@pytest.mark.parametrize(
    "function, message",
    [
        (text_number, "mode"),
        (taken_name, "denominator"),
        (wrong_shape, "wrong_shape"),
    ],
)
def test_refusals(function, message):
    with pytest.raises(ValueError, match=message):
        objectives.algorithm(function)


def test_it_is_found_in_a_file_and_an_edited_file_is_another_loss(tmp_path):
    file = tmp_path / "mine.py"
    for name in ("strength", "force"):
        body = f"return -{name} * x.advantages * x.logprobs"
        file.write_text(f"def push(x, *, {name}=2.0):\n    {body}\n")
        objective = objectives.algorithm(f"{file}:push", **{name: 3})
        assert (objective.name, objective.hyperparameters) == ("push", {name: 3.0})
    (tmp_path / "broken.py").write_text("def push(x:\n")
    for name in ("broken.py", "other.py"):
        with pytest.raises(ValueError, match=name):
            objectives.algorithm(f"{tmp_path / name}:push")
