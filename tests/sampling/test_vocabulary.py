import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grre_jax.sampling.vocabulary import Blocks


@pytest.mark.parametrize("vocab", [1, 2, 17, 32, 64, 100, 257, 4096])
def test_blocks_hold_every_token_once_in_order(vocab):
    logits = np.random.default_rng(vocab).normal(size=(3, vocab)).astype(np.float32)
    blocks = Blocks(vocab)
    assert (blocks.count - 1) * blocks.width < vocab <= blocks.count * blocks.width
    padded = np.full((3, blocks.count * blocks.width), -np.inf, np.float32)
    padded[:, :vocab] = logits
    table = padded.reshape(3, blocks.count, blocks.width)
    masses = jax.jit(blocks.masses)(jnp.exp(jnp.asarray(logits)))
    np.testing.assert_allclose(masses, np.exp(table.astype(np.float64)).sum(-1), rtol=1e-6)
    for block in range(blocks.count):
        taken = jax.jit(blocks.take)(logits, jnp.full(3, block))
        np.testing.assert_array_equal(taken, table[:, block])


def test_a_block_taken_is_float32_whatever_the_logits():
    assert Blocks(64).take(jnp.zeros((2, 64), jnp.bfloat16), jnp.zeros(2, jnp.int32)).dtype == jnp.float32


@pytest.mark.parametrize("vocab, width, count", [(32, 8, 4), (4096, 64, 64), (50_257, 256, 197), (151_936, 512, 297), (262_144, 512, 512)])
def test_a_block_is_about_the_square_root_of_the_vocabulary(vocab, width, count):
    assert (Blocks(vocab).width, Blocks(vocab).count) == (width, count)
