"""Scores of stored groups against one forward pass a completion."""

import jax
import numpy as np
import pytest
from flax import nnx

from grre_jax import models, parallel
from grre_jax.training import completion_logprobs
from grre_jax.training.completion_logprobs import score_groups

from .test_step import CONFIG

WIDTH = 48


@pytest.fixture(scope="module")
def scorer():
    """(score_groups bound to a model, the same by one padded row a completion)."""
    model = models.Transformer(CONFIG, rngs=nnx.Rngs(4))
    graph, params = nnx.split(model)
    mesh = parallel.make_mesh(parallel.MeshConfig())
    forward = jax.jit(
        lambda tokens, temperature: models.token_logprobs(model, tokens, temperature=temperature)
    )

    def reference(groups, temperature=1.0):
        scores = []
        for group in groups:
            start = len(group.prompt_tokens)
            parts = []
            for part in np.split(group.tokens, group.offsets[1:-1]):
                row = np.pad([*group.prompt_tokens, *part], (0, WIDTH - start - len(part)))
                out = forward(row[None], np.float32(temperature))
                parts.append(out[0, start : start + len(part)])
            scores.append(np.where(group.mask, np.concatenate(parts), 0))
        return scores

    return lambda groups, **options: score_groups(graph, params, groups, mesh, **options), reference


def test_scores_are_those_of_the_forward_pass(scorer, make_group):
    """Groups of other sizes and limits, more than one call, an observation inside a completion,
    one group that fills its row, and one that is cut over rows, each with the prompt.
    """
    score, reference = scorer
    groups = [
        make_group(0, prompt=3, lengths=(2, 4, 1)),
        make_group(1, prompt=30, lengths=(1,)),
        make_group(2, prompt=1, lengths=(30, 2, 30, 1)),
        make_group(3, prompt=2, lengths=(3, 2), mask=[1, 0, 1, 0, 0]),
        make_group(4, prompt=6, lengths=(40,)),
    ]
    for some, temperature, options in (
        (groups, 1.0, {"groups_per_call": 2}),
        (groups[2:], 1.0, {"pack_length": 46}),
        (groups[:1], 0.6, {}),
        ([], 1.0, {}),
    ):
        found = score(some, temperature=temperature, **options)
        for values, expected in zip(found, reference(some, temperature), strict=True):
            assert values.dtype == np.float32
            np.testing.assert_allclose(values, expected, atol=2e-5)


def test_data_of_any_lengths_compiles_few_programs(make_group, monkeypatch):
    """Twelve sets like GSM8K's, whose longest prompts and completions differ."""
    shapes, draw, mesh = set(), np.random.default_rng(0), parallel.make_mesh(parallel.MeshConfig())

    def scores(graph, params, rows, temperature):
        shapes.add(rows[0].shape)
        return jax.numpy.zeros(rows[0].shape)

    monkeypatch.setattr(completion_logprobs, "_score", scores)
    for number in range(12):
        groups = []
        for n in range(20):
            prompt = int(draw.integers(60, 110 + 8 * number))
            length = int(draw.integers(40, 130 + 25 * number))
            groups.append(make_group(n, prompt=prompt, lengths=(length,)))
        score_groups(None, None, groups, mesh)
    assert len(shapes) <= 3
