"""Sampling: from prompts to completions with their log-probs.

`SamplingParams` are the parameters of the draws; `sample` returns completions, and
`sample_trajectories` turns with an environment's observations between them.
"""

from grre_jax.sampling.call import SamplerCall as SamplerCall
from grre_jax.sampling.decoding.weights import Weights as Weights, prepared as prepared
from grre_jax.sampling.distributions.distribution import (
    SamplingDistribution as SamplingDistribution,
)
from grre_jax.sampling.prompt_batch import pad_prompts as pad_prompts
from grre_jax.sampling.sampler import (
    FINISH_LENGTH as FINISH_LENGTH,
    FINISH_STOP as FINISH_STOP,
    Samples as Samples,
    cut_at_stops as cut_at_stops,
    sample as sample,
)
from grre_jax.sampling.turns import (
    Address as Address,
    Limits as Limits,
    Opening as Opening,
    Trajectory as Trajectory,
    Turn as Turn,
    sample_trajectories as sample_trajectories,
)
from grre_jax.sampling_params import (
    SamplingConfig as SamplingConfig,
    SamplingParams as SamplingParams,
)
