"""Objectives: from rewards and log-probs to a loss.

Pure functions of arrays that import jax and nothing else of the project.

    objective = algorithm("rec_oneside_nois", epsilon_low=0.6, epsilon_high=2.0)
    batch = padded_batch(
        advantages=advantages(objective, rewards, groups),
        mask=mask,
        groups=groups,
        old_logprobs=old_logprobs,
    )
    loss, metrics = policy_loss(objective, logprobs, batch)
"""

from lazy_loader import attach_stub

# The name of a module too, which would take the function's place.
from grre_jax.objectives.algorithms import algorithms  # noqa: F401

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
