"""Groups in a policy's own tokens, within its limits."""

import pytest

from grre_jax import rollouts
from grre_jax.errors import DataError
from grre_jax.rollouts.views import check_limits, read_tokenised, tokenised, within_limits
from grre_jax.tasks import CharTokenizer

from ..groups import packed_group, text_group

TOKENIZER = CharTokenizer()


def test_text_becomes_tokens_and_loses_log_probs():
    group = tokenised(text_group(0), TOKENIZER)
    assert group.prompt_tokens.tolist() == TOKENIZER.encode_prompt("1+2>")
    assert group.tokens.tolist() == TOKENIZER.encode_completion("3$") + TOKENIZER.encode_completion(
        "4"
    )
    assert group.lengths.tolist() == [2, 2] and group.mask.tolist() == [1] * 4
    assert group.behavior_logprobs is group.sampling_logprobs is group.policy_logprobs is None
    assert (
        group.rewards.tolist() == [1, 0] and group.group_id == "g0" and group.texts == ["3$", "4"]
    )


def test_a_completion_that_was_cut_gets_no_end_token():
    group = tokenised(text_group(0, finish_reasons=["length", "stop"]), TOKENIZER)
    assert group.lengths.tolist() == [1, 2] and group.tokens.tolist() == TOKENIZER.encode_prompt(
        "3"
    ) + TOKENIZER.encode_completion("4")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"mask": [1, 0, 1]}, "has tokens that no policy generated"),
        (
            {
                "turn_counts": [2, 1],
                "turn_tokens": [0, 1, 1, 2, 0, 1],
                "turn_texts": [0] * 6,
                "turn_rewards": [0] * 3,
            },
            "was made of several turns or chat messages",
        ),
        ({"extra": {"prompt_messages": []}}, "was made of several turns or chat messages"),
    ],
)
def test_a_group_whose_text_does_not_say_its_tokens_is_not_tokenised_anew(
    tmp_path, fields, message
):
    group = text_group(0, prompt_tokens=[1], tokens=[3, 4, 5], lengths=[2, 1], **fields)
    rollouts.write(tmp_path / "r", [group], writer="w", metadata={"tokenizer": "another"})
    rollouts.write(
        tmp_path / "own", [group], writer="w", metadata={"tokenizer": TOKENIZER.fingerprint}
    )
    with pytest.raises(
        DataError, match=f"group g0 .q0. {message}.*grre rollouts import --tokenizer"
    ):
        read_tokenised(rollouts.read(tmp_path / "r"), 0, TOKENIZER)
    assert read_tokenised(rollouts.read(tmp_path / "own"), 0, TOKENIZER) == group


def test_text_that_the_tokenizer_cannot_say_names_its_group():
    with pytest.raises(DataError, match="group g0 .q0. cannot be tokenised: The character 'x'"):
        tokenised(text_group(0, texts=("x", "3")), TOKENIZER)


@pytest.mark.parametrize(
    ("lengths", "limits", "named"),
    [
        ((2, 4, 1), (3, 4), None),
        ((2, 4, 1), (2, 4), "max_prompt_tokens = 2"),
        ((2, 4, 1), (3, 3), "completion 1 .*max_new_tokens = 3"),
        ((2, 0, 1), (9, 9), "completion 1 .*empty"),
    ],
)
def test_a_group_over_a_limit_is_named(lengths, limits, named):
    group = packed_group(7, prompt=3, lengths=lengths)
    assert within_limits(group, *limits) is (named is None or "empty" in named)
    if named is None:
        check_limits(group, *limits)
        return
    with pytest.raises(DataError, match=named):
        check_limits(group, *limits)


def test_a_turn_follows_the_tokens_of_another_tokenizer(tmp_path):
    turn = {"turn_counts": [1, 1], "turn_tokens": [0, 2, 0, 1], "turn_texts": [0, 1, 0, 1]}
    group = text_group(
        0, prompt_tokens=[1], tokens=[3, 4, 5], lengths=[2, 1], **turn, turn_rewards=[1, 0]
    )
    rollouts.write(tmp_path / "r", [group], writer="w", metadata={"tokenizer": "another"})
    again = read_tokenised(rollouts.read(tmp_path / "r"), 0, TOKENIZER)
    assert [again.turns(k) for k in range(2)] == [[(0, 2)], [(0, 2)]]
    assert again.lengths.tolist() == [2, 2] and again.turn_rewards.tolist() == [1, 0]
