"""Off-policy reinforcement learning of language models with group-relative REINFORCE, in JAX.

`grre_jax.train` runs it on questions and a reward function of one's own. The rooms are imported by
name: `from grre_jax import objectives, models, sampling, rollouts, tasks, training`.
"""

from grre_jax.api import Run as Run, train as train

__version__ = "0.1.0"
