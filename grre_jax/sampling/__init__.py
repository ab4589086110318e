"""Sampling: from prompts to completions with their log-probs.

`SamplingParams` is the record of what is drawn; `sample` returns completions, and
`sample_trajectories` turns with an environment's observations between them.
"""

from grre_jax.sampling.call import SamplerCall as SamplerCall
from grre_jax.sampling.config import SamplingConfig as SamplingConfig
from grre_jax.sampling.decoding.weights import Weights as Weights
from grre_jax.sampling.decoding.weights import prepared as prepared
from grre_jax.sampling.distributions.distribution import (
    SamplingDistribution as SamplingDistribution,
)
from grre_jax.sampling.prompt_batch import pad_prompts as pad_prompts
from grre_jax.sampling.sampler import FINISH_LENGTH as FINISH_LENGTH
from grre_jax.sampling.sampler import FINISH_STOP as FINISH_STOP
from grre_jax.sampling.sampler import Samples as Samples
from grre_jax.sampling.sampler import cut_at_stops as cut_at_stops
from grre_jax.sampling.sampler import sample as sample
from grre_jax.sampling.turns import Address as Address
from grre_jax.sampling.turns import Limits as Limits
from grre_jax.sampling.turns import Observation as Observation
from grre_jax.sampling.turns import Opening as Opening
from grre_jax.sampling.turns import Trajectory as Trajectory
from grre_jax.sampling.turns import Turn as Turn
from grre_jax.sampling.turns import sample_trajectories as sample_trajectories
from grre_jax.sampling_params import SamplingParams as SamplingParams
