"""Advantages of turns: returns by hand, their groups, and the gradient that they give tokens."""

import jax
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.extra.numpy import arrays

from grre_jax import objectives

NAN = np.nan
pytestmark = pytest.mark.usefixtures("float64")


@jax.jit
def shaped(objective, rewards, groups, lengths, turn_rewards):
    """One program for what each operation would be by itself."""
    return objectives.shape_data(objective, rewards, groups, None, lengths, None, turn_rewards)


@jax.jit
def slope_and_metrics(objective, logprobs, advantages, turns):
    batch = objectives.padded_batch(
        advantages=advantages, mask=turns >= 0, groups=np.zeros(len(turns), int), turns=turns
    )

    def loss(logprobs):
        return objectives.policy_loss(objective, logprobs, batch)

    return jax.grad(loss, has_aux=True)(logprobs)


def by_turn(turn_rewards, groups, rewards=None, name="reinforce", lengths=None, **options):
    turn_rewards = np.array(turn_rewards)
    objective = objectives.algorithm(name, returns="turns", **options)
    rewards = np.nansum(turn_rewards, 1) if rewards is None else np.array(rewards)
    return shaped(objective, rewards, np.array(groups), lengths, turn_rewards)


@pytest.mark.parametrize("discount", [0.0, 0.9])
def test_returns_are_those_of_the_definition(discount):
    draw = np.random.default_rng(0)
    counts = draw.integers(1, 6, 40)
    rewards = np.where(np.arange(5) < counts[:, None], draw.normal(size=(40, 5)), NAN)
    found = by_turn(rewards, np.arange(40), discount=discount, advantage="reward").advantages
    for row, got in zip(rewards, found, strict=True):
        for turn in range(5):
            ahead = [discount ** (s - turn) * row[s] for s in range(turn, 5) if row[s] == row[s]]
            np.testing.assert_allclose(got[turn], sum(ahead), atol=1e-12)


def test_the_last_turn_has_what_the_reward_has_beyond_the_others():
    played = [[1.0, 1.0], [1.0, NAN]]
    for discount in (1.0, 0.5):
        options = {"advantage": "reward", "discount": discount}
        failed = by_turn(played, [0, 0], rewards=[0.0, 3.0], **options).advantages
        np.testing.assert_allclose(failed, [[1 - discount, -1], [3, 0]])


def test_dropped_responses_have_no_turns_and_penalties_of_length_are_the_last_turns():
    played = [[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [0.0, 0.0]]
    lengths = np.array([[1, 1], [1, 1], [4, 2], [1, 1]])
    options = {"max_length": 6, "overlong_buffer": 4}
    found = by_turn(played, [0, 0, 1, 1], name="dapo", lengths=lengths, **options)
    np.testing.assert_array_equal(found.dropped, [True, True, False, False])
    # Rewards 2 - 1 and 0: returns of the first turn are 1 and 0, of the second 0 and 0.
    expected = [[0, 0], [0, 0], [1, 0], [-1, 0]]
    np.testing.assert_allclose(found.advantages, expected, atol=1e-4)
    assert not found.advantages[:2].any()


@settings(max_examples=10)
@given(
    turn=arrays(int, (3, 6), elements=st.integers(-1, 1)),
    advantages=arrays(float, (3, 2), elements=st.floats(-3, 3)),
)
def test_tokens_have_the_advantage_of_their_turn_and_observations_none(turn, advantages):
    objective = objectives.algorithm("reinforce", returns="turns", aggregation="sum")
    slope, _ = slope_and_metrics(objective, np.where(turn >= 0, -1.0, NAN), advantages, turn)
    expected = np.take_along_axis(advantages, np.maximum(turn, 0), 1) * (turn >= 0)
    np.testing.assert_allclose(slope, -expected, atol=1e-12)
    assert not np.asarray(slope)[turn < 0].any()


def test_turns_beyond_the_first_are_left_out():
    options = {"filter": "first_turns", "most_turns": 2, "aggregation": "sum", "returns": "turns"}
    objective = objectives.algorithm("reinforce", **options)
    advantages, turns = (
        np.array([[1.0, 2, 3], [-1, -2, -3]]),
        np.array([[0, 0, 1, 2], [0, 1, 1, 1]]),
    )
    slope, metrics = slope_and_metrics(objective, -np.ones((2, 4)), advantages, turns)
    np.testing.assert_allclose(slope, [[-1, -1, -2, 0], [1, 2, 2, 2]])
    assert metrics["filtered_fraction"] == pytest.approx(1 / 8)


def test_what_has_no_turns_is_refused():
    objective = objectives.algorithm("reinforce", returns="turns")
    with pytest.raises(ValueError, match="turn_rewards"):
        objectives.advantages(objective, np.ones(2), np.zeros(2, int))
