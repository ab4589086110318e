"""The invariances I9, in every loss and every advantage that an algorithm or a variant has.

I11 is here too where it takes the same program: compiling all losses is what takes time.

Rewards lie on a grid on which a group's sums are exact, so that neither their order nor a constant
that is added changes an advantage by a bit. Gradients are therefore compared entry by entry to
1e-10 of the entry, over forty orders of magnitude and more; what else some algorithms subtract is
said in `all_objectives.rounding`.
"""

import os
import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grre_jax.objectives.parts.advantages import overlong

from ..all_objectives import (
    KINDS,
    Together,
    by_group,
    check_metrics,
    check_same,
    distinct,
    response_keys,
)
from .test_finite import check_finite

pytestmark = pytest.mark.usefixtures("float64")
examples = settings(max_examples=60, deadline=None, derandomize=True, database=None)
data = st.data()

# Whatever constant is added to a group's rewards, these do not see it.
SHIFT_INVARIANT = {
    "group_mean",
    "group_std",
    "group_std_sample",
    "rloo",
    "opo",
    "whitened",
    "pass_at_k",
    "asymre",
    "none",
    "red_drop",
}
SHIFT_INVARIANT |= {"log_mean_exp", "log_mean_exp_leave_one_out", "optimal_value"}
# Which power of c the advantages of c r are in, when what is added to a standard deviation is
# scaled too.
DEGREES = dict.fromkeys(("group_mean", "rloo", "opo", "gpg", "red_drop"), 1)
DEGREES |= dict.fromkeys(
    ("group_std", "group_std_sample", "batch_std", "pass_at_k", "maxrl", "sign", "positive"), 0
)
# Not linear in the advantages.
INHOMOGENEOUS_TERMS = {
    "covariance_penalized",
    "expert_mix",
    "squared_consistency",
    "variance",
    "optimal_value_regression",
    "behavior_regression",
}


def check_shift(together, within, case, shifts):
    """Adding a constant to a group's rewards changes nothing."""
    shifted = case.replace(
        rewards=case.rewards + np.where(case.groups >= 0, shifts[case.groups % len(shifts)], 0)
    )
    compared = [
        objective.advantage.name in SHIFT_INVARIANT and objective.singleton_baseline == "mean"
        for objective in together.chosen.values()
    ]
    check_same(together, within, case, together(shifted), together(case), np.array(compared))


def permuted(case, order):
    """The case with its responses in another order and its groups renamed."""
    names = ("logprobs", "old", "mask", "rewards", "prox", "ref", "expert", "staleness")
    groups = case.groups[order]
    return case.replace(
        groups=np.where(groups >= 0, 2_000_000 - groups, -5),
        **{name: getattr(case, name)[order] for name in names},
    )


def check_permutation(together, within, case, order):
    """Permuting responses (so groups too) and renaming groups permutes the gradient; with a key
    a response, in RED-Drop too.
    """
    losses, slopes, advantages, metrics = together(case)
    found = together(permuted(case, order), keys=response_keys(case)[order])
    check_same(
        together,
        within,
        permuted(case, order),
        found,
        (losses, slopes[:, order], advantages[:, order]),
    )
    check_metrics(together, within, case, found[3], metrics)


def check_padding(together, within, case, rows, column, garbage):
    """Padding rows and columns, wherever they stand and whatever they hold, change nothing."""
    responses, time = case.mask.shape
    columns = np.delete(np.arange(time + 1), column)

    def pad(values, fill):
        tall = np.full((responses + 4, *values.shape[1:]), fill, values.dtype)
        tall[rows] = values
        if values.ndim == 1:
            return tall
        wide = np.full((responses + 4, time + 1), fill, values.dtype)
        wide[:, columns] = tall
        return wide

    clean = {
        name: np.where(case.live, getattr(case, name), 0)
        for name in ("logprobs", "old", "prox", "ref")
    }
    fills = dict(zip(clean, garbage, strict=False))
    dirty = {
        name: pad(np.where(case.live, values, fills[name]), fills[name])
        for name, values in clean.items()
    }
    mask = pad(case.mask, True)
    mask[rows, column] = False
    padded = case.replace(
        mask=mask,
        rewards=pad(np.where(case.groups >= 0, case.rewards, garbage[4]), garbage[4]),
        groups=pad(case.groups, -1),
        expert=pad(case.expert, True),
        staleness=pad(case.staleness, garbage[4]),
        **dirty,
    )
    case = case.replace(rewards=np.where(case.groups >= 0, case.rewards, 0), **clean)
    keys = np.zeros((responses + 4, 2), np.uint32)
    keys[rows] = response_keys(case)
    losses, slopes, advantages, metrics = together(padded, keys=keys)
    expected = together(case)
    check_same(together, within, case, (losses, slopes[:, rows][:, :, columns]), expected)
    check_metrics(together, within, case, metrics, expected[3])
    assert (
        np.count_nonzero(slopes) == np.count_nonzero(slopes[:, rows][:, :, columns])
        and not advantages[:, padded.groups < 0].any()
    )


def check_packed(together, within, case, order, apart):
    """Packed tokens give what padded ones do: those of a response together, or all `apart`, with
    room for more at the end.
    """
    flat = np.argsort(
        order.argsort()[np.arange(case.mask.size) // case.mask.shape[1]], kind="stable"
    )
    flat = apart if apart is not None else flat
    dead = np.flatnonzero(~case.live.reshape(-1))
    live = case.live.reshape(-1)[flat]
    index = np.concatenate([flat[live], flat[~live], np.resize(dead, 12)])
    found, expected = together(case, index=index), together(case)
    check_same(together, within, case, found, expected)
    check_metrics(together, within, case, found[3], expected[3])


def check_split(together, within, case, order):
    """Losses, gradients and metrics of two micro-batches, given the statistics of the batch, add
    up to the batch's (maxima combine).
    """
    rows, time = case.mask.shape
    halves = [(part[:, None] * time + np.arange(time)).reshape(-1) for part in np.split(order, 2)]
    expected, parts = (
        together(case),
        [together(case, index=np.arange(rows * time), part=half) for half in halves],
    )
    check_same(
        together, within, case, [sum(values) for values in zip(*parts, strict=True)], expected
    )
    largest = np.array([name.endswith("_max") for name in together.metrics])
    combined = np.where(largest, np.maximum(parts[0][3], parts[1][3]), parts[0][3] + parts[1][3])
    check_metrics(together, within, case, combined, expected[3])


def check_sharding(together, within, case, worker, group, layout):
    """Eight devices of any mesh give what one does."""
    pickle.dump((group, list(together.chosen), case, layout), worker.stdin)
    worker.stdin.flush()
    found, expected = pickle.load(worker.stdout), together(case)
    check_same(together, within, case, found, expected)
    check_metrics(together, within, case, found[3], expected[3])


def check_scaling(together, within, case, scale):
    """Scaling rewards by c scales the gradient by c or leaves it; what is added to a std being
    scaled too, or seen for what it is.
    """

    def scaled(objective):
        changed = (
            {"std_epsilon": scale * objective.hyperparameters["std_epsilon"]}
            if "std_epsilon" in objective.hyperparameters
            else {}
        )
        return replace(objective, hyperparameters={**objective.hyperparameters, **changed})

    chosen = together.chosen
    larger = case.replace(rewards=case.rewards * scale)
    compared = [
        objective.advantage.name in DEGREES
        and objective.term.name not in INHOMOGENEOUS_TERMS
        and objective.weight.name != "exponential"
        and not objective.penalties
        and overlong not in objective.shaping
        and objective.singleton_baseline == "mean"
        for objective in chosen.values()
    ]
    preference = [objective.term.name.endswith("_preference") for objective in chosen.values()]
    degrees = np.array(
        [DEGREES.get(objective.advantage.name, 0) for objective in chosen.values()]
    ) * ~np.array(preference)
    factors = float(scale) ** degrees
    losses, slopes, advantages, _ = expected = together(case)
    wanted = (losses * factors, slopes * factors[:, None, None], advantages * factors[:, None])
    found = together(larger, chosen={name: scaled(objective) for name, objective in chosen.items()})
    check_same(together, within, case, found, wanted, np.array(compared))

    if "grpo-population" in chosen:
        place = list(chosen).index("grpo-population")
        std = np.sqrt(by_group(case.rewards, case.groups, np.var))
        change = 1e-6 * (1 + 1 / scale) / np.where(std > 0, std, 1) + 1e-10
        within(
            together(larger)[1][place],
            expected[1][place],
            np.abs(expected[1][place]) * change[:, None],
            1,
        )


@st.composite
def orders(draw, size):
    """Permutations of `size`, as keys to sort by: they shrink to the identity."""
    return np.argsort(
        np.frombuffer(draw(st.binary(min_size=2 * size, max_size=2 * size)), np.uint16),
        kind="stable",
    )


@pytest.fixture(scope="module")
def together(every_objective):
    return Together(distinct(every_objective(True)))


@pytest.fixture(scope="module")
def some(every_objective):
    chosen = every_objective()
    return Together({name: chosen[name] for name in KINDS})


@pytest.fixture(
    scope="module", params=["one of every kind", pytest.param("all", marks=pytest.mark.slow)]
)
def some_or_all(request):
    return request.getfixturevalue("together" if request.param == "all" else "some")


@pytest.fixture(
    scope="module",
    params=[
        "all, few rows",
        "one of every kind, many rows",
        pytest.param("all, many rows", marks=pytest.mark.slow),
    ],
)
def drawn(request, strategies):
    """What is computed together, and the strategy of its cases."""
    which, rows = request.param.split(", ")
    return (
        request.getfixturevalue("together" if which == "all" else "some"),
        strategies.long_steady if rows == "few rows" else strategies.wide,
    )


ROWS, TOKENS = 96, 288
GARBAGE = st.tuples(*[st.sampled_from([np.nan, np.inf, -np.inf, 1e300, 0.0])] * 5)


@examples
@given(data=data, shifts=st.lists(st.integers(-1_000_000, 1_000_000), min_size=5, max_size=5))
def test_i9_shifting_rewards(drawn, assert_within, data, shifts):
    together, cases = drawn
    check_shift(together, assert_within, data.draw(cases), np.array(shifts, float))


@examples
@given(data=data)
def test_i9_permuting_responses_and_groups(drawn, assert_within, data):
    together, cases = drawn
    case = data.draw(cases)
    check_permutation(together, assert_within, case, data.draw(orders(len(case.groups))))


@examples
@given(data=data, order=orders(ROWS + 4), column=st.integers(0, 3), garbage=GARBAGE)
def test_i9_padding_amount_and_content(
    some_or_all, assert_within, strategies, data, order, column, garbage
):
    check_padding(
        some_or_all,
        assert_within,
        data.draw(strategies.wide),
        np.sort(order[:ROWS]),
        column,
        garbage,
    )


@examples
@given(data=data, order=orders(ROWS), apart=st.none() | orders(TOKENS))
def test_i9_packed_or_padded(some_or_all, assert_within, strategies, data, order, apart):
    check_packed(some_or_all, assert_within, data.draw(strategies.wide), order, apart)


@examples
@given(data=data, order=orders(ROWS))
def test_i9_splitting_into_micro_batches(some_or_all, assert_within, strategies, data, order):
    check_split(some_or_all, assert_within, data.draw(strategies.wide), order)


@examples
@given(data=data, scale=st.sampled_from([0.25, 2.0, 3.0, 64.0]))
def test_i9_scaling_rewards(drawn, assert_within, data, scale):
    together, cases = drawn
    check_scaling(together, assert_within, data.draw(cases), scale)


@settings(examples, max_examples=100)
@given(data=data)
def test_i11_no_nan_or_inf_on_the_domain(together, strategies, data):
    """In float32 and by hand: test_finite."""
    check_finite(together, data.draw(strategies.long))


@pytest.fixture(scope="module")
def eight_devices():
    """Starts the process that computes on eight devices."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"
    with subprocess.Popen(
        [sys.executable, "-m", "tests.objectives.eight_devices"],
        cwd=Path(__file__).parents[3],
        env=os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as worker:
        yield worker
        worker.stdin.close()


# Along data alone by hand.
@pytest.mark.parametrize(
    "layout", [pytest.param("data", marks=pytest.mark.slow), "data, fsdp and tensor"]
)
@settings(examples, max_examples=25)
@given(data=data)
def test_i9_sharding_over_any_mesh(some, eight_devices, assert_within, strategies, data, layout):
    check_sharding(some, assert_within, data.draw(strategies.wide), eight_devices, "some", layout)
