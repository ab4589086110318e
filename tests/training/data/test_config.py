"""The `data` section: the mix is read from text, and fields that contradict each other are
refused.
"""

import pytest

from grre_jax.config import Config
from grre_jax.domains import ConfigError
from grre_jax.training.config.overrides import override
from grre_jax.training.data.config import DataConfig, MixEntry, parse_mix


def test_a_mix_is_read_from_text():
    assert parse_mix("") == ()
    assert parse_mix("old=0.5") == (MixEntry("old", 0.5),)
    assert parse_mix(" runs/a=b/rollouts=0.25 , gs://bucket/solutions=0.5:expert,") == (
        MixEntry("runs/a=b/rollouts", 0.25),
        MixEntry("gs://bucket/solutions", 0.5, expert=True),
    )


@pytest.mark.parametrize(
    "mix", "old =0.5 old=1.5 old=nan old=0.5:teacher a=0.1,a=0.2:expert a=0.5,b=0.6".split()
)
def test_what_is_no_mix_is_refused(mix):
    with pytest.raises(ConfigError) as caught:
        DataConfig(mix=mix)
    assert caught.value.field == "mix"


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


# Other contradictions: config/test_broken.py and config/test_fields.py.
@pytest.mark.parametrize(
    "words, field",
    [
        ("--data.mix a=0.1,b=0.2,c=0.7 --data.path p", "data.path"),
        ("--regime.offline true --data.max_staleness 2", "data.max_staleness"),
    ],
)
def test_fields_that_contradict_each_other_are_refused(words, field):
    with pytest.raises(ConfigError) as caught:
        override(Config("x"), words.split())
    assert caught.value.field == field
