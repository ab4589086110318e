"""The table of named algorithms, and what `algorithm` refuses."""

import jax.numpy as jnp
import numpy as np
import pytest

from grre_jax import objectives

NAMES = {
    "reinforce",
    "grpo",
    "rec_oneside_is",
    "rec_oneside_nois",
    "rec_twoside_is",
    "rec_twoside_nois",
    "rec_ring_is",
    "rec_ring_nois",
    "opmd",
    "opmd_token",
    "opmd_logavgexp",
    "asymre",
    "red_drop",
    "red_weight",
}


def test_names_and_rows():
    assert set(objectives.algorithms()) == NAMES
    rows = objectives.algorithm_table()
    assert [row.name for row in rows] == list(objectives.algorithms())
    for row in rows:
        assert row.formula and row.paper and row.link.startswith("https://arxiv.org/abs/")
        assert row.requires == objectives.algorithm(row.name).requires


def test_defaults_are_the_papers():
    numbers = {name: objectives.algorithm(name).numbers for name in NAMES}
    assert numbers["grpo"] == {"epsilon_low": 0.2, "epsilon_high": 0.2, "std_epsilon": 1e-6}
    assert numbers["rec_ring_nois"] == {"epsilon_low": 0.2, "epsilon_high": 0.2, "epsilon_low_prime": 0.6, "epsilon_high_prime": 2.0}
    assert numbers["asymre"] == {"beta": 0.1}
    assert numbers["opmd_token"] == {"coefficient": 0.1}
    assert numbers["red_weight"] == {"tau": 1.0}
    assert {name: objectives.algorithm(name).aggregation for name in NAMES if name != "opmd"} == dict.fromkeys(NAMES - {"opmd"}, "token")
    assert objectives.algorithm("opmd").aggregation == "group"


def test_options_become_structure_and_numbers():
    objective = objectives.algorithm(
        "rec_oneside_nois", epsilon_low=0.6, epsilon_high=2, aggregation="group", denominator="kept", single="reward", kl_coef=0.5
    )
    assert objective.numbers == {"epsilon_low": 0.6, "epsilon_high": 2.0, "kl_coef": 0.5}
    assert (objective.aggregation, objective.denominator, objective.single) == ("group", "kept", "reward")
    assert objective.penalties == ("kl_k3_reference",)
    assert objectives.algorithm("grpo", epsilon_high=np.inf).numbers["epsilon_high"] == np.inf


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("rec_oneside_nio", {}, "did you mean rec_oneside_nois"),
        ("grpo", {"epsilon_hihg": 0.2}, "did you mean epsilon_high"),
        ("reinforce", {"epsilon_low": 0.2}, "reinforce has no option 'epsilon_low'"),
        ("grpo", {"aggregation": "tokens"}, "did you mean token"),
        ("grpo", {"variant": "populaton"}, "did you mean population"),
        ("grpo", {"aggregation": "constant"}, "constant_length must be given"),
        ("grpo", {"constant_length": 10}, "no option 'constant_length'"),
        ("grpo", {"epsilon_low": 1.1}, "epsilon_low must be >= 0 and <= 1"),
        ("grpo", {"epsilon_low": -0.1}, "epsilon_low must be"),
        ("grpo", {"epsilon_high": np.nan}, "epsilon_high must be"),
        ("grpo", {"epsilon_high": "0.2"}, "epsilon_high must be a number"),
        ("grpo", {"epsilon_high": True}, "epsilon_high must be a number"),
        ("grpo", {"epsilon_low": jnp.array([0.1, 2.0])}, "epsilon_low must be"),
        ("grpo", {"std_epsilon": 0.0}, "std_epsilon must be > 0"),
        ("grpo", {"kl_coef": -0.1}, "kl_coef must be"),
        ("red_weight", {"tau": 0.0}, "tau must be > 0"),
        ("opmd", {"tau": np.inf}, "tau must be > 0"),
        ("opmd_token", {"coefficient": -1}, "coefficient must be"),
        ("asymre", {"beta": np.nan}, "beta must be finite"),
        ("rec_ring_is", {"epsilon_low_prime": 0.1}, "epsilon_low_prime must be at least epsilon_low = 0.2"),
        ("rec_ring_is", {"epsilon_high": 3.0}, "epsilon_high_prime must be at least epsilon_high = 3"),
    ],
)
def test_refusals_name_the_option_and_the_nearest(name, options, message):
    with pytest.raises(ValueError, match=message):
        objectives.algorithm(name, **options)
