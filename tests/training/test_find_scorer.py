"""The policy of a name: a run's checkpoint or a model, which scores what it sampled as its
sampler did.
"""

import dataclasses

import numpy as np
import pytest

from grre_jax import rollouts
from grre_jax.errors import DataError, UsageError
from grre_jax.training import policies
from grre_jax.training.policies import find_scorer

from ..groups import packed_group


@pytest.fixture(scope="module")
def first(tiny_run):
    return find_scorer(f"{tiny_run}:0")


@pytest.fixture(scope="module")
def sampled(tiny_run):
    """Groups that the run's first policy sampled."""
    groups = rollouts.read(tiny_run / "rollouts")
    return [group for group in groups if group.policy_version[0] == 0]


def test_a_checkpoint_scores_what_it_sampled_as_its_sampler_did(tiny_run, first, sampled):
    assert len(sampled) >= 8
    for group, values in zip(sampled, first.score(sampled, 1.0), strict=True):
        np.testing.assert_allclose(values, group.behavior_logprobs, atol=1e-5)
    assert first.described["model"] == str(tiny_run) and first.described["step"] == 0


def test_the_longest_prompt_and_completion_may_be_of_two_groups(first, monkeypatch):
    monkeypatch.setattr(policies, "ROW_TOKENS", 16)
    groups = [packed_group(0, prompt=10, lengths=(4, 2)), packed_group(1, prompt=4, lengths=(10,))]
    groups = [
        dataclasses.replace(g, tokens=g.tokens % 8, prompt_tokens=g.prompt_tokens % 8)
        for g in groups
    ]
    together = first.score(groups, 1.0)
    for group, values in zip(groups, together, strict=True):
        np.testing.assert_allclose(first.score([group], 1.0)[0], values, atol=1e-5)


def test_an_exported_model_is_the_same_policy(tiny_run, first, sampled, tmp_path):
    policies.export(tiny_run, tmp_path / "model", 0)
    model = find_scorer(str(tmp_path / "model"))
    assert model.described["fingerprint"] == first.described["fingerprint"]
    assert model.described["step"] is None
    assert model.tokenizer.encode_prompt("1+2>") == first.tokenizer.encode_prompt("1+2>")
    for a, b in zip(model.score(sampled, 0.5), first.score(sampled, 0.5), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)
    with pytest.raises(DataError, match=":3"):
        find_scorer(f"{tmp_path / 'model'}:3")


def test_what_is_not_there(tiny_run, tmp_path):
    for error, named, path, options in (
        (DataError, "step 7", f"{tiny_run}:7", {}),
        (DataError, str(tmp_path), str(tmp_path), {}),
        (UsageError, "dtype", str(tiny_run), {"dtype": "float3"}),
    ):
        with pytest.raises(error, match=named):
            find_scorer(path, **options)
