"""Scores of stored groups against one forward pass a completion."""

import jax
import numpy as np
from flax import nnx

from grre_jax import models, parallel
from grre_jax.training.policies import score_groups

from .test_step import CONFIG

WIDTH = 48


def test_scores_are_those_of_the_forward_pass(make_group):
    """Groups of other sizes and limits, more than one call, an observation inside a completion,
    one group that fills its row, and one that is cut over rows, each with the prompt.
    """
    model = models.Transformer(CONFIG, rngs=nnx.Rngs(4))
    forward = jax.jit(
        lambda tokens, temperature: models.token_logprobs(model, tokens, temperature=temperature)
    )

    def reference(group, temperature):
        start = len(group.prompt_tokens)
        parts = []
        for part in np.split(group.tokens, group.offsets[1:-1]):
            row = np.pad([*group.prompt_tokens, *part], (0, WIDTH - start - len(part)))
            out = forward(row[None], np.float32(temperature))
            parts.append(out[0, start : start + len(part)])
        return np.where(group.mask, np.concatenate(parts), 0)

    mesh = parallel.make_mesh(parallel.MeshConfig())
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
        found = score_groups(*nnx.split(model), some, mesh, temperature=temperature, **options)
        for group, values in zip(some, found, strict=True):
            np.testing.assert_allclose(values, reference(group, temperature), atol=2e-5)
