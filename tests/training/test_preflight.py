"""The checks of a run before it begins."""

import pytest

from grre_jax.config import Config
from grre_jax.domains import ConfigError
from grre_jax.training import preflight
from grre_jax.training.config.run import override


def test_steps_beyond_the_decay_are_refused():
    def check(words):
        preflight.check_decay(override(Config("x"), f"--training.steps 11 {words}".split()))

    ended = "--optimizer.decay_steps 10 --optimizer.decay cosine"
    check("--optimizer.decay_steps 11 --optimizer.decay linear")
    check(f"{ended} --optimizer.final_fraction 0.1")
    warm = "--warm_start.optimizer.decay_steps 10 --warm_start.optimizer.decay cosine"
    for words in (ended, f"--training.steps 0 --warm_start.steps 11 {warm}"):
        with pytest.raises(ConfigError, match=r"optimizer\.decay_steps"):
            check(words)
