"""What a rescored folder says, with a scorer whose scores can be told in advance."""

import dataclasses

import numpy as np
import pytest

from grre_jax import rollouts
from grre_jax.errors import DataError
from grre_jax.rollouts.tools import rescoring as module
from grre_jax.rollouts.tools.rescoring import Scorer, rescore
from grre_jax.tasks import CharTokenizer

from ...groups import packed_group, text_group

TOKENIZER = CharTokenizer("0123456789+=$", eos="$")
CALLS = []


def expected(group, temperature=1.0):
    """-(token + 1) * temperature, 0 where the token was not generated."""
    return np.where(group.mask, -(group.tokens + 1.0) * temperature, 0).astype(np.float32)


def score(groups, temperature):
    CALLS.append((len(groups), temperature))
    return [expected(group, temperature) for group in groups]


SCORER = Scorer(
    score,
    TOKENIZER,
    vocab_size=16,
    max_positions=40,
    dtype="bfloat16",
    described={"model": "m", "step": 3},
)


@pytest.fixture
def rescored(tmp_path):
    """`rescored(groups, metadata, **options)`: the reader of their folder's rescored copy."""

    def make(groups, metadata=None, **options):
        rollouts.write(tmp_path / "source", groups, writer="w", metadata=metadata)
        rescore(tmp_path / "source", tmp_path / "out", SCORER, **options)
        return rollouts.read(tmp_path / "out")

    return make


def test_text_gets_tokens_and_log_probs(rescored, monkeypatch):
    """Ten text-only groups, of which one was sampled at another temperature."""
    monkeypatch.setattr(module, "GROUPS_AT_ONCE", 8)
    CALLS.clear()
    groups = [
        text_group(n, ["2", "1+1=2"], prompt="1+1=", temperature=0.5 if n == 4 else 1.0)
        for n in range(10)
    ]
    copy = rescored(groups, {"contains": ["gsm8k/test"]})
    own = dict.fromkeys(("prompt_tokens", "tokens", "lengths", "mask", "behavior_logprobs"))
    own["logprob_dtype"] = ""
    for before, group in zip(groups, copy, strict=True):
        assert TOKENIZER.decode(group.tokens) == "2$1+1=2$" and group.lengths.tolist() == [2, 6]
        np.testing.assert_array_equal(group.behavior_logprobs, expected(group, before.temperature))
        assert group.logprob_dtype == "bfloat16" and dataclasses.replace(group, **own) == before
    metadata = copy.datasets[0].metadata
    assert (metadata["tokenizer"], copy.contains) == (TOKENIZER.fingerprint, {"gsm8k/test"})
    assert metadata["history"][0].items() >= {"as": "behavior", "model": "m"}.items()
    assert CALLS == [(4, 1.0), (1, 0.5), (3, 1.0), (2, 1.0)]


def test_a_reference_lies_beside_what_is_there(rescored):
    more = {"mask": [1, 1, 0, 1, 0, 1, 1], "sampling_logprobs": np.full(7, -0.5)}
    before = packed_group(0, temperature=0.7, ref_logprobs=np.full(7, -9.0), **more)
    (group,) = rescored([before], role="reference", temperature=2.0, replace=True)
    assert group == dataclasses.replace(before, ref_logprobs=expected(before, 2.0))


def test_new_behaviour_log_probs_take_the_old_policys_with_them(rescored):
    """At another temperature, which becomes the group's: it is the one that its behaviour
    log-probs are of.
    """
    old = {"sampling_logprobs": np.full(7, -0.5), "policy_logprobs": np.full(7, -9.0)}
    before = packed_group(0, temperature=0.7, extra={"a": 1}, **old)
    (group,) = rescored([before], temperature=1.5, replace=True)
    np.testing.assert_array_equal(group.behavior_logprobs, expected(group, 1.5))
    assert group.sampling_logprobs is group.policy_logprobs is None and group.temperature == 1.5
    assert group.extra == {"a": 1, "sampled_temperature": 0.7}


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"temperature": 0.0}, "temperature"),
        ({"tokens": [1, 2, 3, 16, 5, 6, 7]}, "token 16, .* 15"),
        ({"prompt": 37}, "41 tokens"),
        ({"lengths": (3, 4, 0)}, "empty"),
    ],
)
def test_what_cannot_be_scored_is_named(rescored, tmp_path, fields, named):
    with pytest.raises(DataError, match=f"g0 .*{named}"):
        rescored([packed_group(0, **fields)], replace=True)
    assert not len(rollouts.read(tmp_path / "out"))  # refused at the first group, before a write


@pytest.mark.parametrize(
    ("role", "metadata", "named"),
    [
        ("behavior", {}, "has behavior_logprobs already"),
        ("reference", {"tokenizer": "another"}, "log-probs of another tokenizer's tokens"),
    ],
)
def test_log_probs_are_not_replaced_or_mixed(rescored, role, metadata, named):
    group = dataclasses.replace(packed_group(0), prompt="1+1=", texts=["1", "2", "3"])
    with pytest.raises(DataError, match=named):
        rescored([group], metadata, role=role)
