"""The line of a run's first update."""

import jax
import numpy as np

from grre_jax.training.runtime.stopwatch import Beginning


def test_compilation_is_counted_until_the_context_ends():
    with Beginning() as begun:
        jax.jit(lambda x: x * 3 + 1).lower(np.ones(7)).compile()
    counted = begun._compiling
    jax.jit(lambda x: x * 5 + 1).lower(np.ones(7)).compile()
    assert counted > 0 and begun._compiling == counted
