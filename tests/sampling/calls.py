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


def call(model, prompts, steps=128, max_concurrent=None, **options):
    """(SamplerCall, its prompt batch)."""
    params, rest = split(options)
    weights, batch, distribution = sampling.prepare_call(model, prompts, params, **rest)
    return sampling.SamplerCall(weights, batch, distribution, max_concurrent, None, steps), batch
