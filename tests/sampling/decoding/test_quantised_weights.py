"""A sampler with rounded weights is a policy of its own."""

import jax
import numpy as np
import pytest
from flax import nnx

from grre_jax import sampling
from grre_jax.models.quantised import quantise
from grre_jax.sampling import SamplingConfig
from grre_jax.sampling.decoding.weights import Weights

from ..calls import sample
from ..test_sampler import forward

PROMPTS, TIME = [[1, 2, 3], [4, 6], [7]], 6


@pytest.fixture(scope="module")
def model(tiny):
    return tiny(tie_embeddings=False, eos_ids=())


def rounded(model, name):
    """The model with matrices that went through `quantise`; the embedding is not among them."""
    graph, params = nnx.split(model)

    def one(path, x):
        names = {str(getattr(entry, "key", "")) for entry in path}
        if x.ndim != 3 and "head" not in names:
            return x
        axis = -1 if "head" in names else -2
        values, scale = quantise(x, name, axis)
        return values.astype(x.dtype) * np.expand_dims(scale, axis)

    return nnx.merge(graph, jax.tree_util.tree_map_with_path(one, params))


def drawn(weights):
    options = {"key": jax.random.key(2), "group_size": 2, "max_new_tokens": TIME}
    return sample(weights, PROMPTS, **options)


@pytest.mark.parametrize(
    "name, most", [("int8", 0.2), pytest.param("fp8", 0.8, marks=pytest.mark.slow)]
)
def test_log_probs_are_those_of_the_rounded_policy(model, name, most):
    samples = drawn(sampling.prepared(model, name))
    own, learner = (forward(each, PROMPTS, samples, 1.0) for each in (rounded(model, name), model))
    np.testing.assert_allclose(samples.behavior_logprobs, own, atol=1e-5)
    assert 1e-3 < np.abs(samples.behavior_logprobs - learner).max() < most


def test_a_loop_that_reads_the_stored_numbers_draws_the_same(model, monkeypatch):
    weights = sampling.prepared(model, "int8")
    expected = drawn(weights)
    assert weights.before_loop().head.dtype == np.float32  # on a CPU
    monkeypatch.setattr(Weights, "before_loop", lambda self: self)
    sampling.decoding.engine.advance.clear_cache()
    got = drawn(weights)
    assert (got.tokens == expected.tokens).all()
    np.testing.assert_allclose(got.behavior_logprobs, expected.behavior_logprobs, atol=1e-5)


def test_matrices_alone_are_rounded(model):
    weights, float32 = sampling.prepared(model, "int8"), sampling.prepared(model)
    vectors = sum(x.nbytes for x in jax.tree.leaves(float32.layers) if x.ndim == 1)
    columns = sum(x.shape[1] for x in jax.tree.leaves((float32.layers, float32.head)) if x.ndim > 1)
    matrices = float32.bytes_by_dtype["float32"] - vectors
    assert weights.bytes_by_dtype == {"int8": matrices // 4, "float32": vectors + 4 * columns}
    assert weights.dtype == np.float32 and weights.params is not None


@pytest.mark.parametrize(
    "make", [sampling.prepared, lambda _, name: SamplingConfig(weight_dtype=name)]
)
def test_unknown_dtypes_are_refused(model, make):
    for name in ("int4", None):
        with pytest.raises(ValueError, match=f"weight_dtype: expected .*int8, fp8.*{name}"):
            make(model, name)
