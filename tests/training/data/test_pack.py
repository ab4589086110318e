import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grre_jax.errors import DataError
from grre_jax.training.data.pack import BatchShape, pack
from grre_jax.training.data.row_filling import Filling

from ...groups import packed_group, played_group


@st.composite
def steps(draw, share=True):
    """A run's limits with the shape they give, and one step's groups within them."""
    prompt, new, samples, groups = (draw(st.integers(1, most)) for most in (5, 6, 5, 6))
    longer = st.integers(prompt + new, 3 * (prompt + samples * new))
    pack_length = draw(st.one_of(st.just(0), longer))
    rows, devices = draw(st.integers(0, 4)), draw(st.sampled_from([1, 2, 4]))
    shape = BatchShape.of_run(groups, samples, prompt, new, pack_length, rows, devices, share)
    made, token = [], 1
    for number in range(draw(st.integers(1, groups))):
        lengths = draw(st.lists(st.integers(1, new), min_size=1, max_size=samples))
        size, total = draw(st.integers(1, prompt)), sum(lengths)
        tokens = np.arange(token + size, token + size + total)
        group = packed_group(
            number,
            lengths=lengths,
            rewards=np.arange(len(lengths)) + 10 * number,
            prompt_tokens=np.arange(token, token + size),
            tokens=tokens,
            mask=draw(st.lists(st.integers(0, 1), min_size=total, max_size=total)),
            behavior_logprobs=-tokens.astype(float),
        )
        made.append(group)
        token += size + total  # no token occurs twice, so each says where it came from
    return shape, made


@settings(max_examples=150, deadline=None)
@given(steps())
def test_packing_loses_nothing_and_says_where_everything_is(step):
    """Within the run's limits every step fits its shape (else `pack` raises), and each array
    describes the same packing.
    """
    shape, groups = step
    batch = pack(groups, shape)
    assert batch.tokens.shape == (shape.micro_batches, shape.rows, shape.pack_length)
    names = ("tokens", "positions", "segment_ids", "prefix_ids", "sources", "response_ids")
    names += ("mask", "old_logprobs")
    rows = {name: getattr(batch, name).reshape(-1, shape.pack_length) for name in names}
    padding = rows["segment_ids"] == 0
    assert not rows["tokens"][padding].any() and not rows["mask"][padding].any()
    assert (rows["sources"] == np.arange(shape.pack_length))[padding].all()
    filled = (~padding).any(axis=1)
    assert not (filled[1:] & ~filled[:-1]).any()  # empty rows come last

    response = 0
    for number, group in enumerate(groups):
        prompt = group.prompt_tokens.tolist()
        for k in range(group.num_completions):
            span = slice(group.offsets[k], group.offsets[k + 1])
            expected = group.tokens[span]
            ((row, start),) = np.argwhere(rows["tokens"] == expected[0])  # once, and only once
            place = slice(start, start + len(expected))
            # Its own segment, which continues the segment of a prompt in this row; its first token
            # is predicted by that prompt's last.
            segment = rows["segment_ids"][row]
            prefix = rows["prefix_ids"][row, start]
            shared = np.flatnonzero(segment == prefix)
            for name, found in (
                ("tokens", expected),
                ("response_ids", response + k),
                ("positions", len(prompt) + np.arange(len(expected))),
                ("prefix_ids", prefix),
                ("sources", [shared[-1], *range(start, start + len(expected) - 1)]),
                ("mask", group.mask[span]),
                ("old_logprobs", group.behavior_logprobs[span]),
            ):
                np.testing.assert_array_equal(rows[name][row, place], found)
            assert (segment == segment[start]).sum() == len(expected)
            for name, found in (
                ("tokens", prompt),
                ("positions", np.arange(len(prompt))),
                ("prefix_ids", prefix),
                ("mask", False),
            ):
                assert (rows[name][row, shared] == found).all()
            assert len(shared) == len(prompt) and shared[-1] < start
        ids = slice(response, response + group.num_completions)
        assert (batch.group_ids[ids] == number).all()
        np.testing.assert_array_equal(batch.rewards[ids], group.rewards)
        response += group.num_completions
    assert (batch.group_ids[response:] == -1).all() and len(batch.group_ids) == shape.responses
    there = {token for group in groups for token in (*group.prompt_tokens, *group.tokens)}
    assert set(rows["tokens"][~padding]) == there


@given(steps(share=False))
def test_completions_with_prompts_of_their_own_fit_their_shape_too(step):
    shape, groups = step
    batch = pack(groups, shape)
    tokens = sum(len(g.prompt_tokens) * g.num_completions + len(g.tokens) for g in groups)
    assert batch.prefix_ids is None and (batch.segment_ids > 0).sum() == tokens


def test_a_group_is_cut_where_that_fills_more_than_a_prompt():
    filling = Filling(3, 20, share=True)
    assert list(filling.add("a", 4, [3, 3, 3])) == [(0, [0, 1, 2])]
    # 7 tokens were left: a prompt of 2 and a completion of 4.
    assert list(filling.add("b", 2, [9, 4, 3])) == [(0, [1]), (1, [0, 2])]
    # A copy of 5 tokens for a completion of 1 is not worth it.
    assert list(filling.add("c", 5, [1, 1])) == [(2, [0, 1])]
    assert filling.used.tolist() == [19, 14, 7]


def test_a_row_that_cannot_hold_one_completion_is_refused():
    with pytest.raises(ValueError, match="pack_length"):
        BatchShape.of_run(4, 4, prompt_tokens=10, new_tokens=6, pack_length=15, rows=0)


UNKNOWN = dict.fromkeys(("turn_counts", "turn_tokens", "turn_texts", "turn_rewards"), [])


@pytest.mark.parametrize(
    "groups, options, message",
    [
        ([packed_group(0)], {"stored": ("ref_logprobs",)}, "g0: .*ref_logprobs"),
        ([packed_group(0)], {"stored": ("prox_logprobs",)}, "g0: .*prox_logprobs"),
        ([packed_group(0)], {"components": ("length",)}, "'length'"),
        ([packed_group(0, behavior_logprobs=None)], {}, "behavior_logprobs"),
        ([packed_group(0, lengths=(1,) * 4)], {}, "limit of 3"),
        ([packed_group(0, lengths=(1, 11, 1))], {}, "pack_length"),
        ([packed_group(0, lengths=(1, 6)), packed_group(1, lengths=(7,))], {}, "group g1"),
        ([played_group(1)], {"turns": True}, "sampling.max_turns"),
        ([played_group(1, **UNKNOWN)], {"turns": True}, "turn_counts"),
    ],
)
def test_a_group_that_lacks_something_or_is_beyond_the_limits_is_named(groups, options, message):
    shape = BatchShape(responses=3, pack_length=13, rows=1, micro_batches=1)
    with pytest.raises(DataError, match=message):
        pack(groups, shape, **{"behavior_logprobs": not options} | options)


def test_the_age_of_a_response_is_the_mean_over_its_sampled_tokens():
    lengths = (2, 4, 1)
    swapped = packed_group(0, lengths=lengths, policy_version=np.full(3, 2))
    swapped.token_versions = np.array([3, 2, 4, 4, 5, 9, 2], np.int32)
    swapped.mask = np.arange(7) != 5
    whole = packed_group(1, lengths=lengths, policy_version=np.full(3, 4))
    shape = BatchShape.of_run(2, 3, 3, 4, 0, 0, 1)
    ages = pack([swapped, whole], shape, learner_version=10).staleness
    np.testing.assert_allclose(ages[:6], [7.5, 10 - 13 / 3, 8, 6, 6, 6])


def test_turns_are_packed_with_their_rewards():
    shape = BatchShape.of_run(2, 3, 4, 8, 0, 0, turns=3)
    groups = [packed_group(0, prompt=3, lengths=(2, 1, 3)), played_group(1)]
    batch = pack(groups, shape, behavior_logprobs=False, turns=True)
    where = [[] for _ in range(shape.responses)]
    for token, turn, response in zip(
        *(x[batch.mask] for x in (batch.tokens, batch.turns, batch.response_ids)), strict=True
    ):
        where[response].append((token, turn))
    assert all(turn == 0 for k in range(3) for _, turn in where[k])
    assert where[3:5] == [[(5, 0), (3, 1)], [(1, 0), (2, 1)]]
    counts = (~np.isnan(batch.turn_rewards)).sum(1)
    assert counts.tolist() == [1, 1, 1, 2, 2, 0]
    assert batch.turn_rewards[3:5, :2].tolist() == [[0, 1], [0, 0]]
    plain = pack(groups, shape, behavior_logprobs=False)
    assert plain.turns is plain.turn_rewards is None
