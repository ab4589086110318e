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
    "text",
    ["old", "=0.5", "old=1.5", "old=nan", "old=0.5:teacher", "a=0.1,a=0.2:expert", "a=0.5,b=0.6"],
)
def test_what_is_no_mix_is_refused(text):
    with pytest.raises(ValueError, match="mix"):
        DataConfig(mix=text)


def test_a_mix_of_whole_steps_leaves_no_place_for_a_path():
    """Other contradictions: config/test_broken.py and config/test_fields.py."""
    with pytest.raises(ConfigError) as caught:
        DataConfig(path="p", mix="a=0.1,b=0.2,c=0.7")
    assert caught.value.field == "path"


def config(words):
    return override(Config("x"), words.split())


@pytest.mark.parametrize(
    "words, samples, mixed, own",
    [
        ("", True, 0, 16),
        ("--data.path p", False, 0, None),
        ("--data.mix a=0.25,b=0.125", True, 6, 10),
        ("--data.mix a=0.3,b=0.6,c=0.1", False, 16, None),
        ("--data.mix a=0.3 --data.path p", False, 5, None),
    ],
)
def test_a_steps_groups_are_mixed_and_sampled(words, samples, mixed, own):
    made = config(words)
    assert (made.samples, made.mixed_per_step) == (samples, mixed)
    if own is not None:
        assert made.schedule.prompts_per_step == own and len(made.schedule(3).samples) == own


def test_a_regime_is_checked_only_where_the_run_samples():
    offline = "--regime.offline true --data.max_staleness 2"
    with pytest.raises(ValueError, match="max_staleness"):
        config(offline)
    config(f"{offline} --data.path p")
    config("--regime.staleness 2 --data.max_staleness 2")
