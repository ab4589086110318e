"""Loss and gradient of every algorithm and variant against the float64 NumPy reference, which
was written from the formulas without this package.
"""

import numpy as np
import pytest

from grre_jax import objectives

from ..all_objectives import REQUIRED
from ..conftest import Gradients
from ..drawn_cases import Case
from ..reference import numpy_reference as reference

pytestmark = pytest.mark.usefixtures("float64", "without_metrics")

# Interleaved groups of four, three, one, and three of equal rewards; then padding. Response EMPTY
# has no tokens.
GROUPS = np.array([7, 3, 7, 3, 3, 11, 7, 5, 7, 5, 5, -1])
EQUAL, EMPTY, BALANCED, SHAPE = 5, 4, 2, (len(GROUPS), 5)
SEEDS = range(21)
# Where nine tenths of the defaults would be no sensible other numbers.
OTHER = {
    "sequence_mask geometric": {"sequence_low": 0.8, "sequence_high": 1.1},
    "topr sequence": {"reward_threshold": 0.6},
    "topr token": {"reward_threshold": 0.6},
    "topr normalized": {"reward_threshold": 0.6},
    "raft default": {"reward_threshold": 0.6},
    "clip_cov default": {"covariance_fraction": 0.3, "epsilon_high": 0.5},
    "kl_cov default": {"covariance_fraction": 0.3, "covariance_kl": 0.4},
    "dapo default": {"max_length": 5.0, "overlong_buffer": 2.0},
    "decoupled_ppo default": {"correction_low": 0.6, "correction_high": 1.5},
    "log_linear_proximal default": {"correction_low": 0.6, "correction_high": 1.5},
    "opmd_logavgexp leave_one_out": {"tau": 0.8},
    "cispo absolute": {"clip_low": 0.5, "clip_high": 1.5},
    "cispo epsilon": {"epsilon_low": 0.4, "epsilon_high": 0.4},
    "truncated_is default": {"clip_low": 0.5, "clip_high": 1.5},
    "astar_po default": {"beta_1": 1.5, "beta_2": 0.2},
    "oapl default": {"beta_1": 1.5, "beta_2": 0.2},
    "trm both": {"token_divergence": 0.15, "mean_divergence": 0.06},
    "bapo default": {
        "ratio_low_start": 0.6,
        "ratio_low_end": 0.8,
        "ratio_high_start": 1.05,
        "ratio_high_end": 5.0,
        "ratio_step": 0.1,
        "balance_target": 0.85,
    },
}
PARTS = {
    ("correction", "tis"): {"correction_cap": 1.4},
    ("correction", "tis_sequence"): {"correction_cap": 1.4},
    ("correction", "bounded"): {"correction_low": 0.7, "correction_high": 1.6},
    ("correction", "bounded_sequence"): {"correction_low": 0.7, "correction_high": 1.6},
    ("filter", "opsm"): {"opsm_delta": 0.05},
    ("filter", "geometric"): {"sequence_low": 0.9, "sequence_high": 1.2},
    ("filter", "product"): {"sequence_low": 0.6, "sequence_high": 1.7},
    ("filter", "largest_divergence"): {"token_divergence": 0.4},
    ("filter", "divergences"): {"token_divergence": 0.4, "mean_divergence": 0.1},
}
AGGREGATIONS = {
    "reinforce mean": "response response_sum group constant sum",
    "gspo population": "token",
    "opmd kimi": "response",
    "gvpo default": "response_sum",
    "chord mix": "response",
    "dapo default": "group",
}
STEP = 1e-30  # of a complex-step difference


def case_of(seed):
    """A batch whose responses moved by anything from 5e-4 to 2 a token; seed 0 is in general
    position, 19 and 20 have one reward everywhere.
    """
    generator = np.random.default_rng(seed)
    old = np.log(generator.uniform(0.02, 0.95, SHAPE))

    mask = generator.random(SHAPE) < 0.8
    mask[EMPTY] = False
    mask[-1] = True

    def moved(source):
        scale = generator.choice([5e-4, 0.02, 0.3, 1.0], (SHAPE[0], 1))
        step = scale * (generator.normal(size=SHAPE) + generator.normal(0, 0.7, (SHAPE[0], 1)))
        # One response moves far and comes back: its sequence ratio is 1, those of its tokens are
        # not.
        step[BALANCED] = np.where(mask[BALANCED], 0.3 * generator.normal(size=SHAPE[1]), 0)
        step[BALANCED] -= step[BALANCED].sum() / max(mask[BALANCED].sum(), 1)
        reached = source + np.clip(step, -2, 2)
        return np.where(reached < -0.01, reached, -0.01 * generator.uniform(0.1, 1, SHAPE))

    arrays = {"logprobs": moved(old), "old": old, "prox": moved(old), "ref": moved(old)}
    kinds = [
        generator.normal(0, 2, len(GROUPS)),
        generator.integers(0, 2, len(GROUPS)),
        generator.choice([-1, 0, 0.5, 2], len(GROUPS)),
    ]
    rewards = {19: np.full(len(GROUPS), 0.5), 20: np.zeros(len(GROUPS))}.get(
        seed, kinds[seed % 3]
    ).astype(float)
    rewards[GROUPS == EQUAL] = rewards[0] if seed > 18 else generator.choice([0.7, 0.0])
    rewards[-1] = np.nan
    # What is in masked positions is not to matter.
    for array in arrays.values():
        hidden = ~mask | (GROUPS < 0)[:, None]
        array[hidden] = generator.choice([np.nan, np.inf, -np.inf, 0.0, 50.0], hidden.sum())
    staleness = generator.integers(0, 4, len(GROUPS)).astype(float)
    expert = generator.random(len(GROUPS)) < 0.3
    return Case(
        **arrays, mask=mask, rewards=rewards, groups=GROUPS, expert=expert, staleness=staleness
    )


CASES = [case_of(seed) for seed in SEEDS]


GRADIENTS = Gradients()


def close(actual, expected, what):
    largest = max(np.abs(expected).max(initial=0), 1e-6)
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-9 * largest, err_msg=what)


def compare(name, variant, cases=CASES, **options):
    """Compares both on each case, at the defaults of each but for the options."""
    options = REQUIRED.get(name, {}) | options
    objective = objectives.algorithm(name, variant=variant, **options)
    for index, case in enumerate(cases):
        shaped = GRADIENTS.shaped(objective, case, index)
        gradient, metrics = GRADIENTS.both(objective, case, shaped)
        direction = np.random.default_rng(index).normal(size=SHAPE)
        moving = case.logprobs + 1j * STEP * direction
        advantages, loss = reference.evaluate(name, variant, case, options, shaped.dropped, moving)
        live = GROUPS >= 0
        if name == "red_drop":
            check_dropped(case, shaped.dropped)
        what = f"{name} {variant} case {index}"
        close(np.asarray(shaped.advantages)[live], advantages[live], what)
        slope = np.append(gradient, np.sum(gradient * direction))
        close(slope, np.append(gradient, np.imag(loss) / STEP), what)
        close(metrics["loss"], np.real(loss), what)


def other_numbers(name, variant):
    """Numbers that are not the defaults."""
    given = reference.ROWS[name, variant].options
    tenths = {number: 0.9 * value for number, value in given.items() if type(value) is float}
    return tenths | OTHER.get(f"{name} {variant}", {})


@pytest.mark.parametrize("name, variant", reference.ROWS)
def test_loss_and_gradient_are_the_formula(name, variant):
    cases = CASES
    if name in ("clip_cov", "kl_cov"):
        # Where advantages are alike, so are covariances, and which of their tokens are chosen is
        # free.
        cases = [case for case in CASES if len(set(case.rewards[GROUPS == 3])) == 3]
    compare(name, variant, cases)
    compare(name, variant, cases[:7], **other_numbers(name, variant))


def test_every_algorithm_and_variant_is_compared():
    rows = {row.name: row.variants for row in objectives.algorithm_table()}
    assert rows == {
        name: tuple(variant for other, variant in reference.ROWS if other == name) for name in rows
    }


def varied():
    """(row, options): parts in rows that do not have them; corrections and filters with a KL
    penalty, which both leave alone.
    """
    for row, aggregations in AGGREGATIONS.items():
        for aggregation in aggregations.split():
            numbers = {"constant_length": 10.0} if aggregation == "constant" else {}
            yield row, {"aggregation": aggregation, **numbers}
    for row, denominator in (("red_drop", "kept"), ("dapo", "all"), ("raft", "all")):
        yield f"{row} default", {"denominator": denominator}
    penalty = {"kl_coef": 0.2, "kl_estimator": "k2"}
    for (option, name), numbers in PARTS.items():
        row = "sapo default" if option == "correction" else "gspo population"
        yield row, {option: name, **numbers, **penalty}
    # In the last two every token of a response has the mean correction.
    for row in ("reinforce mean", "gspo population", "gmpo default"):
        yield row, {"correction": "tis", **PARTS["correction", "tis"]}
    for estimator, anchor in (
        ("k1", "reference"),
        ("k2", "reference"),
        ("k3", "reference"),
        ("k3", "behavior"),
        ("k3_is", "behavior"),
    ):
        given = {"kl_coef": 0.3, "kl_estimator": estimator, "kl_reference": anchor}
        yield "grpo population", given
    for kind in ("group_mean", "group_std", "group_std_sample", "rloo", "opo"):
        numbers = {"std_epsilon": 1e-3} if "std" in kind else {}
        yield "reinforce mean", {"advantage": kind, "singleton_baseline": "none", **numbers}


@pytest.mark.parametrize("row, options", varied())
def test_a_part_in_another_row_is_its_formula(row, options):
    compare(*row.split(), CASES[:12] + CASES[19:], **options)


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("name", ["clip_cov", "kl_cov"])
def test_equal_covariances_choose_no_more_tokens(name, first):
    """Tokens that tie for the last place are left out; those that tie for the first are chosen,
    and nothing else then.
    """
    live = CASES[0].live
    logprobs = np.where(live, -0.1, np.nan)
    if first:  # a single token that stands above a tie
        logprobs[tuple(np.argwhere(live)[0])] = -0.5
    case = CASES[0].replace(old=np.where(live, -0.2, np.nan), logprobs=logprobs)
    compare(name, "default", [case], covariance_fraction=0.1)


def check_dropped(case, dropped):
    """In each group as many below the mean were dropped as there were more of them than of
    others.
    """
    for group in set(GROUPS[GROUPS >= 0]):
        members = GROUPS == group
        rewards = case.rewards[members]
        negative = rewards < rewards.mean() if np.ptp(rewards) else np.zeros(len(rewards), bool)
        assert not np.any(dropped[members] & ~negative)
        assert dropped[members].sum() == max(2 * negative.sum() - len(rewards), 0)
