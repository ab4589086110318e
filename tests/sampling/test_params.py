"""One record of sampling parameters: its domains. (Those of the sections that have its fields:
training/config/test_fields.py.)
"""

import pytest

from grre_jax.domains import ConfigError
from grre_jax.sampling_params import SamplingParams


@pytest.mark.parametrize(
    "name, value",
    [
        ("temperature", -0.1),
        ("top_k", 2**31),
        ("top_p", 1.1),
        ("stop", ("a\ufffd",)),
    ],
)
def test_values_outside_their_domain(name, value):
    with pytest.raises(ConfigError) as caught:
        SamplingParams(**{name: value})
    assert (caught.value.field, caught.value.value) == (name, value)
