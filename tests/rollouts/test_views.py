"""Groups in a policy's own tokens, within its limits."""

import contextlib
import dataclasses

import pytest

from grre_jax import rollouts
from grre_jax.errors import DataError
from grre_jax.rollouts.views import check_limits, read_tokenised, tokenised, within_limits
from grre_jax.tasks import CharTokenizer

from ..groups import packed_group, text_group

TOKENIZER = CharTokenizer()


def test_text_becomes_tokens_and_loses_log_probs():
    """A completion that was cut gets no end token."""
    group = text_group(0, texts=("3$", "4", "5"), rewards=(1, 0, 0))
    group = dataclasses.replace(group, finish_reasons=["stop", "stop", "length"])
    made = tokenised(group, TOKENIZER)
    assert made.prompt_tokens.tolist() == TOKENIZER.encode_prompt("1+2>")
    assert TOKENIZER.decode(made.tokens) == "3$4$5"
    assert made.lengths.tolist() == [2, 2, 1] and made.mask.tolist() == [1] * 5
    assert made.behavior_logprobs is made.sampling_logprobs is made.policy_logprobs is None
    own = dict.fromkeys(("prompt_tokens", "tokens", "lengths", "mask"))
    assert dataclasses.replace(made, **own) == group


def test_experts_of_other_tokens_are_not_replayed():
    group = text_group(0, prompt_tokens=[1], tokens=[3, 4, 5], lengths=[2, 1], routes=[7] * 8)
    made = tokenised(group, TOKENIZER)
    assert len(made.tokens) and not len(made.routes)


TWO = {"turn_counts": [2, 1], "turn_tokens": [0, 1, 1, 2, 0, 1], "turn_texts": [0] * 6}


@pytest.mark.parametrize(
    "fields",
    [{"mask": [1, 0, 1]}, TWO | {"turn_rewards": [0] * 3}, {"extra": {"prompt_messages": []}}],
)
def test_a_group_whose_text_does_not_say_its_tokens_is_not_tokenised_anew(tmp_path, fields):
    group = text_group(0, prompt_tokens=[1], tokens=[3, 4, 5], lengths=[2, 1], **fields)
    for name in ("another", TOKENIZER.fingerprint):
        rollouts.write(tmp_path / name, [group], writer="w", metadata={"tokenizer": name})
    with pytest.raises(DataError, match="group g0"):
        read_tokenised(rollouts.read(tmp_path / "another"), 0, TOKENIZER)
    assert read_tokenised(rollouts.read(tmp_path / TOKENIZER.fingerprint), 0, TOKENIZER) == group


@pytest.mark.parametrize(
    ("lengths", "limits", "fits", "named"),
    [
        ((2, 4, 1), (3, 4), True, None),
        ((2, 4, 1), (2, 4), False, "max_prompt_tokens"),
        ((2, 4, 1), (3, 3), False, "max_new_tokens"),
        ((2, 0, 1), (9, 9), True, "completion"),
        ((2, 4, 1), (0, 4), True, "prompt"),
    ],
)
def test_a_group_over_a_limit_is_named(lengths, limits, fits, named):
    group = packed_group(7, prompt=min(3, 9 * limits[0]), lengths=lengths)
    assert within_limits(group, *limits) is fits
    with pytest.raises(DataError, match=named) if named else contextlib.nullcontext():
        check_limits(group, *limits)
