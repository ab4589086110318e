"""The model: packed rows, shared prompts, gradients, two ways to repeat a layer."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from grre_jax.models import token_logprobs, transformer
from grre_jax.models.transformer import REMAT

from ..model_options import OTHER_FAMILIES


def packed(prompt, completions, padding=0):
    """A prompt with its completions after it in one row, as (tokens, positions, segments,
    prefixes, sources).
    """
    rows = [(t, i, 1, 1, max(i - 1, 0)) for i, t in enumerate(prompt)]
    for number, completion in enumerate(completions, 2):
        for i, token in enumerate(completion):
            source = len(rows) - 1 if i else len(prompt) - 1
            rows.append((token, len(prompt) + i, number, 1, source))
    rows += [(0, 0, 0, 0, len(rows) + i) for i in range(padding)]
    return [jnp.asarray(column)[None] for column in zip(*rows, strict=True)]


PROMPT = [3, 1, 4, 1, 5]
COMPLETIONS = [[9, 2, 6], [5], [3, 5, 8, 9]]


LATER = OTHER_FAMILIES | {"rotary_share": 0.7}


@pytest.mark.parametrize("options", [{"qkv_bias": True, "tie_embeddings": False}, LATER])
def test_completions_that_share_a_prompt_are_scored_and_learned_as_separate_rows(small, options):
    graph, params = nnx.split(small(**options))
    row = packed(PROMPT, COMPLETIONS, padding=3)
    length = len(PROMPT)
    # Each in a row of its own after the prompt.
    rows = [PROMPT + completion for completion in COMPLETIONS]
    tokens = np.array([row + [0] * (9 - len(row)) for row in rows])
    ends = np.array([[len(row)] for row in rows])
    theirs = (np.arange(9) >= length) & (np.arange(9) < ends)

    def together(params):
        logprobs = token_logprobs(nnx.merge(graph, params), *row)[0]
        return logprobs[length:].sum(), logprobs

    def apart(params):
        logprobs = token_logprobs(nnx.merge(graph, params), tokens)
        return (logprobs * theirs).sum(), logprobs

    (_, found), slope = jax.jit(jax.value_and_grad(together, has_aux=True))(params)
    learn = jax.jit(jax.value_and_grad(apart, has_aux=True))
    (_, alone), expected = learn(params)
    # Padding names itself as its source.
    scores = np.concatenate([alone[0, :length], alone[theirs], np.zeros(3)])
    np.testing.assert_allclose(found, scores, atol=1e-5)
    for x, y in zip(jax.tree.leaves(slope), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(x, y, atol=2e-5, rtol=1e-4)
    # The gradient of each parameter, of which some is written by hand, is that of the sum.
    leaves, structure = jax.tree.flatten(params)
    for place, gradient in enumerate(jax.tree.leaves(expected)):
        direction = np.random.default_rng(place).normal(size=gradient.shape)
        direction *= 1e-2 / np.linalg.norm(direction)
        moved = [list(leaves), list(leaves)]
        moved[0][place] = leaves[place] + direction
        moved[1][place] = leaves[place] - direction
        (up, _), (down, _) = (learn(jax.tree.unflatten(structure, each))[0] for each in moved)
        difference = (up - down) / 2 - np.sum(gradient * direction)
        assert abs(difference) < 2e-5 * (1 + np.linalg.norm(gradient))


@pytest.mark.slow
def test_scan_unroll_and_remat_agree(small, monkeypatch):
    tokens = jax.random.randint(jax.random.key(1), (2, 7), 0, 29)
    results = []
    for most, remat in itertools.product((32, 0), REMAT):
        monkeypatch.setattr(transformer, "UNROLL_LAYERS_ON_CPU", most)
        graph, params = nnx.split(small(**LATER, remat=remat))
        loss = jax.value_and_grad(lambda p, g=graph: token_logprobs(nnx.merge(g, p), tokens).sum())
        results.append(jax.tree.leaves(jax.jit(loss)(params)))
    for other in results[1:]:
        for a, b in zip(results[0], other, strict=True):
            np.testing.assert_allclose(a, b, atol=1e-5, rtol=1e-4)
