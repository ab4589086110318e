"""The table of named algorithms, what `algorithm` refuses, what an objective requires, and what
cannot be stacked.
"""

import numpy as np
import pytest

from grre_jax import objectives

from .all_objectives import REQUIRED


def test_every_row_is_described_and_makes_an_objective_of_each_variant():
    rows = objectives.algorithm_table()
    assert [row.name for row in rows] == list(objectives.algorithms())
    for row in rows:
        assert row.formula and row.paper and row.link.startswith("https://")
        required = REQUIRED.get(row.name, {})
        assert required.keys() == {name for name, value in row.defaults.items() if value is None}
        for variant in row.variants:
            assert objectives.algorithm(row.name, variant=variant, **required).name == row.name
        if required:
            with pytest.raises(ValueError, match=next(iter(required))):
                objectives.algorithm(row.name)


@pytest.mark.parametrize(
    "name, options, message",
    [
        ("rec_oneside_nio", {}, "rec_oneside_nois"),
        ("grpo", {"epsilon_hihg": 0.2}, "epsilon_high"),
        ("grpo", {"epsilon_low": -0.1}, "epsilon_low"),
        ("gvpo", {"gvpo_beta": 1.0, "correction": "tis"}, "correction"),
        ("chord", {"denominator": "kept"}, "denominator"),
        ("rec_ring_is", {"epsilon_low_prime": 0.1}, "epsilon_low_prime"),
        ("grpo_two_sided", {"epsilon_high": 0.5, "delta": 1.4}, "delta"),
        ("dapo", {"max_length": 10.0}, "overlong_buffer"),
        ("red_drop", {"returns": "turns"}, "returns"),
    ],
)
def test_refusals_name_the_option_and_what_there_is(name, options, message):
    with pytest.raises(ValueError, match=message):
        objectives.algorithm(name, **options)


@pytest.mark.parametrize(
    "options, required",
    [
        ({"kl_coef": 0.1}, {"ref_logprobs"}),
        ({"kl_coef": 0.1, "kl_reference": "behavior"}, {"old_logprobs"}),
        ({"kl_coef": 0.0}, set()),
    ],
)
def test_a_kl_penalty_requires_its_reference(options, required):
    assert objectives.algorithm("reinforce", **options).requires == required


def test_what_cannot_be_stacked_is_refused():
    asymre = objectives.algorithm("asymre")
    with pytest.raises(ValueError):
        objectives.stack([objectives.algorithm("grpo"), asymre])
    fields = {"advantages": np.zeros(1), "mask": np.ones((1, 2)), "groups": np.array([0])}
    batch = objectives.padded_batch(**fields)
    with pytest.raises(ValueError, match="jax.vmap"):
        objectives.policy_loss(objectives.stack([asymre] * 2), np.zeros((1, 2)), batch)
