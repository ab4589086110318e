"""Environments: what answers the policy over several turns, with tools or without, and how they are
run: in the caller's process or in the verifier's processes.
"""

from grre_jax.tasks.environments.environment import (
    Environment as Environment,
    Step as Step,
)
