"""One record of sampling parameters: its domains."""

import pytest

from grre_jax.config import EvaluationConfig, SamplingConfig
from grre_jax.sampling_params import SamplingParams


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("temperature", -0.1, "at least 0"),
        ("temperature", float("inf"), "finite"),
        ("temperature", "1", "a number, got '1'"),
        ("top_k", 2.5, "a whole number, got 2.5"),
        ("top_k", 2**31, "at most 2147483647"),
        ("top_p", 1.1, "(0, 1]"),
        ("min_p", 1.1, "[0, 1]"),
        ("max_new_tokens", 0, "at least 1"),
        ("stop", ("a", ""), "characters in each"),
        ("stop", ("a\ufffd",), "U+FFFD"),
        ("stop", (3,), "got (3,)"),
    ],
)
@pytest.mark.parametrize("record", [SamplingParams, SamplingConfig, EvaluationConfig])
def test_values_outside_their_domain(record, name, value, words):
    if record is EvaluationConfig and name == "max_new_tokens":
        assert record().max_new_tokens == 0  # sampling's
        return
    with pytest.raises(ValueError, match=f"^{name}: expected ") as caught:
        record(**{name: value})
    assert words in str(caught.value)
