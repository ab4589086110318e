"""Attention: every path gives what softmax over a dense mask gives, and so do its gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu

from grre_jax.models import (
    attention as attentions,
    blocked_attention as blocked,
    prefix_attention as prefixes,
)
from grre_jax.models.blocked_attention import Visibility, blocked_attention


def dense(q, k, v, seen, window=None, softcap=0.0):
    """The definition."""
    scores = jnp.einsum("bqngd,bknd->bngqk", q, k) * 0.3
    scores = softcap * jnp.tanh(scores / softcap) if softcap else scores
    mask = seen.mask(seen, window)[:, None, None]
    weights = jax.nn.softmax(scores, where=mask, axis=-1)
    return jnp.einsum("bngqk,bknd->bqngd", weights, v)


def draw(length, rows=2, kv=2, group=3, dim=8):
    """Queries, keys, values and rows of shared prompts: a few segments a row, of which 3 and 4
    continue 2.
    """
    generator = np.random.default_rng(0)
    shapes = ((kv, group, dim), (kv, dim), (kv, dim))
    q, k, v = (generator.normal(size=(rows, length, *shape)).astype(np.float32) for shape in shapes)
    ids = []
    for _ in range(rows):
        ends = generator.choice(np.arange(1, length), 4, replace=False)
        lengths = np.diff([0, *np.sort(ends), length])
        starts = np.cumsum(lengths) - lengths
        offsets = starts[[0, 1, 1, 1, 4]] + [0, 0, 0, lengths[2], 0]
        index = np.repeat(np.arange(5), lengths)
        prefixes = np.array([1, 2, 2, 2, 5])[index]
        ids.append([index + 1, np.arange(length) - offsets[index], prefixes])
    return q, k, v, Visibility.of(*jnp.asarray(ids, jnp.int32).swapaxes(0, 1))


def gradients(f, *arrays):
    def both(*arrays):
        out, back = jax.vjp(f, *arrays)
        return out, back(jnp.sin(jnp.arange(out.size, dtype=out.dtype)).reshape(out.shape))

    return jax.jit(both)(*arrays)


def assert_same(ours, theirs, *arrays, atol=2e-5):
    """Values and gradients of two functions."""
    found, expected = gradients(ours, *arrays), gradients(theirs, *arrays)
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(x, y, atol=atol)


# One block, blocks that do not divide the row, and (200 in blocks of 8) spans that are scanned.
@pytest.mark.parametrize(
    "length, block", [(24, 64), (65, 8), pytest.param(200, 8, marks=pytest.mark.slow)]
)
def test_blocks_equal_the_definition(length, block, monkeypatch):
    monkeypatch.setattr(blocked, "SHORT_BLOCK", block)
    monkeypatch.setattr(blocked, "LONG_BLOCK", block)
    *arrays, seen = draw(length)
    options = {"window": 3, "scale": 0.3, "softcap": 0.7}
    assert_same(
        lambda *qkv: blocked_attention(*qkv, seen, seen, **options),
        lambda *qkv: dense(*qkv, seen, 3, 0.7),
        *arrays,
    )


def cudnn(q, k, v, seen, window=None, scale=1.0):
    """What NVIDIA computes, with XLA's attention in cuDNN's place."""
    return attentions._cudnn(q, k, v, seen, seen, window, scale, implementation="xla")


def blocks(q, k, v, seen):
    return blocked_attention(q, k, v, seen, seen, scale=1.0)


@pytest.mark.slow
@pytest.mark.parametrize("attend", [blocks, cudnn])
def test_memory_grows_with_the_length_and_not_with_its_square(attend):
    def temporary(length):
        *arrays, seen = draw(length, rows=1, kv=1, group=1, dim=4)
        step = jax.jit(jax.grad(lambda *qkv: attend(*qkv, seen).sum(), (0, 1, 2)))
        return step.lower(*arrays).compile().memory_analysis().temp_size_in_bytes

    assert temporary(16384) < 5 * temporary(4096)  # its square would be 16 times


def test_blocks_of_queries_for_cudnn_equal_the_definition(monkeypatch):
    *arrays, seen = draw(40)
    monkeypatch.setattr(attentions, "CUDNN_BLOCK", 16)  # the last block has padding
    assert_same(lambda *qkv: cudnn(*qkv, seen, 5, 0.3), lambda *qkv: dense(*qkv, seen, 5), *arrays)


def test_prefix_attention_equals_blocks(monkeypatch):
    """TPU's kernel in interpretation, for a part of the queries: a prompt and two completions of
    128 tokens each, and segments that start anywhere. Some see nothing.
    """
    monkeypatch.setattr(prefixes, "KEYS", 128)  # hence three blocks of each
    *arrays, seen = draw(384, kv=1, group=2)
    ids = jnp.arange(384) // 128
    positions = jnp.where(ids == 2, seen.columns[0] - 128, seen.columns[0])
    shared = Visibility.of(*(x[None] for x in (ids + 1, positions, jnp.ones_like(ids))))
    seen = jax.tree.map(lambda x, y: jnp.concatenate([x, y[1:]]), shared, seen)
    part = jax.tree.map(lambda x: x[:, 128:].at[1, -9:].set(-1), seen)

    def attend(attention, **options):
        options |= {"scale": 0.3, "softcap": 0.7}
        return lambda q, k, v: attention(q[:, 128:], k, v, part, seen, **options)

    with pltpu.force_tpu_interpret_mode():
        assert_same(
            attend(prefixes.prefix_attention, window=jnp.asarray(200)),
            attend(blocked_attention, window=200, whole=False),
            *arrays,
            atol=1e-5,
        )
