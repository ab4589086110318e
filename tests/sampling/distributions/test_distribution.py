import jax
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.extra import numpy as arrays

from grre_jax.sampling.distributions.distribution import SamplingDistribution
from grre_jax.sampling_params import SamplingParams

from ..test_draws import exact

UNIFORMS = np.random.default_rng(0).random((4000, 2), np.float32)


def distribution_of(temperature, top_k, top_p, min_p):
    return SamplingDistribution.of(SamplingParams(temperature, top_k, top_p, min_p))


sample = jax.jit(SamplingDistribution.sample)


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
    rows = np.broadcast_to(logits, (4000, 19))
    tokens, scores = jax.device_get(sample(distribution_of(*numbers), UNIFORMS, rows))
    np.testing.assert_allclose(scores["sampling"], np.log(expected[tokens]), atol=2e-6)
    assert (np.bincount(tokens, minlength=19)[expected > 0.01] > 0).all()


def test_a_threshold_is_computed_only_where_something_is_cut(monkeypatch):
    computed = []

    def threshold(self, scaled, axis):
        jax.debug.callback(lambda: computed.append(1))
        return jax.numpy.full(scaled.shape[:-1], -np.inf)

    monkeypatch.setattr(SamplingDistribution, "keep_threshold", threshold)
    draw = jax.jit(lambda *arguments: SamplingDistribution.sample(*arguments))
    counts = []
    for numbers in ((1.0, 0, 1.0, 0.0), (1.0, 7, 1.0, 0.0), (1.0, 3, 1.0, 0.0), (1.0, 0, 0.9, 0.0)):
        jax.block_until_ready(draw(distribution_of(*numbers), UNIFORMS[:1], np.zeros((1, 7))))
        jax.effects_barrier()
        counts.append(len(computed))
    assert counts == [0, 0, 1, 2]


@pytest.mark.parametrize("numbers", [(1.0, 0, 1.0, 0.0), (0.7, 3, 0.9, 0.1)])
def test_a_token_that_cannot_be_drawn_is_not(numbers):
    """Nor one whose probability is below float32's range."""
    live = np.random.default_rng(0).random((30, 130)) < 0.05
    live[:, 77] = True
    logits = np.where(live, 1.0, [[-np.inf], [-200.0]] * 15).astype(np.float32)
    uniforms = np.repeat(np.float32([0.0, 0.5, 1 - 2**-24]), 20).reshape(30, 2)
    tokens, scores = sample(distribution_of(*numbers), uniforms, logits)
    assert live[np.arange(30), tokens].all()
    assert all(np.isfinite(x).all() for x in scores.values())


@pytest.mark.parametrize("numbers", [(1e-4, 0, 1.0, 0.0), (1e-37, 7, 0.9, 0.1)])
def test_a_low_temperature_costs_no_digits(numbers):
    """The largest logit is taken off before the division: in float32, 80 / 1e-4 is known to 0.06
    nats.
    """
    random = np.random.default_rng(0)
    logits = random.normal(scale=20, size=(64, 1000)).astype(np.float32)
    logits[:, :2] = logits.max(1, keepdims=True)  # a tie, which no temperature parts
    uniforms = random.random((64, 2)).astype(np.float32)
    tokens, scores = sample(distribution_of(*numbers), uniforms, logits)
    far = (logits.astype(float) - logits.max(1, keepdims=True)) / float(np.float32(numbers[0]))
    expected = (far - np.log(np.exp(far).sum(1, keepdims=True)))[np.arange(64), tokens]
    for name in ("behavior", "sampling"):
        np.testing.assert_allclose(scores[name], expected, atol=1e-6)
    assert {0, 1} <= set(tokens.tolist())


def test_greedy_takes_the_argmax_and_has_no_ratio():
    """The first of those that are equal, as argmax does, whatever else is set."""
    random = np.random.default_rng(0)
    logits = np.round(random.normal(size=(50, 40))).astype(np.float32)
    uniforms = random.random((50, 2), np.float32)
    tokens, scores = sample(distribution_of(0.0, 3, 0.5, 0.1), uniforms, logits)
    np.testing.assert_array_equal(tokens, logits.argmax(-1))
    assert not scores["sampling"].any() and not scores["behavior"].any()
    expected = -np.log(np.exp(logits - logits.max(-1, keepdims=True)).sum(-1))
    np.testing.assert_allclose(scores["policy"], expected, atol=1e-6)
