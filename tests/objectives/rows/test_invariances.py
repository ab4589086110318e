"""The invariances I9, in one objective of every kind, near the policy that sampled. That padding
and what it holds change nothing is in test_formulas, whose reference never sees it.

I11 is here too where it takes the same program: compiling is what takes time.
"""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from ..all_objectives import (
    KINDS,
    Together,
    check_metrics,
    check_same,
    every_objective,
    response_keys,
)
from ..drawn_cases import GROUPS, NEAR, TIME, WHOLE
from .test_finite import check_finite

pytestmark = pytest.mark.usefixtures("float64")
examples = settings(max_examples=30, deadline=None, derandomize=True, database=None)
ROWS = len(GROUPS)

# The power of c that the gradient of rewards c r is in, where what is added to a standard deviation
# is scaled too.
DEGREES = dict.fromkeys(
    (
        "bapo-default",
        "clip_cov-default",
        "dpo-default",
        "gepo-default",
        "grpo-batch",
        "m2po-default",
    ),
    0,
)
DEGREES |= {"red_drop-default": 1}


@pytest.fixture(scope="module")
def some():
    """One of every kind."""
    chosen = every_objective()
    return Together({name: chosen[name] for name in KINDS})


def orders(size):
    """Permutations of `size`."""
    return st.integers(0, 2**32 - 1).map(lambda seed: np.random.default_rng(seed).permutation(size))


@examples
@given(case=NEAR, shifts=st.lists(st.integers(-1_000_000, 1_000_000), min_size=5, max_size=5))
def test_i9_shifting_rewards(some, case, shifts):
    """Adding a constant to a group's rewards changes nothing, unless they are divided by the
    standard deviation of the whole batch.
    """
    added = np.where(case.groups >= 0, np.array(shifts, float)[case.groups % 5], 0)
    compared = np.array([name != "grpo-batch" for name in some.chosen])
    found = some(case.replace(rewards=case.rewards + added))
    check_same(some, case, found[:3], some(case), compared)


def permuted(case, order):
    """The case with its responses in another order and its groups renamed."""
    names = ("logprobs", "old", "mask", "rewards", "prox", "ref", "expert", "staleness")
    groups = case.groups[order]
    return case.replace(
        groups=np.where(groups >= 0, 2_000_000 - groups, -5),
        **{name: getattr(case, name)[order] for name in names},
    )


@examples
@given(case=NEAR, order=orders(ROWS))
def test_i9_permuting_responses_and_groups(some, case, order):
    """It permutes the gradient; with a key a response, in RED-Drop too."""
    losses, slopes, advantages, metrics = some(case)
    *found, found_metrics = some(permuted(case, order), keys=response_keys(case)[order])
    check_same(some, case, found, (losses, slopes[:, order], advantages[:, order]))
    check_metrics(some, case, found_metrics, metrics)


LENGTH = ROWS * TIME + 12


def filled(places, case):
    """[LENGTH] places, and tokens that do not count: one program for all layouts."""
    hidden = np.flatnonzero(~case.live.reshape(-1))
    return np.append(places, np.resize(hidden, LENGTH - len(places)))


@examples
@given(case=NEAR, order=orders(ROWS), apart=st.none() | orders(ROWS * TIME))
def test_i9_packed_or_padded(some, case, order, apart):
    """Packed tokens give what padded ones do: those of a response together, or all `apart`, with
    room for more at the end.
    """
    together = (order[:, None] * TIME + np.arange(TIME)).reshape(-1)
    flat = together if apart is None else apart
    live = case.live.reshape(-1)[flat]
    index = filled(np.append(flat[live], flat[~live]), case)
    found, expected = some(case, index=index, part=np.arange(LENGTH)), some(case)
    check_same(some, case, found[:3], expected)
    check_metrics(some, case, found[3], expected[3])


@examples
@given(case=NEAR, order=orders(ROWS))
def test_i9_splitting_into_micro_batches(some, case, order):
    """Losses, gradients and metrics of two micro-batches, given the statistics of the batch, add
    up to the batch's (maxima combine).
    """
    tokens = (order[:, None] * TIME + np.arange(TIME)).reshape(2, -1)
    index = filled(np.arange(ROWS * TIME), case)
    first, second = (some(case, index=index, part=filled(half, case)) for half in tokens)
    expected = some(case)
    check_same(some, case, [first[0] + second[0], first[1] + second[1]], expected)
    largest = np.array([name.endswith("_max") for name in some.metrics])
    combined = np.where(largest, np.maximum(first[3], second[3]), first[3] + second[3])
    check_metrics(some, case, combined, expected[3])


def scaled(objective, scale):
    """The objective with what is added to a standard deviation scaled."""
    numbers = objective.hyperparameters
    changed = {name: scale * numbers[name] for name in numbers if name == "std_epsilon"}
    return replace(objective, hyperparameters={**numbers, **changed})


@examples
@given(case=NEAR, scale=st.sampled_from([0.25, 2.0, 3.0, 64.0]))
def test_i9_scaling_rewards(some, case, scale):
    """Scaling rewards by c scales the gradient by c or leaves it."""
    factors = np.array([scale ** DEGREES.get(name, 0.0) for name in some.chosen])
    losses, slopes, *_ = some(case)
    found = some(
        case.replace(rewards=case.rewards * scale),
        chosen={name: scaled(objective, scale) for name, objective in some.chosen.items()},
    )
    expected = (losses * factors, slopes * factors[:, None, None])
    compared = np.isin(list(some.chosen), list(DEGREES))
    check_same(some, case, found[:2], expected, compared)


@settings(examples, max_examples=100)
@given(case=WHOLE)
def test_i11_no_nan_or_inf_on_the_domain(some, case):
    """In float32 and by hand: test_finite."""
    check_finite(some, case)
