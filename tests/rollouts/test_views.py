"""Groups in a policy's own tokens, within its limits."""

import dataclasses

import pytest

from grre_jax import rollouts
from grre_jax.errors import DataError
from grre_jax.rollouts.dataset import check_limits, read_tokenised, tokenised
from grre_jax.tasks import CharTokenizer

from ..groups import packed_group, text_group

TOKENIZER = CharTokenizer()


def test_text_becomes_tokens():
    """A completion that was cut gets no end token."""
    group = text_group(0, ("3$", "4", "5"), (1, 0, 0), finish_reasons=["stop", "stop", "length"])
    made = tokenised(group, TOKENIZER)
    assert made.prompt_tokens.tolist() == TOKENIZER.encode_prompt("1+2>")
    assert TOKENIZER.decode(made.tokens) == "3$4$5" and made.lengths.tolist() == [2, 2, 1]
    own = dict.fromkeys(("prompt_tokens", "tokens", "lengths", "mask"))
    assert dataclasses.replace(made, **own) == group


def test_tokens_of_another_tokenizer_take_their_experts_with_them():
    """They were chosen for others, though there are as many."""
    tokens = {"prompt_tokens": [1] * 4, "tokens": [3, 4], "lengths": [1, 1], "routes": [0] * 12}
    assert not len(tokenised(text_group(0, ("$", "$"), **tokens), TOKENIZER).routes)


@pytest.mark.parametrize("fields", [{"mask": [1, 0, 1]}, {"extra": {"prompt_messages": []}}])
def test_a_group_whose_text_does_not_say_its_tokens_is_not_tokenised_anew(tmp_path, fields):
    group = text_group(0, prompt_tokens=[1], tokens=[3, 4, 5], lengths=[2, 1], **fields)
    for name in ("another", TOKENIZER.fingerprint):
        rollouts.write(tmp_path, [group], writer="w", metadata={"tokenizer": name})
    reader = rollouts.read(tmp_path)
    with pytest.raises(DataError, match="group g0"):
        read_tokenised(reader, 0, TOKENIZER)
    assert read_tokenised(reader, 1, TOKENIZER) == group


@pytest.mark.parametrize(
    ("prompt", "lengths", "limits", "named"),
    [
        (3, (2, 4, 1), (2, 4), "max_prompt_tokens"),
        (3, (2, 4, 1), (3, 3), "max_new_tokens"),
        (3, (2, 0, 1), (9, 9), "empty completion"),
        (0, (2, 4, 1), (9, 9), "empty prompt"),
    ],
)
def test_a_group_over_a_limit_is_named(prompt, lengths, limits, named):
    check_limits(packed_group(7), 3, 4)
    with pytest.raises(DataError, match=named):
        check_limits(packed_group(7, prompt=prompt, lengths=lengths), *limits)
