"""Parts that are defined outside the package: chosen by option, in a row, and trained on."""

from pathlib import Path

import jax
import numpy as np
import pytest

from grre_jax import objectives

from .conftest import loss_and_gradient

pytestmark = pytest.mark.usefixtures("without_metrics")

# Each part states a built-in one anew, with hyperparameters of its own.
FILE = '''
import jax
import jax.numpy as jnp
from grre_jax import objectives as o
from grre_jax.objectives.parts.ratios import level_log_ratio, level_ratio

WIDTH = o.Hyperparameter("width", "half-width of the band of ratios", 0.25, low=0)
SHIFT = o.Hyperparameter("shift", "how far the baseline is lowered", low=0)


@o.mask(hyperparameters=(WIDTH,), data=(o.RATIO,))
def band(x):
    """Passes ratios in the band; a zero advantage passes."""
    return (jnp.abs(level_ratio(x) - 1) <= x.hyperparameters["width"]) | (x.advantages == 0)


@o.weight(data=(o.RATIO,))
def truncated(x):
    """min(rho, 1)."""
    return jnp.clip(level_ratio(x), 0, 1)


@o.advantage(hyperparameters=(SHIFT,))
def lowered(x):
    """A = r - (mean(r) - shift)."""
    mean = x.groups.mean(x.rewards)
    return jnp.where(x.groups.live, x.rewards - mean + x.hyperparameters["shift"], 0)


@o.shaping(drops="groups of equal rewards")
def varied(x):
    """Drops groups of equal rewards."""
    return x.rewards, x.groups.live & x.groups.alike(x.rewards)


@o.level(description="a whole response")
def whole(x):
    """S."""
    return x.at_tokens(x.sum_by_response(x.log_ratio))


@o.ratio_reference(data=("prox_logprobs",), description="p")
def start(x):
    """p."""
    return x.prox_logprobs


@o.correction(data=(o.RATIO, "old_logprobs"))
def plain(x):
    """e^(p - q)."""
    return jnp.exp(x.ratio_reference_logprobs - x.old_logprobs)


@o.filter_(data=("old_logprobs",))
def good(x):
    """Keeps responses with A >= 0 or a mean of q - l of at most 0.1."""
    return (x.advantages >= 0) | (x.mean_over_response(-x.behavior_log_ratio) <= 0.1)


@o.penalty(hyperparameters=(WIDTH,), data=("old_logprobs",))
def square(x):
    """width d^2."""
    return x.hyperparameters["width"] * (x.logprobs - x.old_logprobs) ** 2


@o.aggregation
def by_response(counts, lengths, hyperparameters):
    """Mean over responses of the sum over tokens."""
    return counts.responses


@o.term(data=(o.RATIO,), uses=("mask",))
def importance(x):
    """-A rho M."""
    unclipped = x.objective.mask(x)
    value = -x.advantages * level_ratio(x) * unclipped
    return o.Contribution(value, value, unclipped)


def _largest(x):
    moved = jnp.where(x.mask, jnp.abs(level_log_ratio(x)), 0)
    return {"largest_log_ratio": jnp.max(moved, initial=0)}


@o.mask(data=(o.RATIO,), gathers=(o.Statistic(("largest_log_ratio",), _largest),))
def not_the_largest(x):
    """Stops the token of the batch that has moved most."""
    return jnp.abs(level_log_ratio(x)) < 0.999 * x.stats.gathered["largest_log_ratio"]


@o.mask(hyperparameters=(o.Hyperparameter("epsilon_low", "of another meaning", 9.0),))
def clashing(x):
    """Declares a name of the package otherwise."""
    return x.mask
'''
GENERATOR = np.random.default_rng(0)
GROUPS = np.array([0, 0, 0, 1, 1, 1])
REWARDS = np.array([0.0, 1.0, 3.0, 1.0, 1.0, 1.0])
OLD, PROX, LOGPROBS = (GENERATOR.normal(-2, 0.5, (6, 4)) for _ in range(3))
MASK = GENERATOR.random((6, 4)) < 0.8


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(FILE)
    return path


@jax.jit
def gradient(objective):
    shaped = objectives.shape_data(objective, REWARDS, GROUPS)
    _, slope = loss_and_gradient(
        objective,
        LOGPROBS,
        advantages=shaped.advantages,
        dropped=shaped.dropped,
        mask=MASK,
        groups=GROUPS,
        old_logprobs=OLD,
        prox_logprobs=PROX,
    )
    return slope


def check_close(found, expected):
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-7)


WIDE = {"epsilon_low": 0.5, "epsilon_high": 0.5}
# A row, its parts of the file, further options, and the same of built-in parts.
CASES = [
    (
        "reinforce",
        {"mask": "band", "advantage": "lowered", "penalty": "square", "aggregation": "by_response"},
        {"width": 0.5, "shift": 0.3},
        {"mask": "two_side", "advantage": "asymre", "aggregation": "response_sum"},
        {"penalty": "token_square", "beta": 0.3, "coefficient": 0.5, **WIDE},
    ),
    (
        "rec_oneside_is",
        {"level": "whole", "weight": "truncated"},
        {},
        {"level": "sequence_sum", "weight": "clipped"},
        {"clip_high": 1.0},
    ),
    (
        "grpo",
        {"ratio_reference": "start", "correction": "plain", "filter": "good"},
        {},
        {"ratio_reference": "proximal", "correction": "tis", "filter": "opsm"},
        {"correction_cap": np.inf},
    ),
]


@pytest.mark.parametrize("row, parts, options, built_in, same", CASES)
def test_parts_of_a_file_are_what_they_state(file, row, parts, options, built_in, same):
    named = {option: f"{file}:{name}" for option, name in parts.items()}
    objective, again = (objectives.algorithm(row, **named, **options) for _ in range(2))
    expected = objectives.algorithm(row, **built_in, **same)
    assert jax.tree.structure(objective) == jax.tree.structure(again)
    assert objective.requires == expected.requires
    check_close(gradient(objective), gradient(expected))


def test_a_shaping_drops_and_a_term_is_an_algorithm(file):
    varied = objectives.algorithm("reinforce", shaping=f"{file}:varied")
    dropped = objectives.shape_data(varied, REWARDS, GROUPS).dropped
    np.testing.assert_array_equal(dropped, GROUPS == 1)
    objective = objectives.algorithm(f"{file}:importance", advantage="group_std", mask="one_side")
    assert objective.name == "importance" and objective.requires == {"old_logprobs"}
    built_in = objectives.algorithm("m2po", mask="one_side")
    np.testing.assert_array_equal(gradient(objective), gradient(built_in))


def test_a_row_may_have_another_term_and_several_penalties(file):
    objective = objectives.algorithm(
        "rec_twoside_nois",
        term="importance",
        penalty=f"token_square, {file}:square",
        coefficient=0.1,
        width=0.3,
    )
    without = objectives.algorithm("m2po", advantage="group_mean", mask="two_side")
    squares = objectives.algorithm("opmd_token", advantage="none", coefficient=0.4)
    check_close(gradient(objective), gradient(without) + gradient(squares))
    # What the row has and another term does not use is left out, with its hyperparameters.
    assert "epsilon_low" not in objectives.algorithm("grpo", term="soft_gate").hyperparameters


def test_a_part_that_decides_by_the_whole_batch(file):
    objective = objectives.algorithm("reinforce", mask=f"{file}:not_the_largest")
    moved = np.where(MASK, np.abs(LOGPROBS - OLD), 0)
    live = MASK & (GROUPS == 0)[:, None]
    np.testing.assert_array_equal((gradient(objective) == 0) & live, (moved == moved.max()) & live)


@pytest.mark.parametrize(
    "row, option, part, message",
    [
        ("reinforce", "level", "sequence", "level"),
        ("FILE:importance", "term", "ppo", "importance"),
        ("grpo", "mask", "FILE:bond", "band"),
        ("grpo", "mask", "FILE:clashing", "epsilon_low"),
    ],
)
def test_refusals(file, row, option, part, message):
    row, part = (name.replace("FILE", str(file)) for name in (row, part))
    with pytest.raises(ValueError, match=message):
        objectives.algorithm(row, **{option: part})


PAGE = Path(__file__).parents[2] / "docs" / "own-loss.md"


def test_the_part_that_the_page_defines_works(tmp_path):
    code = PAGE.read_text().rpartition("## A new part")[2].split("```python\n")[1].split("```")[0]
    (tmp_path / "my_mask.py").write_text(code)
    mask = f"{tmp_path / 'my_mask.py'}:log_band"
    objective = objectives.algorithm("reinforce", mask=mask, log_width=0.3)
    assert objective.requires == {"old_logprobs"}
    assert objective.hyperparameters == {"log_width": 0.3}
    assert "log_width" in PAGE.read_text().rpartition("```sh")[2]
