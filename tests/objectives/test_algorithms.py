"""The table of named algorithms, and what `algorithm` refuses."""

import pytest

from grre_jax import objectives

from .all_objectives import REQUIRED


def test_names_and_rows():
    rows = objectives.algorithm_table()
    assert [row.name for row in rows] == list(objectives.algorithms())
    for row in rows:
        assert row.formula and row.paper and row.link.startswith("https://")
        required = REQUIRED.get(row.name, {})
        assert required.keys() == {name for name, value in row.defaults.items() if value is None}
        for variant in row.variants:
            assert objectives.algorithm(row.name, variant=variant, **required).name == row.name
        for name in required:
            others = {key: value for key, value in required.items() if key != name}
            with pytest.raises(ValueError, match=f"{row.name}: {name} must be given"):
                objectives.algorithm(row.name, **others)


@pytest.mark.parametrize(
    "name, options, message",
    [
        ("rec_oneside_nio", {}, "rec_oneside_nois"),
        (None, {}, "algorithm"),
        ("grpo", {"variant": "populaton"}, "population"),
        ("grpo", {"epsilon_hihg": 0.2}, "epsilon_high"),
        ("grpo", {"aggregation": "tokens"}, "token"),
        ("grpo", {"aggregation": "constant"}, "constant_length"),
        ("grpo", {"epsilon_low": -0.1}, "epsilon_low"),
        ("grpo", {"epsilon_high": "0.2"}, "epsilon_high"),
        ("gvpo", {"gvpo_beta": 1.0, "correction": "tis"}, "correction"),
        ("rec_ring_is", {"epsilon_low_prime": 0.1}, "epsilon_low_prime"),
        ("icepop", {"correction_low": 6.0}, "correction_high"),
        ("dapo", {"max_length": 10.0}, "overlong_buffer"),
    ],
)
def test_refusals_name_the_option_and_the_nearest(name, options, message):
    with pytest.raises(ValueError, match=message):
        objectives.algorithm(name, **options)
