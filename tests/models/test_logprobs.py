"""Chunked log-probs against log_softmax of the whole logits, values and gradients."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grre_jax.models import head_logprobs, token_logprobs

from .. import simulated_devices


def reference(hidden, head, targets, temperature):
    """Log-probs of the targets and entropies, from whole logits."""
    return of_logits(hidden.astype(jnp.float32) @ head.astype(jnp.float32).T, targets, temperature)


def of_logits(logits, targets, temperature):
    logprobs = jax.nn.log_softmax(logits / temperature)
    entropy = -(jnp.exp(logprobs) * logprobs).sum(-1)
    return jnp.take_along_axis(logprobs, targets[..., None], axis=-1)[..., 0], entropy


def gradients(outputs_of, weights, *arrays):
    """Outputs, the log-probs first, and gradients of their weighted sum."""

    def loss(*arrays):
        outputs = outputs_of(*arrays)
        return (weights * outputs[0]).sum(), outputs

    argnums = tuple(range(len(arrays)))
    return jax.jit(jax.grad(loss, argnums=argnums, has_aux=True))(*arrays)


def assert_same(found, expected):
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5, rtol=1e-5)


def draw(n=13, d=8, v=37, scale=1.0):
    keys = jax.random.split(jax.random.key(0), 4)
    hidden, head = scale * jax.random.normal(keys[0], (n, d)), jax.random.normal(keys[1], (v, d))
    return hidden, head, jax.random.randint(keys[2], (n,), 0, v), jax.random.normal(keys[3], (n,))


# 37 rows of head: one block with a remainder, and several with one.
@pytest.mark.parametrize("block", [36, 10])
def test_values_and_gradients(block):
    hidden, head, targets, weights = draw()

    def of(outputs, *options):
        options = (targets, jnp.float32(0.7), *options)
        return gradients(lambda *arrays: outputs(*arrays, *options), weights, hidden, head)

    assert_same(of(head_logprobs, block), of(reference))


@pytest.mark.parametrize("count", [0, 1, 5, 13])
def test_of_scored_tokens_alone(count):
    """As many results and gradients as of all tokens, in any places."""
    hidden, head, targets, weights = draw()
    scored = jax.random.permutation(jax.random.key(2), jnp.arange(13)) < count

    def of(scored_tokens):
        def outputs(*arrays):
            options = (targets, jnp.float32(0.7), 10, 3.0, 30, scored_tokens)
            return [jnp.where(scored, x, 0) for x in head_logprobs(*arrays, *options)]

        return gradients(outputs, weights, hidden, head)

    assert_same(of(scored), of(None))


# Of 37 rows 21 have text: blocks end before it, on it and behind it, and some have none of it.
@pytest.mark.parametrize("block, softcap", [(10, 0.0), (7, 3.0)])
def test_ids_without_text_have_no_probability(block, softcap):
    hidden, head, targets, weights = draw()
    head, targets = head.at[21:].multiply(9), targets % 21

    def of(head, num_ids):
        options = (targets, jnp.float32(0.7), block, softcap, num_ids)
        return gradients(lambda *arrays: head_logprobs(*arrays, *options), weights, hidden, head)

    (d_hidden, d_head), outputs = of(head, 21)
    expected = of(head[:21], None)
    assert_same(((d_hidden, d_head[:21]), outputs), expected)
    assert not d_head[21:].any()


def test_a_cut_vocabulary_may_end_on_ids_without_text():
    program = """
import json, jax, jax.numpy as jnp, numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P
from grre_jax.models import head_logprobs
from grre_jax.parallel import MeshConfig, make_mesh
from grre_jax.parallel.mesh import use
keys = jax.random.split(jax.random.key(0), 2)
hidden, head = jax.random.normal(keys[0], (16, 8)), jax.random.normal(keys[1], (40, 8))
head, targets = head.at[13:].multiply(9), jnp.arange(16) % 13
scored = jnp.arange(16) % 3 > 0  # of every device's tokens another number
def loss(hidden, head, block):
    outputs = head_logprobs(hidden, head, targets, jnp.float32(0.7), block, 0.0, 13, scored)
    outputs = [jnp.where(scored, x, 0) for x in outputs]
    return outputs[0].sum(), outputs
found = []
for block in (64, 4):
    both = jax.jit(jax.grad(loss, argnums=(0, 1), has_aux=True), static_argnums=2)
    whole = both(hidden, head, block)
    mesh = make_mesh(MeshConfig(fsdp=2, tensor=4))
    placed = jax.device_put((hidden, head), NamedSharding(mesh, P()))
    with use(mesh):
        cut = jax.jit(jax.grad(loss, argnums=(0, 1), has_aux=True), static_argnums=2)(*placed, block)
    pairs = zip(jax.tree.leaves(whole), jax.tree.leaves(cut), strict=True)
    found.append(max(float(np.abs(np.asarray(a) - np.asarray(b)).max()) for a, b in pairs))
print(json.dumps(found))
"""
    assert max(json.loads(simulated_devices.printed(program))) < 1e-5


def test_large_logits_neither_overflow_nor_vanish():
    hidden, head, targets, _ = draw(scale=1e3)

    def outputs(hidden):
        return head_logprobs(hidden, head, targets, jnp.float32(1.0), 10)

    expected = reference(hidden, head, targets, 1.0)
    for found, wanted, atol in zip(outputs(hidden), expected, (1e-3, 1e-2), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=atol)  # outside jit
    assert np.isfinite(jax.grad(lambda hidden: outputs(hidden)[0].sum())(hidden)).all()


def test_half_precision_inputs_give_float32_outputs_and_their_own_gradients():
    hidden, head, targets, weights = draw()
    hidden = hidden.astype(jnp.bfloat16)
    slopes, outputs = gradients(
        lambda *arrays: head_logprobs(*arrays, targets, jnp.float32(1.0), 10), weights, hidden, head
    )
    assert [x.dtype for x in (*outputs, *slopes)] == [*["float32"] * 2, "bfloat16", "float32"]
    expected, _ = reference(hidden, head.astype(jnp.bfloat16), targets, 1.0)
    np.testing.assert_allclose(outputs[0], expected, atol=1e-2)


@pytest.mark.parametrize("tie", [True, False])
def test_token_logprobs_are_log_softmax_of_the_logits(small, tie):
    model = small(tie_embeddings=tie, qkv_bias=True, family="qwen2")
    tokens = jax.random.randint(jax.random.key(1), (3, 9), 0, model.config.vocab_size)
    found = token_logprobs(model, tokens, temperature=1.3, with_entropy=True)
    expected = of_logits(model.logits(model(tokens))[:, :-1], tokens[:, 1:], 1.3)
    expected = [jnp.pad(x, ((0, 0), (1, 0))) for x in expected]
    assert_same(found, expected)
    scored = tokens % 2 == 0
    found = token_logprobs(model, tokens, temperature=1.3, scored=scored)
    assert_same(found, jnp.where(scored, expected[0], 0))


def test_a_large_vocabulary_takes_little_memory_beside_its_gradient():
    """1,024 tokens, 151,936 words of width 256: the logits alone would be 594 MiB, and so would
    their gradient.
    """
    hidden, head = (jax.ShapeDtypeStruct((n, 256), jnp.float32) for n in (1024, 151_936))

    def loss(hidden, head, targets):
        return head_logprobs(hidden, head, targets, jnp.float32(1.0))[0].sum()

    step = jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))
    lowered = step.lower(hidden, head, jax.ShapeDtypeStruct((1024,), jnp.int32))
    assert lowered.compile().memory_analysis().temp_size_in_bytes <= 100 * 2**20
