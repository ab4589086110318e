"""The policy of a name: a run's checkpoint or a model, which scores what it sampled as its
sampler did.
"""

import numpy as np
import pytest

from grre_jax import rollouts
from grre_jax.errors import DataError, UsageError
from grre_jax.training import policies
from grre_jax.training.policies import find_scorer
from grre_jax.training.run_folder import split_step


@pytest.fixture(scope="module")
def first(tiny_run):
    return find_scorer(f"{tiny_run}:0")


@pytest.fixture(scope="module")
def sampled(tiny_run):
    """Groups that the run's first policy sampled."""
    groups = rollouts.read(tiny_run / "rollouts")
    return [group for group in groups if group.policy_version[0] == 0]


def test_a_checkpoint_scores_what_it_sampled_as_its_sampler_did(tiny_run, first, sampled):
    scores = first.score(sampled, 1.0)
    assert len(sampled) >= 8
    for group, values in zip(sampled, scores, strict=True):
        np.testing.assert_allclose(values, group.behavior_logprobs, atol=1e-5)
    assert first.described["model"] == str(tiny_run) and first.described["step"] == 0
    assert first.dtype == "float32"


def test_an_exported_model_is_the_same_policy(tiny_run, first, sampled, tmp_path):
    policies.export(tiny_run, tmp_path / "model", 0)
    model = find_scorer(str(tmp_path / "model"))
    assert model.described["fingerprint"] == first.described["fingerprint"]
    assert model.described["step"] is None
    for a, b in zip(model.score(sampled, 0.5), first.score(sampled, 0.5), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)
    with pytest.raises(DataError, match=":3"):
        find_scorer(f"{tmp_path / 'model'}:3")


def test_steps_of_names(tmp_path):
    for name in ("runs/a", "s3://b/a"):
        assert split_step(f"{name}:40") == (name, 40) and split_step(name) == (name, None)
    (tmp_path / "odd:3").mkdir()
    for name in ("a:b", "a:", str(tmp_path / "odd:3")):
        assert split_step(name) == (name, None)


def test_what_is_not_there(tiny_run, tmp_path):
    with pytest.raises(DataError, match="step 7"):
        find_scorer(f"{tiny_run}:7")
    with pytest.raises(DataError, match=str(tmp_path)):
        find_scorer(str(tmp_path))
    with pytest.raises(UsageError, match="dtype"):
        find_scorer(str(tiny_run), dtype="float3")
