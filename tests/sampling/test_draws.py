"""Chi-square tests of the draws against the exact distribution. (Of a vocabulary that is cut over
devices: test_sharded.py.)
"""

import functools

import jax
import numpy as np
import pytest
from scipy import stats

from grre_jax.sampling.distributions.distribution import SamplingDistribution
from grre_jax.sampling_params import SamplingParams

# Shape of the logits, size of the vocabulary, number of draws, and (temperature, top_k, top_p,
# min_p) that leave many tokens.
CASES = [
    ("peaked", 32, 100_000, (1.3, 20, 0.985, 3.6e-3)),
    ("flat", 151_936, 20_000, (0.7, 0, 1.0, 0.0)),
    ("flat", 151_936, 20_000, (1.3, 90_000, 0.8, 0.88)),
    ("peaked", 151_936, 20_000, (1.3, 90_000, 0.9, 5.25e-6)),
]
SLICE = 5000


def logits_of(shape, vocab):
    """Nearly flat, or the same with one token in the middle that holds p = .98 at temperature 1."""
    logits = 0.05 * np.random.default_rng(vocab).normal(size=vocab)
    if shape == "peaked":
        rest = np.exp(np.delete(logits, vocab // 2)).sum()
        logits[vocab // 2] = np.log(0.98 / 0.02 * rest)
    return logits.astype(np.float32)


# Two programs that run for long: here the compiler's work pays.
OPTIMISED = {"xla_backend_optimization_level": 3, "xla_llvm_disable_expensive_passes": False}


@functools.partial(jax.jit, compiler_options=OPTIMISED)
def drawn(distribution, logits, uniforms):
    """Tokens [draws] of one row of logits, a slice at a time: what does not depend on the
    uniforms is computed once a slice.
    """

    def one(pair):
        return distribution.sample(pair[None], logits[None])[0][0]

    return jax.lax.map(jax.vmap(one), uniforms.reshape(-1, SLICE, 2)).reshape(-1)


def exact(logits, temperature, top_k, top_p, min_p, slack=0.0):
    """float64 probabilities [vocab].

    `slack` moves every threshold down, so as to keep what rounding may keep.
    """
    scaled = logits.astype(np.float64) / temperature
    p = np.exp(scaled - scaled.max())
    p /= p.sum()
    descending = np.sort(p)[::-1]
    if top_k:
        p = np.where(p >= descending[top_k - 1] * (1 - slack), p, 0)
    descending = np.sort(p)[::-1]
    last = np.searchsorted(np.cumsum(descending), (top_p + (slack if top_p < 1 else 0)) * p.sum())
    p = np.where(p >= descending[min(last, (p > 0).sum() - 1)], p, 0)
    p = np.where(p >= min_p * p.max() * (1 - slack), p, 0)
    return p / p.sum()


@pytest.mark.parametrize("shape, vocab, draws, numbers", CASES)
def test_draws_follow_the_exact_distribution(shape, vocab, draws, numbers):
    """At a level that a right sampler fails once in 10,000 seeds; the seeds are fixed."""
    logits = logits_of(shape, vocab)
    uniforms = jax.random.uniform(jax.random.key(vocab), (draws, 2))
    distribution = SamplingDistribution.of(SamplingParams(*numbers))
    tokens = np.asarray(drawn(distribution, logits, uniforms))
    probability = exact(logits, *numbers)
    counts, expected = np.bincount(tokens, minlength=vocab), draws * probability
    assert 1 < (probability > 0).sum()
    assert (probability > 0).all() == (numbers[1:] == (0, 1.0, 0.0))
    assert counts[exact(logits, *numbers, slack=1e-5) == 0].sum() == 0
    assert counts[probability == 0].sum() <= 3  # within rounding of a threshold
    # Cells of about equal mass, of tokens that are neighbours by id and by probability.
    for order in (np.arange(vocab), np.argsort(-probability, kind="stable")):
        cell = (2000 * (np.cumsum(probability[order]) - probability[order])).astype(int)
        observed, wanted = np.bincount(cell, counts[order]), np.bincount(cell, expected[order])
        observed, wanted = observed[wanted > 5], wanted[wanted > 5]
        assert len(wanted) > 1
        assert stats.chisquare(observed, wanted * observed.sum() / wanted.sum()).pvalue > 1e-4
