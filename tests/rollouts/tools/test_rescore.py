"""What a rescored folder says, with a scorer whose scores can be told in advance."""

import dataclasses
import functools

import numpy as np
import pytest

from grre_jax import rollouts
from grre_jax.errors import DataError
from grre_jax.rollouts.tools import rescore as module
from grre_jax.rollouts.tools.rescore import Scorer, rescore
from grre_jax.tasks import CharTokenizer

from ... import groups
from ...groups import packed_group

TOKENIZER = CharTokenizer("0123456789+=$", eos="$")
CALLS = []


def score(groups, temperature):
    """-(token + 1) * temperature, 0 where the token was not generated."""
    CALLS.append((len(groups), temperature))
    return [np.where(g.mask, -(g.tokens + 1.0) * temperature, 0).astype(np.float32) for g in groups]


SCORER = Scorer(
    score,
    TOKENIZER,
    vocab_size=16,
    max_positions=40,
    dtype="bfloat16",
    described={"model": "m", "step": 3},
)


@pytest.fixture
def write(tmp_path):
    """`write(groups, **metadata)`: a rollout folder of them."""

    def make(groups, **metadata):
        rollouts.write(tmp_path / "source", groups, writer="w", metadata=metadata)
        return tmp_path / "source"

    CALLS.clear()
    return make


text_group = functools.partial(groups.text_group, texts=("2", "1+1=2"), prompt="1+1=")


def expected(group, temperature=1.0):
    return np.where(group.mask, -(group.tokens + 1.0) * temperature, 0).astype(np.float32)


def test_text_gets_tokens_and_log_probs(write, tmp_path, monkeypatch):
    """Ten text-only groups, of which one was sampled at another temperature."""
    monkeypatch.setattr(module, "GROUPS_AT_ONCE", 8)
    groups = [text_group(n, temperature=0.5 if n == 4 else 1.0, extra={"n": n}) for n in range(10)]
    folder, told = write(groups, contains=["gsm8k/test"]), []
    rescore(folder, tmp_path / "out", SCORER, done=told.append)
    copy = rollouts.read(tmp_path / "out")
    own = dict.fromkeys(("prompt_tokens", "tokens", "lengths", "mask", "behavior_logprobs"))
    own["logprob_dtype"] = ""
    for before, group in zip(groups, copy, strict=True):
        texts = [token for text in group.texts for token in TOKENIZER.encode_completion(text)]
        assert group.tokens.tolist() == texts and group.lengths.tolist() == [2, 6]
        np.testing.assert_array_equal(group.behavior_logprobs, expected(group, before.temperature))
        assert group.logprob_dtype == "bfloat16" and dataclasses.replace(group, **own) == before
    metadata = copy.datasets[0].metadata
    assert (metadata["tokenizer"], copy.contains) == (TOKENIZER.fingerprint, {"gsm8k/test"})
    (step,) = metadata["history"]
    assert (step["as"], step["dtype"], step["model"]) == ("behavior", "bfloat16", "m")
    assert CALLS == [(4, 1.0), (1, 0.5), (3, 1.0), (2, 1.0)] and told == [8, 2]


def test_a_reference_lies_beside_what_is_there(write, tmp_path):
    role = "reference"
    field = "ref_logprobs"
    more = {"mask": [1, 1, 0, 1, 0, 1, 1], "sampling_logprobs": np.full(7, -0.5)}
    before = packed_group(0, temperature=0.7, **more)
    rescore(write([before]), tmp_path / "out", SCORER, role=role)
    (group,) = rollouts.read(tmp_path / "out")
    np.testing.assert_array_equal(getattr(group, field), expected(before, 0.7))
    assert dataclasses.replace(group, **{field: None}) == before
    rescore(tmp_path / "out", tmp_path / "again", SCORER, role=role, temperature=2.0, replace=True)
    (again,) = rollouts.read(tmp_path / "again")
    np.testing.assert_array_equal(getattr(again, field), expected(before, 2.0))
    assert again.temperature == 0.7


def test_new_behaviour_log_probs_take_the_old_policys_with_them(write, tmp_path):
    """At another temperature, which becomes the group's: it is the one that its behaviour
    log-probs are of.
    """
    old = {"sampling_logprobs": np.full(7, -0.5), "policy_logprobs": np.full(7, -9.0)}
    folder = write([packed_group(0, temperature=0.7, extra={"a": 1}, **old)])
    rescore(folder, tmp_path / "out", SCORER, temperature=1.5, replace=True)
    (group,) = rollouts.read(tmp_path / "out")
    np.testing.assert_array_equal(group.behavior_logprobs, expected(group, 1.5))
    assert group.sampling_logprobs is group.policy_logprobs is None and group.temperature == 1.5
    assert group.extra == {"a": 1, "sampled_temperature": 0.7}


OTHERS = {"texts": ["1", "2", "3"], "tokenizer": "another"}


@pytest.mark.parametrize(
    "request_, fields, named",
    [
        ({}, {}, "g0 .*behavior_logprobs"),
        ({"role": "reference"}, OTHERS, "g0 .*reference"),
        ({"replace": True}, {"temperature": 0.0}, "g0 .*temperature"),
        ({"replace": True}, {"tokens": [1, 2, 3, 16, 5, 6, 7]}, "g0 .*token 16, .* 15"),
        ({"replace": True}, {"lengths": (3, 4, 0)}, "g0 .*empty"),
    ],
)
def test_what_cannot_be_scored_is_named(write, tmp_path, request_, fields, named):
    metadata = {name: fields[name] for name in fields if name == "tokenizer"}
    fields = {name: fields[name] for name in fields if name != "tokenizer"}
    folder = write([dataclasses.replace(packed_group(0, **fields), prompt="1+1=")], **metadata)
    with pytest.raises(DataError, match=named):
        rescore(folder, tmp_path / "out", SCORER, **request_)
    assert not (tmp_path / "out").exists()  # the first group tells it, before anything is written
