"""The `data` section. (What is refused: config/test_broken.py.)"""

import pytest

from grre_jax.domains import ConfigError
from grre_jax.training.config.sections import MixEntry, parse_mix


def test_a_mix_is_read_from_text():
    assert parse_mix("") == ()
    assert parse_mix("old=0.5") == (MixEntry("old", 0.5),)
    assert parse_mix(" runs/a=b/rollouts=0.25 , gs://bucket/solutions=0.5:expert,") == (
        MixEntry("runs/a=b/rollouts", 0.25),
        MixEntry("gs://bucket/solutions", 0.5, expert=True),
    )
    with pytest.raises(ConfigError):
        parse_mix("a=0.5,b=0.6")
