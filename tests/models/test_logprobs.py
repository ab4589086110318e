"""Chunked log-probs against log_softmax of the whole logits, values and gradients."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from grre_jax.models import head_logprobs, token_logprobs


def reference(hidden, head, targets, temperature, scored, block, softcap, num_ids):
    """Log-probs of the targets and entropies, from whole logits."""
    logits = hidden @ head.T
    logits = softcap * jnp.tanh(logits / softcap) if softcap else logits
    return of_logits(logits[:, :num_ids], targets, temperature)


def of_logits(logits, targets, temperature):
    logprobs = jax.nn.log_softmax(logits / temperature)
    entropy = -(jnp.exp(logprobs) * logprobs).sum(-1)
    return jnp.take_along_axis(logprobs, targets[..., None], axis=-1)[..., 0], entropy


@partial(jax.jit, static_argnums=(0, 7, 8, 9))
def gradients(
    function, weights, hidden, head, targets, temperature, scored, block, softcap, num_ids
):
    """Gradients of the weighted sum of the log-probs, and outputs; of scored tokens."""

    def loss(hidden, head):
        outputs = function(hidden, head, targets, temperature, scored, block, softcap, num_ids)
        outputs = [jnp.where(scored, x, 0) for x in outputs]
        return (weights * outputs[0]).sum(), outputs

    return jax.grad(loss, (0, 1), has_aux=True)(hidden, head)


def assert_same(found, expected, atol=1e-5, rtol=1e-5):
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, atol=atol, rtol=rtol)


ALL = np.ones(5, bool)
SOME = np.array([True, False, True, True, False])


# 37 rows of head: one block with a remainder, and several. Of the last 21 have text: blocks end
# before it, on it and behind it, and some have none of it.
@pytest.mark.parametrize(
    "block, softcap, num_ids, scored, scale",
    [
        (36, 0.0, None, ALL, 1.0),
        pytest.param(36, 0.0, None, ALL, 1e3, id="neither overflow nor vanish"),
        (7, 3.0, 21, ALL, 1.0),
        (10, 3.0, 21, SOME, 1.0),
        (10, 3.0, 21, ~ALL, 1.0),
    ],
)
def test_values_and_gradients(block, softcap, num_ids, scored, scale):
    random = np.random.default_rng(0)
    weights = random.normal(size=5).astype(np.float32)
    hidden = (scale * random.normal(size=(5, 8))).astype(np.float32)
    head = random.normal(size=(37, 8)).astype(np.float32)
    count = num_ids or 37
    head[count:] *= 9
    given = weights, hidden, head, random.integers(0, count, 5), np.float32(0.7), scored
    found = gradients(head_logprobs, *given, block, softcap, num_ids)
    expected = gradients(reference, *given, 0, softcap, num_ids)
    assert_same(found, expected, atol=2e-5 * scale, rtol=1e-4)


def test_token_logprobs_are_log_softmax_of_the_logits(small):
    model = small(tie_embeddings=False, qkv_bias=True, family="qwen2")
    tokens = np.random.default_rng(1).integers(0, model.config.vocab_size, (3, 9))

    @nnx.jit
    def both(model):
        """By chunks, of all tokens and of the even ones; and by whole logits."""
        found = token_logprobs(model, tokens, temperature=1.3, everything=True)[:2]
        some = token_logprobs(model, tokens, temperature=1.3, scored=tokens % 2 == 0)
        expected = of_logits(model.logits(model(tokens))[:, :-1], tokens[:, 1:], 1.3)
        return found, some, [jnp.pad(x, ((0, 0), (1, 0))) for x in expected]

    found, some, expected = both(model)
    assert_same(found, expected)
    assert_same(some, np.where(tokens % 2 == 0, expected[0], 0))


def test_a_large_vocabulary_takes_little_memory_beside_its_gradient():
    """1,024 tokens, 151,936 words of width 256: the logits alone would be 594 MiB, and so would
    their gradient.
    """
    hidden, head = (jax.ShapeDtypeStruct((n, 256), jnp.float32) for n in (1024, 151_936))

    def loss(hidden, head, targets):
        scored = targets >= 0
        return head_logprobs(hidden, head, targets, jnp.float32(1.0), scored)[0].sum()

    step = jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))
    lowered = step.lower(hidden, head, jax.ShapeDtypeStruct((1024,), jnp.int32))
    assert lowered.compile().memory_analysis().temp_size_in_bytes <= 100 * 2**20
