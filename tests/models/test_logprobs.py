"""Chunked log-probs against log_softmax of the whole logits, values and gradients."""

import json
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from grre_jax.models import head_logprobs, token_logprobs


def reference(hidden, head, targets, temperature):
    logprobs = jax.nn.log_softmax(
        hidden.astype(jnp.float32) @ head.astype(jnp.float32).T / temperature
    )
    return jnp.take_along_axis(logprobs, targets[:, None], axis=1)[:, 0], -(
        jnp.exp(logprobs) * logprobs
    ).sum(1)


def draw(n=13, d=8, v=37, scale=1.0):
    keys = jax.random.split(jax.random.key(0), 4)
    hidden, head = scale * jax.random.normal(keys[0], (n, d)), jax.random.normal(keys[1], (v, d))
    return hidden, head, jax.random.randint(keys[2], (n,), 0, v), jax.random.normal(keys[3], (n,))


# 37 rows of head: one block with a remainder, several with one, several without, single rows, a
# block beyond the vocabulary.
@pytest.mark.parametrize("block", [36, 10, 64])
def test_values_and_gradients(block):
    hidden, head, targets, weights = draw()

    def ours(hidden, head):
        logprobs, entropy = head_logprobs(hidden, head, targets, jnp.float32(0.7), block)
        return (weights * logprobs).sum(), (logprobs, entropy)

    def theirs(hidden, head):
        logprobs, entropy = reference(hidden, head, targets, 0.7)
        return (weights * logprobs).sum(), (logprobs, entropy)

    gradients, values = jax.jit(jax.grad(ours, argnums=(0, 1), has_aux=True))(hidden, head)
    wanted_gradients, wanted = jax.jit(jax.grad(theirs, argnums=(0, 1), has_aux=True))(hidden, head)
    for a, b in zip((*values, *gradients), (*wanted, *wanted_gradients), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5, rtol=1e-5)


# Of 37 rows 21 have text: blocks end before it, on it and behind it, and some have none of it.
@pytest.mark.parametrize("block", [10, 7])
@pytest.mark.parametrize("softcap", [0.0, 3.0])
def test_ids_without_text_have_no_probability(block, softcap):
    hidden, head, targets, weights = draw()
    head, targets = head.at[21:].multiply(9), targets % 21

    def loss(hidden, head, num_ids):
        temperature = jnp.float32(0.7)
        outputs = head_logprobs(hidden, head, targets, temperature, block, softcap, num_ids)
        return (weights * outputs[0]).sum(), outputs

    both = jax.jit(jax.grad(loss, argnums=(0, 1), has_aux=True), static_argnums=2)
    (d_hidden, d_head), outputs = both(hidden, head, 21)
    (wanted_hidden, wanted_head), wanted = both(hidden, head[:21], None)
    for a, b in zip((*outputs, d_hidden), (*wanted, wanted_hidden), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5, rtol=1e-5)
    np.testing.assert_allclose(d_head[:21], wanted_head, atol=1e-5, rtol=1e-5)
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
def loss(hidden, head, block):
    outputs = head_logprobs(hidden, head, targets, jnp.float32(0.7), block, 0.0, 13)
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
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"
    env = os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-c", program], env=env, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    assert max(json.loads(done.stdout.splitlines()[-1])) < 1e-5


def test_large_logits_neither_overflow_nor_vanish():
    hidden, head, targets, _ = draw(scale=1e3)
    logprobs, entropy = head_logprobs(hidden, head, targets, jnp.float32(1.0), 10)  # outside jit
    wanted, wanted_entropy = reference(hidden, head, targets, 1.0)
    np.testing.assert_allclose(logprobs, wanted, rtol=1e-5, atol=1e-3)
    np.testing.assert_allclose(entropy, wanted_entropy, atol=1e-2)
    gradient = jax.grad(lambda h: head_logprobs(h, head, targets, jnp.float32(1.0), 10)[0].sum())(
        hidden
    )
    assert np.isfinite(gradient).all()


def test_half_precision_inputs_give_float32_outputs_and_their_own_gradients():
    hidden, head, targets, _ = draw()
    hidden = hidden.astype(jnp.bfloat16)
    logprobs, entropy = head_logprobs(hidden, head, targets, jnp.float32(1.0), 10)
    assert logprobs.dtype == entropy.dtype == jnp.float32
    np.testing.assert_allclose(
        logprobs, reference(hidden, head.astype(jnp.bfloat16), targets, 1.0)[0], atol=1e-2
    )
    gradients = jax.grad(
        lambda h, w: head_logprobs(h, w, targets, jnp.float32(1.0), 10)[0].sum(), argnums=(0, 1)
    )(hidden, head)
    assert gradients[0].dtype == jnp.bfloat16 and gradients[1].dtype == jnp.float32


@pytest.mark.parametrize("tie", [True, False])
def test_token_logprobs_are_log_softmax_of_the_logits(small, tie):
    model = small(tie_embeddings=tie, qkv_bias=True, family="qwen2")
    tokens = jax.random.randint(jax.random.key(1), (3, 9), 0, model.config.vocab_size)
    weights = jax.random.normal(jax.random.key(2), tokens.shape)
    graph, params = nnx.split(model)

    def ours(params):
        logprobs, entropy = token_logprobs(
            nnx.merge(graph, params), tokens, temperature=1.3, with_entropy=True
        )
        return (weights * logprobs).sum(), (logprobs, entropy)

    def theirs(params):
        model = nnx.merge(graph, params)
        full = jax.nn.log_softmax(model.logits(model(tokens)) / 1.3)[:, :-1]
        logprobs = jnp.take_along_axis(full, tokens[:, 1:, None], axis=2)[:, :, 0]
        entropy = -(jnp.exp(full) * full).sum(-1)
        logprobs, entropy = (jnp.pad(x, ((0, 0), (1, 0))) for x in (logprobs, entropy))
        return (weights * logprobs).sum(), (logprobs, entropy)

    gradients, values = jax.jit(jax.grad(ours, has_aux=True))(params)
    wanted_gradients, wanted = jax.jit(jax.grad(theirs, has_aux=True))(params)
    assert (np.asarray(values[0])[:, 0] == 0).all()
    for a, b in zip(
        jax.tree.leaves((values, gradients)),
        jax.tree.leaves((wanted, wanted_gradients)),
        strict=True,
    ):
        np.testing.assert_allclose(a, b, atol=1e-5, rtol=1e-5)


def test_a_large_vocabulary_takes_little_memory_beside_its_gradient():
    """1,024 tokens, 151,936 words of width 256: the logits alone would be 594 MiB, and so would
    their gradient.
    """
    shapes = (
        jax.ShapeDtypeStruct((1024, 256), jnp.float32),
        jax.ShapeDtypeStruct((151_936, 256), jnp.float32),
    )
    targets = jax.ShapeDtypeStruct((1024,), jnp.int32)

    def loss(hidden, head, targets):
        return head_logprobs(hidden, head, targets, jnp.float32(1.0))[0].sum()

    memory = (
        jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))
        .lower(*shapes, targets)
        .compile()
        .memory_analysis()
    )
    assert memory.temp_size_in_bytes <= 100 * 2**20
