"""In-graph generation: prompts in, completions with their log-probs out."""

from grre_jax.sampling.distributions import SamplingDistribution as SamplingDistribution
from grre_jax.sampling.sampler import FINISH_LENGTH as FINISH_LENGTH
from grre_jax.sampling.sampler import FINISH_STOP as FINISH_STOP
from grre_jax.sampling.sampler import Samples as Samples
from grre_jax.sampling.sampler import pad_prompts as pad_prompts
from grre_jax.sampling.sampler import sample as sample
