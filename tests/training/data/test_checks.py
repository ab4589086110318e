"""A run is refused data that its objective cannot learn from."""

import contextlib

import numpy as np
import pytest

from grre_jax import objectives
from grre_jax.errors import DataError
from grre_jax.training.data import sources

from ...groups import text_group

FULL = -np.full(7, 0.5, np.float32)
CUT = {"top_p": 0.9, "top_k": 4, "min_p": 0.1}


def check(objective, group):
    sources.check_group(objectives.algorithm(objective), 1.0, group, "there")


def test_data_without_behaviour_log_probs_is_for_objectives_without_a_ratio():
    check("reinforce", text_group(0))
    # One that is an expert's as a whole needs none either: test_mixture.py.
    for objective, fields in (("grpo", {}), ("chord", {"is_expert": [1, 0]})):
        with pytest.raises(DataError, match=r"there: .*behavior_logprobs.*objective\.name"):
            check(objective, text_group(0, **fields))


@pytest.mark.parametrize(
    "objective, fields, named",
    [
        # Behaviour log-probs are over the full vocabulary whatever the data was drawn with.
        ("grpo", {**CUT, "sampling_logprobs": FULL + 0.3}, None),
        ("grpo", {"sampling_logprobs": FULL - 0.01}, None),  # rounding
        ("grpo", {**CUT, "sampling_logprobs": FULL - 0.3}, "behavior_logprobs.*top_k"),
        # An observation's mean nothing.
        (
            "grpo",
            {"sampling_logprobs": FULL - 0.3 * (np.arange(7) == 0), "mask": [0] + 6 * [1]},
            None,
        ),
        ("grpo", {"temperature": 0.7}, "sampling.temperature"),
        ("reinforce", {"temperature": 0.7, "sampling_logprobs": FULL - 0.3}, None),
    ],
)
def test_a_ratio_compares_like_with_like(make_group, objective, fields, named):
    expected = pytest.raises(DataError, match=named) if named else contextlib.nullcontext()
    with expected:
        check(objective, make_group(0, **{"behavior_logprobs": FULL} | fields))
