"""One record of sampling parameters: its domains."""

import pytest

from grre_jax.config import EvaluationConfig, SamplingConfig
from grre_jax.domains import ConfigError
from grre_jax.sampling_params import SamplingParams


# 0 new tokens of an evaluation are sampling's.
@pytest.mark.parametrize(
    "name, value",
    [
        ("temperature", -0.1),
        ("temperature", float("inf")),
        ("temperature", "1"),
        ("top_k", 2.5),
        ("top_k", 2**31),
        ("top_p", 1.1),
        ("min_p", 1.1),
        ("max_new_tokens", -1),
        ("stop", ("a", "")),
        ("stop", ("a\ufffd",)),
    ],
)
@pytest.mark.parametrize("record", [SamplingParams, SamplingConfig, EvaluationConfig])
def test_values_outside_their_domain(record, name, value):
    with pytest.raises(ConfigError) as caught:
        record(**{name: value})
    assert (caught.value.field, caught.value.value) == (name, value)
