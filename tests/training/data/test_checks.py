"""A run is refused data that its objective cannot learn from."""

import numpy as np
import pytest

from grre_jax import objectives
from grre_jax.errors import DataError
from grre_jax.training.data import checks

from ...groups import text_group


def test_data_without_behaviour_log_probs_is_for_objectives_without_a_ratio(make_group):
    for name in ("reinforce", "grpo"):
        checks.check_group(
            objectives.algorithm(name), 1.0, make_group(0, behavior_logprobs=-np.ones(7)), "there"
        )
    checks.check_group(objectives.algorithm("reinforce"), 1.0, text_group(0), "there")
    with pytest.raises(DataError, match="there: .*behavior_logprobs.*objective.name") as caught:
        checks.check_group(objectives.algorithm("grpo"), 1.0, text_group(0), "there")
    offered = ("reinforce", "red_drop", "red_weight", "asymre")
    assert ", ".join(offered[:2]) in str(caught.value)
    assert all("old_logprobs" not in objectives.algorithm(name).requires for name in offered)


def test_a_ratio_compares_like_with_like(make_group):
    grpo = objectives.algorithm("grpo")
    full = -np.full(7, 0.5, np.float32)
    cut = {"top_p": 0.9, "top_k": 4, "min_p": 0.1}

    def check(objective=grpo, **fields):
        checks.check_group(
            objective, 1.0, make_group(0, **{"behavior_logprobs": full} | fields), "somewhere"
        )

    # Behaviour log-probs are over the full vocabulary whatever the data was drawn with.
    check(**cut, sampling_logprobs=full + 0.3)
    check(sampling_logprobs=full - 0.01)  # rounding
    with pytest.raises(DataError, match="behavior_logprobs.*top_k.*top_p.*min_p"):
        check(**cut, sampling_logprobs=full - 0.3)
    # An observation's mean nothing.
    check(sampling_logprobs=full - 0.3 * (np.arange(7) == 0), mask=[0, 1, 1, 1, 1, 1, 1])
    for temperature in (0.7, 0):
        with pytest.raises(DataError, match="sampling.temperature"):
            check(temperature=temperature)
    check(objectives.algorithm("reinforce"), temperature=0.7, sampling_logprobs=full - 0.3)


def test_a_group_that_is_half_an_experts_needs_log_probs():
    """One that is an expert's as a whole does not: test_mixture.py."""
    with pytest.raises(DataError, match="behavior_logprobs"):
        checks.check_group(
            objectives.algorithm("chord"), 1.0, text_group(0, is_expert=[1, 0]), "somewhere"
        )
