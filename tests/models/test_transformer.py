"""The forward pass: packed rows, shared prompts, two ways to repeat a layer."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from grre_jax.models import token_logprobs
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


PROMPT, COMPLETIONS = [3, 1, 4, 1, 5], [[9, 2, 6], [5], [3, 5, 8, 9]]


def separate():
    """The same completions, each in a row of its own after the prompt, and which of the tokens
    are theirs.
    """
    rows = [PROMPT + completion for completion in COMPLETIONS]
    tokens = np.zeros((len(rows), max(map(len, rows))), int)
    theirs = np.zeros(tokens.shape, bool)
    for number, row in enumerate(rows):
        tokens[number, : len(row)] = row
        theirs[number, len(PROMPT) : len(row)] = True
    return jnp.asarray(tokens), theirs


LATER = OTHER_FAMILIES | {"rotary_share": 0.7}


@pytest.mark.parametrize("options", [{"qkv_bias": True, "tie_embeddings": False}, LATER])
def test_completions_that_share_a_prompt_are_scored_and_learned_as_separate_rows(small, options):
    graph, params = nnx.split(small(**options))
    row = packed(PROMPT, COMPLETIONS, padding=3)
    tokens, theirs = separate()
    length = len(PROMPT)

    def together(params):
        logprobs = token_logprobs(nnx.merge(graph, params), *row)[0]
        return logprobs[length:].sum(), logprobs

    def apart(params):
        logprobs = token_logprobs(nnx.merge(graph, params), tokens)
        return (logprobs * theirs).sum(), logprobs

    (_, found), slope = jax.jit(jax.value_and_grad(together, has_aux=True))(params)
    (_, alone), expected = jax.jit(jax.value_and_grad(apart, has_aux=True))(params)
    # Padding names itself as its source.
    scores = np.concatenate([alone[0, :length], alone[theirs], np.zeros(3)])
    np.testing.assert_allclose(found, scores, atol=1e-5)
    for x, y in zip(jax.tree.leaves(slope), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(x, y, atol=2e-5, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options", [{"qk_norm": True, "qkv_bias": True, "attention_out_bias": True}, LATER]
)
def test_scan_unroll_and_remat_agree(small, options):
    tokens = jax.random.randint(jax.random.key(1), (2, 7), 0, 29)
    results = []
    for unroll, remat in itertools.product((True, False), REMAT):
        graph, params = nnx.split(small(**options, unroll=unroll, remat=remat))
        loss = jax.value_and_grad(lambda p, g=graph: token_logprobs(nnx.merge(g, p), tokens).sum())
        results.append(jax.tree.leaves(jax.jit(loss)(params)))
    for other in results[1:]:
        for a, b in zip(results[0], other, strict=True):
            np.testing.assert_allclose(a, b, atol=1e-5, rtol=1e-4)
