"""The `data` section. (What is refused: config/test_broken.py.)"""

import pytest

from grre_jax.config import Config
from grre_jax.domains import ConfigError
from grre_jax.training.config.overrides import override
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


@pytest.mark.parametrize(
    "words, samples, mixed",
    [
        ("", True, 0),
        ("--data.path p", False, 0),
        ("--data.mix a=0.25,b=0.125", True, 6),
        ("--data.mix a=0.3,b=0.6,c=0.1", False, 16),
        ("--data.mix a=0.3 --data.path p", False, 5),
        # A regime is checked only where the run samples.
        ("--regime.offline true --data.max_staleness 2 --data.path p", False, 0),
        ("--regime.staleness 2 --data.max_staleness 2", True, 0),
    ],
)
def test_a_steps_groups_are_mixed_and_sampled(words, samples, mixed):
    config = override(Config("x"), words.split())
    assert (config.samples, config.mixed_per_step) == (samples, mixed)
    assert not samples or len(config.schedule(3).samples) == 16 - mixed
