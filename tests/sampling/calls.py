"""Calls of the sampler whose parameters and arguments come in one dictionary."""

import jax

from grre_jax import sampling
from grre_jax.sampling.prompt_batch import make_prompt_batch
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


def call(model, prompts, **options):
    """A SamplerCall with all completions side by side."""
    params, rest = split(options)
    batch = make_prompt_batch(
        model.model.config, prompts, max_new_tokens=params.max_new_tokens, **rest
    )
    return sampling.SamplerCall(model, batch, sampling.SamplingDistribution.of(params))
