import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.extra import numpy as arrays

from grre_jax.sampling.distributions.distribution import SamplingDistribution
from grre_jax.sampling_params import SamplingParams

from ..test_draws import exact

DRAWS = 4_000


def distribution_of(temperature, top_k, top_p, min_p):
    return SamplingDistribution.of(SamplingParams(temperature, top_k, top_p, min_p))


sample = jax.jit(SamplingDistribution.sample)


@jax.jit
def draw(distribution, logits):
    """Tokens from one row of logits, with their scores."""
    uniforms = jax.random.uniform(jax.random.key(0), (DRAWS, 2))
    return distribution.sample(uniforms, jnp.broadcast_to(logits, (DRAWS, logits.size)))


@jax.jit
def log_prob(distribution, logits):
    """The log-prob of every token by the threshold of the kept ones; -inf for the others."""
    scaled = distribution.scaled(logits, logits.max(-1, keepdims=True))
    kept = scaled >= distribution.keep_threshold(scaled)[..., None]
    first = jnp.arange(scaled.shape[-1]) == scaled.argmax(-1, keepdims=True)
    kept = jnp.where(distribution.greedy, first, kept)
    return jax.nn.log_softmax(jnp.where(kept, scaled, -jnp.inf))


# Numbers whose exponentials are told apart in float32, on a grid that makes ties, and tokens that
# cannot be drawn.
ROW = arrays.arrays(np.int8, 19, elements=st.integers(-12, 12)).map(
    lambda grid: np.where(grid < -9, -np.inf, grid / 2).astype(np.float32)
)


@settings(max_examples=60, deadline=None)
@given(
    ROW,
    st.integers(0, 19),
    st.sampled_from([1.0, 0.95, 0.5, 0.1]),
    st.sampled_from([0.0, 0.01, 0.3, 1.0]),
    st.sampled_from([1.0, 0.5, 2.0]),
)
def test_the_composition_equals_numpy_and_is_what_is_drawn(
    logits, top_k, top_p, min_p, temperature
):
    logits[11] = 3.0
    numbers = temperature, top_k, top_p, min_p
    expected = exact(logits, *numbers)
    scores = np.asarray(log_prob(distribution_of(*numbers), jnp.asarray(logits)))
    np.testing.assert_array_equal(np.isfinite(scores), expected > 0)
    np.testing.assert_allclose(np.exp(scores, dtype=np.float64), expected, atol=1e-6)
    tokens, drawn = jax.device_get(draw(distribution_of(*numbers), logits))
    assert (expected[tokens] > 0).all()
    assert (np.bincount(tokens, minlength=19)[expected > 0.01] > 0).all()
    np.testing.assert_allclose(drawn["sampling"], scores[tokens], atol=2e-6)


@pytest.mark.parametrize("numbers", [(1.0, 0, 1.0, 0.0), (0.0, 0, 1.0, 0.0), (0.7, 3, 0.9, 0.1)])
def test_a_token_that_cannot_be_drawn_is_not(numbers):
    """Nor one whose probability is below float32's range."""
    live = np.random.default_rng(0).random((30, 130)) < 0.05
    live[:, 77] = True
    logits = np.where(live, 1.0, [[-np.inf], [-200.0]] * 15).astype(np.float32)
    uniforms = np.repeat(np.float32([0.0, 0.5, 1 - 2**-24]), 20).reshape(30, 2)
    tokens, scores = sample(distribution_of(*numbers), uniforms, logits)
    assert live[np.arange(30), tokens].all()
    assert all(np.isfinite(x).all() for x in scores.values())


@pytest.mark.parametrize("temperature", [1e-4, 1e-37])
@pytest.mark.parametrize("numbers", [(0, 1.0, 0.0), (7, 0.9, 0.1)])
def test_a_low_temperature_costs_no_digits(temperature, numbers):
    """The largest logit is taken off before the division: in float32, 80 / 1e-4 is known to 0.06
    nats.
    """
    random = np.random.default_rng(0)
    logits = random.normal(scale=20, size=(64, 1000)).astype(np.float32)
    logits[:, :2] = logits.max(1, keepdims=True)  # a tie, which no temperature parts
    uniforms = random.random((64, 2)).astype(np.float32)
    tokens, scores = sample(distribution_of(temperature, *numbers), uniforms, logits)
    far = (logits.astype(float) - logits.max(1, keepdims=True)) / float(np.float32(temperature))
    expected = (far - np.log(np.exp(far).sum(1, keepdims=True)))[np.arange(64), tokens]
    for name in ("behavior", "sampling"):
        np.testing.assert_allclose(scores[name], expected, atol=1e-6)
    assert {0, 1} <= set(tokens.tolist())


def test_greedy_takes_the_argmax_and_has_no_ratio():
    """The first of those that are equal, as argmax does, whatever else is set."""
    random = np.random.default_rng(0)
    logits = np.round(3 * random.normal(size=(50, 40))).astype(np.float32) / 3
    uniforms = random.random((50, 2), np.float32)
    tokens, scores = sample(distribution_of(0.0, 3, 0.5, 0.1), uniforms, logits)
    assert ((logits == logits.max(-1, keepdims=True)).sum(-1) > 1).any()
    np.testing.assert_array_equal(tokens, logits.argmax(-1))
    assert not scores["sampling"].any() and not scores["behavior"].any()
    np.testing.assert_allclose(
        scores["policy"],
        np.log(1 / np.exp(logits - logits.max(-1, keepdims=True)).sum(-1)),
        atol=1e-6,
    )
