"""The configuration's `sampling` section."""

from __future__ import annotations

import dataclasses

import grre_jax
from grre_jax.domains import one_of
from grre_jax.sampling_params import CACHE_DTYPES, SamplingParams, number

WEIGHT_DTYPES = ("int8", "fp8")


@dataclasses.dataclass(frozen=True)
class SamplingConfig(SamplingParams):
    """Sampling settings of training.

    Args:
        temperature (above 0): divides the logits of the draws; training computes log-probs at the
            same temperature. Ratios use untruncated log-probs in any case.
        group_size (at least 1): completions per prompt (K).
        max_prompt_tokens (at least 1): longest prompt; data.overlong is about longer ones.
        max_turns (at least 1): most turns of a trajectory, of tasks that have environments. There
            max_new_tokens is the limit of a whole trajectory, observations included. Also the limit
            of stored trajectories where the objective needs turns (its option returns).
        max_turn_tokens (at least 0): longest turn, in tokens; 0 for that of a trajectory.
        prompts_per_call (at least 0): prompts of one call of the sampler; 0 for all that a policy
            version samples, at most 2,048.
        max_concurrent (at least 0): most completions of a call decoded side by side, over all
            devices; when one ends, the next takes its place. 0 for as many as fit in the devices'
            memory (on a CPU half of the machine's) beside the weights and the train state, and 256
            a device where that is not known.
        cache_dtype ("float32", "bfloat16", "int8" or empty): type of the cached keys and values;
            that of the activations if empty.
        weight_dtype ("int8", "fp8" or empty): rounds the matrices that sample, with a scale per
            output, from the policy's weights whenever they change; not rounded if empty. The
            rounded policy is another behaviour policy: its own log-probs are stored.
    """

    max_new_tokens: int = number(8, 1)
    group_size: int = number(8, 1)
    max_prompt_tokens: int = number(16, 1)
    max_turns: int = number(8, 1)
    max_turn_tokens: int = number(0, 0)
    prompts_per_call: int = number(0, 0)
    max_concurrent: int = number(0, 0)
    cache_dtype: str = ""
    weight_dtype: str = ""

    def __post_init__(self):
        super().__post_init__()
        one_of(self, cache_dtype=("", *CACHE_DTYPES), weight_dtype=("", *WEIGHT_DTYPES))

    @property
    def of_turn(self) -> SamplingConfig:
        """The settings of one turn of a trajectory: its own limit in place of the trajectory's."""
        return dataclasses.replace(self, max_new_tokens=self.max_turn_tokens or self.max_new_tokens)

    @property
    def engine(self) -> str:
        """Name of the sampler, as rollouts record it: with version and dtype of rounded weights."""
        rounded = f" weights={self.weight_dtype}" if self.weight_dtype else ""
        return f"grre_jax.sampling {grre_jax.__version__}{rounded}"
