"""The policy of a name: a run's checkpoint or a model, which scores what it sampled as its
sampler did.
"""

import numpy as np
import pytest

from grre_jax import rollouts
from grre_jax.errors import DataError
from grre_jax.training import policies
from grre_jax.training.policies import find_scorer

from ..groups import packed_group


@pytest.fixture
def first(tiny_run, monkeypatch):
    monkeypatch.setattr(policies, "ROW_TOKENS", 16)
    return find_scorer(f"{tiny_run}:0")


def test_the_longest_prompt_and_completion_may_be_of_two_groups(first):
    groups = [packed_group(0, prompt=10, lengths=(4, 2)), packed_group(1, prompt=4, lengths=(10,))]
    together = first.score(groups, 1.0)
    for group, values in zip(groups, together, strict=True):
        np.testing.assert_allclose(first.score([group], 1.0)[0], values, atol=1e-5)


def test_an_exported_model_is_the_same_policy(tiny_run, first, tmp_path):
    policies.export(tiny_run, tmp_path / "model", 0)
    model = find_scorer(str(tmp_path / "model"))
    assert model.described["fingerprint"] == first.described["fingerprint"]
    assert model.described["step"] is None
    assert model.tokenizer.encode_prompt("1+2>") == first.tokenizer.encode_prompt("1+2>")
    groups = list(rollouts.read(tiny_run / "rollouts"))
    for a, b in zip(model.score(groups, 0.5), first.score(groups, 0.5), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)
    for name, named in ((f"{tmp_path / 'model'}:3", ":3"), (f"{tiny_run}:7", "step 7")):
        with pytest.raises(DataError, match=named):
            find_scorer(name)
