"""Loss and gradient of every algorithm and variant against the float64 NumPy reference, which
was written from the formulas without this package.
"""

import itertools

import numpy as np
import pytest

from grre_jax import objectives

from ..all_objectives import REQUIRED
from ..drawn_cases import CLOSE, GROUPS, case_of
from ..reference import numpy_reference as reference

pytestmark = pytest.mark.usefixtures("float64", "without_metrics")

STEP = 1e-30  # of a complex-step difference


def has_tokens(case):
    """Whether every group has some, as formulas with lengths take for granted."""
    return {*case.groups[case.live.any(1)]} == {*GROUPS} - {-1}


DRAWN = filter(has_tokens, (case_of(seed, CLOSE) for seed in itertools.count()))
CASES = list(itertools.islice(DRAWN, 12))
CASES.append(CASES[0].replace(rewards=np.zeros(len(GROUPS))))
GENERAL = [case for case in CASES if case.general]


def close(actual, expected, what):
    largest = max(np.abs(expected).max(initial=0), 1e-6)
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-9 * largest, err_msg=what)


def check_dropped(case, dropped):
    """In each group as many below the mean were dropped as there were more of them than of
    others.
    """
    for group in {*GROUPS} - {-1}:
        members = case.groups == group
        rewards = case.rewards[members]
        negative = rewards < rewards.mean() if np.ptp(rewards) else np.zeros(len(rewards), bool)
        assert not np.any(dropped[members] & ~negative)
        assert dropped[members].sum() == max(2 * negative.sum() - len(rewards), 0)


@pytest.fixture
def compare(gradient):
    """`compare(name, variant, cases, **options)`: the objective and its formula on each case."""

    def check(name, variant, cases=CASES, **options):
        options = REQUIRED.get(name, {}) | options
        objective = objectives.algorithm(name, variant=variant, **options)
        for index, case in enumerate(cases):
            shaped = gradient.shaped(objective, case, index)
            found, metrics = gradient.both(objective, case, shaped)
            direction = np.random.default_rng(index).normal(size=case.old.shape)
            moving = case.logprobs + 1j * STEP * direction
            advantages, loss = reference.evaluate(
                name, variant, case, options, shaped.dropped, moving
            )
            live = case.groups >= 0
            if name == "red_drop":
                check_dropped(case, shaped.dropped)
            what = f"{name} {variant} case {index}"
            close(np.asarray(shaped.advantages)[live], advantages[live], what)
            slope = np.append(found, np.sum(found * direction))
            close(slope, np.append(found, np.imag(loss) / STEP), what)
            close(metrics["loss"], np.real(loss), what)

    return check


# Where nine tenths of the defaults would be no sensible other numbers.
OTHER = {
    "clip_cov": {"covariance_fraction": 0.3},
    "kl_cov": {"covariance_fraction": 0.3},
    "dapo": {"max_length": 5.0, "overlong_buffer": 2.0},
}


def other_numbers(name, variant):
    """Numbers that are not the defaults."""
    given = reference.ROWS[name, variant].options.items()
    numbers = {key: 0.9 * value if value else 0.6 for key, value in given if type(value) is float}
    return numbers | OTHER.get(name, {})


@pytest.mark.parametrize("name, variant", reference.ROWS)
def test_loss_and_gradient_are_the_formula(compare, name, variant):
    # Where tokens stand equally high, which of them are chosen is free.
    cases = GENERAL if name in ("clip_cov", "kl_cov") else CASES
    compare(name, variant, cases)
    compare(name, variant, cases[:5], **other_numbers(name, variant))


def test_every_algorithm_and_variant_is_compared():
    rows = {row.name: row.variants for row in objectives.algorithm_table()}
    assert rows == {
        name: tuple(variant for other, variant in reference.ROWS if other == name) for name in rows
    }


TIS = {"correction": "tis", "correction_cap": 1.4}
BOUNDED = {"correction": "bounded_sequence", "correction_low": 0.7, "correction_high": 1.6}
PRODUCT = {"filter": "product", "sequence_low": 0.6, "sequence_high": 1.7}
KL = {"kl_coef": 0.2, "kl_estimator": "k2"}
ALONE = {"singleton_baseline": "none"}
# Parts in rows that do not have them.
VARIED = [
    ("reinforce mean", ALONE | {"advantage": "rloo"}),
    ("gspo population", {"aggregation": "token"}),
    ("chord mix", {"aggregation": "response"}),
    ("dapo default", {"aggregation": "group"}),
    ("red_drop default", {"denominator": "kept"}),
    # A correction or a filter leaves a penalty alone.
    ("sapo default", BOUNDED | KL),
    ("gspo population", PRODUCT | KL),
    # Every token of a response has the mean correction.
    ("gspo population", TIS),
    ("gmpo default", TIS),
    ("grpo population", KL | {"kl_estimator": "k1"}),
    ("grpo population", KL | {"kl_estimator": "k3"}),
    ("grpo population", KL | {"kl_estimator": "k3_is", "kl_reference": "behavior"}),
    ("reinforce mean", ALONE | {"advantage": "group_std", "std_epsilon": 1e-3}),
    ("reinforce mean", ALONE | {"advantage": "opo"}),
]


@pytest.mark.parametrize("row, options", VARIED)
def test_a_part_in_another_row_is_its_formula(compare, row, options):
    compare(*row.split(), CASES[::2], **options)


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("name", ["clip_cov", "kl_cov"])
def test_equal_covariances_choose_no_more_tokens(compare, name, first):
    """Tokens that tie for the last place are left out; those that tie for the first are chosen,
    and nothing else then.
    """
    live = GENERAL[0].live
    logprobs = np.where(live, -0.125, np.nan)
    if first:  # a single token that stands above a tie
        logprobs[tuple(np.argwhere(live)[0])] = -0.5
    case = GENERAL[0].replace(old=np.where(live, -0.25, np.nan), logprobs=logprobs)
    compare(name, "default", [case], covariance_fraction=0.1)
    compare(name, "default", GENERAL[:1], covariance_fraction=1.0)
