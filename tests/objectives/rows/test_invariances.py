"""The invariances I9, in one objective of every kind, near the policy that sampled. That padding
and what it holds change nothing is in test_formulas, whose reference never sees it.

I11 is here too where it takes the same program: compiling is what takes time.
"""

import itertools
from dataclasses import replace
from functools import partial

import jax
import numpy as np
import pytest
from hypothesis import assume, given, settings, strategies as st

from ..all_objectives import every_objective
from ..conftest import assert_close
from ..drawn_cases import GROUPS, NEAR, TIME, WHOLE
from .test_finite import check_finite

pytestmark = pytest.mark.usefixtures("float64")
examples = settings(max_examples=10, deadline=None, derandomize=True, database=None)
ROWS, TOKENS = len(GROUPS), len(GROUPS) * TIME
CHOSEN = every_objective()
# One of every kind of statistic, term, level and sum. By the power of c that the gradient of
# rewards c r is in, where what is added to a standard deviation is scaled too.
SCALING = {
    "bapo-default": 0,
    "clip_cov-default": 0,
    "dpo-default": 0,
    "gepo-default": 0,
    "grpo-batch": 0,
    "m2po-default": 0,
    "red_drop-default": 1,
}
KINDS = (*SCALING, "gvpo-default")
# These choose tokens, or bounds, by order or by balance over the batch: where two stand equally
# high the choice is rounding's.
CHOOSING = ("bapo-default", "clip_cov-default", "m2po-default")


@pytest.fixture(scope="module")
def computed(gradient):
    """`computed(name, case)`: gradient, advantages and metrics; one program for all layouts of the
    tokens.
    """

    def compute(objective, case, order=slice(None), index=None, part=None):
        everything = np.arange(TOKENS)
        index, part = (everything if places is None else places for places in (index, part))
        keys = jax.random.split(jax.random.key(1), ROWS)[order]
        shaped = gradient.shaped(objective, case, keys)
        slope, metrics = gradient.both(objective, case, shaped, index, part)
        return slope, np.asarray(shaped.advantages), metrics

    return compute


def shifting_rewards(compute, case, random):
    """Adding a constant to a group's rewards changes nothing."""
    added = random.integers(-1_000_000, 1_000_000, 12)[case.groups]
    rewards = np.where(case.groups >= 0, case.rewards + added, case.rewards)
    return compute(case.replace(rewards=rewards)), compute(case)


def permuting_responses_and_groups(compute, case, random):
    """It permutes the gradient; with a key a response, in RED-Drop too."""
    order = random.permutation(ROWS)
    names = ("logprobs", "old", "mask", "rewards", "prox", "ref", "expert", "staleness")
    arrays = {name: getattr(case, name)[order] for name in names}
    groups = np.where(case.groups >= 0, 2_000_000 - case.groups, -5)[order]
    slope, advantages, metrics = compute(case)
    found = compute(case.replace(groups=groups, **arrays), order)
    return found, (slope[order], advantages[order], metrics)


def packing_tokens(compute, case, random):
    """In any order and with room for more at the end, they give what padded ones do."""
    order = random.permutation(TOKENS)
    live = case.live.reshape(-1)[order]
    return compute(case, index=np.append(order[live], order[~live])), compute(case)


def splitting_into_micro_batches(compute, case, random):
    """Losses, gradients and metrics of two micro-batches, given the statistics of the batch, add
    up to the batch's (maxima combine).
    """
    rows = random.permutation(ROWS)[:, None]
    halves = (rows * TIME + np.arange(TIME)).reshape(2, -1)
    # Filled with tokens that do not count: one program for all layouts.
    hidden = np.resize(np.flatnonzero(~case.live), halves.shape[1])
    first, second = (compute(case, part=np.append(half, hidden)) for half in halves)
    metrics = {}
    for name, value in first[2].items():
        combine = max if name.endswith("_max") else sum
        metrics[name] = combine((value, second[2][name]))
    return (first[0] + second[0], first[1], metrics), compute(case)


CHANGES = (permuting_responses_and_groups, packing_tokens, splitting_into_micro_batches)
CHANGED = list(itertools.product(CHANGES, KINDS))
# One divides by the standard deviation of the whole batch.
CHANGED += [(shifting_rewards, name) for name in KINDS if name != "grpo-batch"]


@pytest.mark.parametrize("change, name", CHANGED)
@examples
@given(case=NEAR, seed=st.integers(0, 2**32 - 1))
def test_i9_nothing_changes(computed, change, name, case, seed):
    assume(case.general or name not in CHOOSING)
    random = np.random.default_rng(seed)
    found, expected = change(partial(computed, CHOSEN[name]), case, random)
    assert_close(found[0], expected[0])
    assert_close(found[1], expected[1])
    for metric, value in expected[2].items():
        # How much is clipped where an advantage is 0 depends on the sign of a rounded zero.
        if case.general or not metric.startswith("clip_"):
            assert_close(found[2][metric], value)


@pytest.mark.parametrize("name", SCALING)
@examples
@given(case=NEAR, scale=st.sampled_from([0.25, 2.0, 3.0, 64.0]))
def test_i9_scaling_rewards(computed, name, case, scale):
    """Scaling rewards by c scales the gradient by c or leaves it."""
    assume(case.general or name not in CHOOSING)
    numbers = dict(CHOSEN[name].hyperparameters)
    numbers |= {key: scale * numbers[key] for key in numbers if key == "std_epsilon"}
    scaled = replace(CHOSEN[name], hyperparameters=numbers)
    slope, _, _ = computed(CHOSEN[name], case)
    found, _, _ = computed(scaled, case.replace(rewards=case.rewards * scale))
    assert_close(found, slope * scale ** SCALING[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
@settings(examples, max_examples=20)
@given(case=WHOLE)
def test_i11_no_nan_or_inf_on_the_domain(gradient, name, case):
    """In float32 and by hand: test_finite."""
    everything = np.arange(TOKENS)
    check_finite(gradient, CHOSEN[name], case, index=everything, part=everything)
