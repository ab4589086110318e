"""Whose stored log-probs an objective takes."""

import pytest

from grre_jax.config import ObjectiveConfig
from grre_jax.objectives.parts import masks


def test_roles_name_fields_of_groups():
    config = ObjectiveConfig("grpo", stored=["proximal", "reference"])  # a list, as JSON has it
    assert config.stored == ("proximal", "reference") and config.stored_fields == (
        "prox_logprobs",
        "ref_logprobs",
    )
    assert ObjectiveConfig().stored_fields == ()
    with pytest.raises(ValueError, match="stored"):
        ObjectiveConfig(stored=("behavior",))


def test_options_are_what_json_can_name():
    part = masks.ring
    with pytest.raises(ValueError, match="options.mask"):
        ObjectiveConfig("reinforce", {"mask": part})
    assert ObjectiveConfig("reinforce", {"mask": "ring"}).options == {"mask": "ring"}
