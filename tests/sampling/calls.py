"""Calls of the sampler whose parameters and arguments come in one dictionary."""

import jax

from grre_jax import sampling
from grre_jax.sampling_params import SamplingParams


def split(options):
    """(SamplingParams, the other arguments)."""
    given = {name: options[name] for name in SamplingParams.names() if name in options}
    rest = {name: value for name, value in options.items() if name not in given}
    return SamplingParams(**given), rest


def sample(model, prompts, **options):
    """Samples on the host."""
    params, rest = split(options)
    return jax.device_get(sampling.sample(model, prompts, params, **rest))
