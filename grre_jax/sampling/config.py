"""The configuration's `sampling` section."""

from __future__ import annotations

import dataclasses
from typing import Literal

import grre_jax
from grre_jax.domains import Count, Positive
from grre_jax.sampling_params import SamplingParams


@dataclasses.dataclass(frozen=True)
class SamplingConfig(SamplingParams):
    """Sampling settings of training.

    Args:
        temperature: divides the logits of the draws; training computes log-probs at the same
            temperature. Ratios use untruncated log-probs in any case.
        group_size: completions per prompt (K).
        max_prompt_tokens: longest prompt. Longer ones are left out: a position of the prompt
            stream takes the next question that fits, an evaluation has fewer.
        max_turns: most turns of a trajectory, of tasks that have environments. There max_new_tokens
            is the limit of a whole trajectory, observations included. Also the limit of stored
            trajectories where the objective needs turns (its option returns).
        max_turn_tokens: longest turn, in tokens; 0 for that of a trajectory.
        wait_for_answers: of tasks that have environments, decode on only when all environments that
            were asked have answered, so that the time they take changes no number. false keeps the
            device busy beside slow environments; log-probs then differ by rounding.
        prompts_per_call: prompts of one call of the sampler; 0 for all that a policy version
            samples, at most 2,048.
        max_concurrent: most completions of a call decoded side by side, over all devices; when one
            ends, the next takes its place. 0 for as many as fit in the devices' memory (on a CPU
            half of the machine's) beside the weights and the train state, and 256 a device where
            that is not known.
        cache_dtype: type of the cached keys and values; that of the activations if empty.
        record_routes: store the experts of every token, of a mixture of experts: two bytes for each
            of a token's experts at each layer. Not of trajectories.

    Examples:
        Trajectories of at most 64 tokens, in turns of at most 16:

        >>> from grre_jax import config as c
        >>> sampling = c.SamplingConfig(group_size=4, max_new_tokens=64, max_turn_tokens=16)
        >>> sampling.of_turn.max_new_tokens, sampling.draws_from_policy
        (16, True)
    """

    max_new_tokens: Positive = 8
    group_size: Positive = 8
    max_prompt_tokens: Positive = 16
    max_turns: Positive = 8
    max_turn_tokens: Count = 0
    wait_for_answers: bool = True
    prompts_per_call: Count = 0
    max_concurrent: Count = 0
    cache_dtype: Literal["float32", "bfloat16", ""] = ""
    record_routes: bool = False

    @property
    def of_turn(self) -> SamplingConfig:
        """The settings of one turn of a trajectory: its own limit in place of the trajectory's."""
        return dataclasses.replace(self, max_new_tokens=self.max_turn_tokens or self.max_new_tokens)

    @property
    def engine(self) -> str:
        """Name of the sampler with its version, as rollouts record it."""
        return f"grre_jax.sampling {grre_jax.__version__}"
