import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from grre_jax.errors import DataError
from grre_jax.models.experts import UNKNOWN
from grre_jax.training.data.pack import BatchShape, Filling, pack

from ...groups import packed_group, played_group


@st.composite
def steps(draw, share=True):
    """A run's limits with the shape they give, and one step's groups within them."""
    prompt, new, samples, groups = (draw(st.integers(1, most)) for most in (5, 6, 5, 6))
    longer = st.integers(prompt + new, 3 * (prompt + samples * new))
    pack_length = draw(st.just(0) | longer)
    rows = draw(st.integers(0, 4))
    devices = draw(st.sampled_from([1, 2, 4]))
    shape = BatchShape.of_run(groups, samples, prompt, new, pack_length, rows, devices, share)
    made = []
    token = 1
    for number in range(draw(st.integers(1, groups))):
        lengths = draw(st.lists(st.integers(1, new), min_size=1, max_size=samples))
        end = token + draw(st.integers(1, prompt))
        tokens = np.arange(end, end + sum(lengths))
        group = packed_group(
            number,
            lengths=lengths,
            rewards=np.arange(len(lengths)) + 10 * number,
            prompt_tokens=np.arange(token, end),
            tokens=tokens,
            mask=draw(st.lists(st.integers(0, 1), min_size=len(tokens), max_size=len(tokens))),
            behavior_logprobs=-tokens.astype(float),
        )
        made.append(group)
        token = end + len(tokens)  # no token occurs twice, so each says where it came from
    return shape, made


def test_routes_stand_beside_their_tokens():
    group = packed_group(0, prompt=2, lengths=(3, 1))
    routes = np.arange(6 * 2 * 3).reshape(6, 2, 3)
    shape = dataclasses.replace(BatchShape.of_run(2, 2, 2, 3, 6, 0), routes=(2, 3))
    stored = dataclasses.replace(group, routes=routes.reshape(-1))
    assert np.array_equal(
        stored._select(np.array([False, True])).routes.reshape(-1, 2, 3), routes[[0, 1, 5]]
    )
    batch = pack([stored], shape)
    assert np.array_equal(batch.tokens[0, 0], [*group.prompt_tokens, *group.tokens])
    assert np.array_equal(batch.routes[0, 0], routes)
    assert (batch.routes[0, 1] == UNKNOWN).all()
    for bad in (group, dataclasses.replace(group, routes=routes[:, :1].reshape(-1))):
        with pytest.raises(DataError, match="routes"):
            pack([bad], shape)


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
        size = len(group.prompt_tokens)
        for start, stop in itertools.pairwise(group.offsets):
            # The tokens that predict each other, from the completion's last back to the prompt.
            ((row, last),) = np.argwhere(rows["tokens"] == group.tokens[stop - 1])  # only once
            path = [last]
            for _ in range(start, stop):
                path.append(rows["sources"][row, path[-1]])
            prefix = rows["prefix_ids"][row, last]
            prompt = np.flatnonzero(rows["segment_ids"][row] == prefix)
            assert prompt[-1] == path.pop()
            found = {name: array[row, [*prompt, *path[::-1]]] for name, array in rows.items()}
            own = found["segment_ids"][-1]
            count = stop - start
            for name, expected in (
                ("tokens", [*group.prompt_tokens, *group.tokens[start:stop]]),
                ("positions", np.arange(size + count)),
                ("segment_ids", [prefix] * size + [own] * count),
                ("prefix_ids", [prefix] * (size + count)),
                ("mask", [0] * size + [*group.mask[start:stop]]),
            ):
                np.testing.assert_array_equal(found[name], expected)
            expected = group.behavior_logprobs[start:stop]
            np.testing.assert_array_equal(found["old_logprobs"][size:], expected)
            assert (found["response_ids"][size:] == response).all()
            assert prefix != own and (rows["segment_ids"][row] == own).sum() == count
            assert batch.group_ids[response] == number
            response += 1
    rewards = np.concatenate([group.rewards for group in groups])
    np.testing.assert_array_equal(batch.rewards[:response], rewards)
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
    # 7 tokens were left: a prompt of 2 and a completion of 5.
    assert list(filling.add("b", 2, [9, 5, 3])) == [(0, [1]), (1, [0, 2])]
    # A copy of 5 tokens for a completion of 1 is not worth it.
    assert list(filling.add("c", 5, [1, 1])) == [(2, [0, 1])]
    assert filling.used.tolist() == [20, 14, 7]
    # A copy of 2 tokens for a completion of 2 is, of 4 for one of 2 not.
    filling = Filling(3, 20, share=True)
    assert list(filling.add("a", 4, [6, 6])) == [(0, [0, 1])]
    assert list(filling.add("b", 2, [9, 2])) == [(0, [1]), (1, [0])]
    assert list(filling.add("c", 4, [9, 2])) == [(2, [0, 1])]


@pytest.mark.parametrize(
    "group, options, named",
    [
        ({}, {"stored": ("ref_logprobs",)}, "g0: .*ref_logprobs"),
        ({}, {"components": ("length",)}, "g0 .*'length'"),
        ({"behavior_logprobs": None}, {}, "g0: .*behavior_logprobs"),
        ({"lengths": (1,) * 4}, {}, "g0.* 4 "),
        ({"lengths": (1, 11, 1)}, {}, "pack_length"),
        ({"lengths": (7, 7)}, {}, "g0"),
    ],
)
def test_a_group_that_lacks_something_or_is_beyond_the_limits_is_named(group, options, named):
    shape = BatchShape(responses=3, pack_length=13, rows=1, micro_batches=1)
    with pytest.raises(DataError, match=named):
        pack([packed_group(0, **group)], shape, **{"behavior_logprobs": not options} | options)
    with pytest.raises(ValueError, match="pack_length"):
        BatchShape.of_run(4, 4, prompt_tokens=10, new_tokens=6, pack_length=15, rows=0)


def test_stored_log_probs_and_components_stand_beside_their_completions():
    parts = {"a": [1, 2, 3], "b": [4, 5, 6]}
    group = packed_group(0, ref_logprobs=-np.arange(7.0), components=parts)
    shape = BatchShape.of_run(1, 3, 3, 4, 10, 0)
    batch = pack([group], shape, stored=("ref_logprobs",), components=("b", "a"))
    assert [row.tolist() for row in batch.components] == [parts["b"], parts["a"]]
    np.testing.assert_array_equal(batch.ref_logprobs[batch.mask], group.ref_logprobs)


def test_the_age_of_a_response_is_the_mean_over_its_sampled_tokens():
    lengths = (2, 4, 1)
    swapped = packed_group(0, lengths=lengths, policy_version=np.full(3, 2))
    swapped.token_versions = np.array([3, 2, 4, 4, 5, 9, 0], np.int32)
    swapped.mask = np.arange(7) != 5
    whole = packed_group(1, lengths=lengths, policy_version=np.full(3, 4))
    shape = BatchShape.of_run(2, 3, 3, 4, 0, 0, 1)
    ages = pack([swapped, whole], shape, learner_version=10).staleness
    np.testing.assert_allclose(ages[:6], [7.5, 10 - 13 / 3, 10, 6, 6, 6])


def test_experts_alone_need_no_log_probs():
    shape = BatchShape.of_run(2, 3, 3, 2, 0, 0)
    missing = {"lengths": (1, 2, 1), "behavior_logprobs": None}
    own = packed_group(0, lengths=(1, 2, 1))
    batch = pack([own, packed_group(1, **missing, is_expert=[True] * 3)], shape, expert=True)
    assert batch.expert.tolist() == [False] * 3 + [True] * 3
    assert not batch.old_logprobs[batch.mask & (batch.response_ids > 2)].any()
    for expert, marks in ((True, [True, False, True]), (False, [True] * 3)):
        with pytest.raises(DataError, match="behavior_logprobs"):
            pack([own, packed_group(1, **missing, is_expert=marks)], shape, expert=expert)


def test_turns_are_packed_with_their_rewards():
    shape = BatchShape.of_run(2, 3, 4, 8, 0, 0, turns=2)
    groups = [packed_group(0, prompt=3, lengths=(2, 1, 3)), played_group(1)]
    batch = pack(groups, shape, behavior_logprobs=False, turns=True)
    arrays = (batch.response_ids, batch.tokens, batch.turns)
    found = np.stack([x[batch.mask & (batch.response_ids > 2)] for x in arrays])
    assert found.tolist() == [[3, 3, 4, 4], [5, 3, 1, 2], [0, 1, 0, 1]]
    assert (~np.isnan(batch.turn_rewards)).sum(1).tolist() == [1, 1, 1, 2, 2, 0]
    assert batch.turn_rewards[3:5].tolist() == [[0, 1], [0, 0]]
    unknown = dict.fromkeys(("turn_counts", "turn_tokens", "turn_texts", "turn_rewards"), [])
    few = BatchShape.of_run(2, 3, 4, 8, 0, 0, turns=1)
    for limits, field, fields in ((few, "sampling.max_turns", {}), (shape, "turn_counts", unknown)):
        with pytest.raises(DataError, match=field):
            pack([played_group(1, **fields)], limits, behavior_logprobs=False, turns=True)
