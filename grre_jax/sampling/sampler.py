"""Sampling of completions.

A prompt is prefilled once, and its KV cache is shared by all its completions. Completions are
decoded side by side in decode slots. If there are fewer slots than completions, a slot whose
completion ends begins the next one inside the compiled loop, without waiting for the longest. The
token that ends a completion (EOS) is part of it: kept and scored.

Every draw is addressed by (key, position of the prompt, attempt, sample, token index), so with
float32 activations a completion does not depend on the batch it was computed in, on its neighbours,
on the order of refilling, or on the number of devices. In bfloat16 it can: how a matrix product is
rounded depends on its number of rows, and rounding that is this coarse changes tokens.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, UInt16

from grre_jax.models.experts import UNKNOWN
from grre_jax.models.transformer import Transformer
from grre_jax.parallel import mesh as meshes
from grre_jax.sampling.call import SamplerCall
from grre_jax.sampling.decoding.shards import placed
from grre_jax.sampling.decoding.slots import NONE, RUNNING, SCORES, STOPPED, Trace
from grre_jax.sampling.decoding.weights import Weights, prepared
from grre_jax.sampling.distributions.distribution import SamplingDistribution
from grre_jax.sampling.prompt_batch import make_prompt_batch
from grre_jax.sampling.stop_strings import StopStrings
from grre_jax.sampling_params import SamplingParams

FINISH_STOP = 0
"""Finish reason of a completion that an EOS token or a stop string ended."""

FINISH_LENGTH = 1
"""Finish reason of a completion that was cut at its limit."""


class Samples(NamedTuple):
    """K completions for each of B prompts, right-padded to T tokens.

    Entries at or after a completion's length are zero.

    Attributes:
        tokens: [B, K, T] token ids, the ending EOS included.
        lengths: [B, K] tokens per completion, the ending EOS included.
        finish_reasons: [B, K] FINISH_STOP or FINISH_LENGTH.
        behavior_logprobs: [B, K, T] at the sampling temperature, over the full vocabulary: what
            importance ratios use. In nats, as the other log-probs.
        sampling_logprobs: [B, K, T] under the distribution that was drawn from (truncated).
        policy_logprobs: [B, K, T] under the plain policy at temperature 1.
        prompt_routes: [B, P, layers, k] experts of the prompts' tokens at every layer; None if they
            were not recorded.
        routes: [B, K, T, layers, k] likewise of the completions'; `models.experts.UNKNOWN` for the
            last token, which no expert saw.
    """

    tokens: Int[Array, "prompts samples time"]
    lengths: Int[Array, "prompts samples"]
    finish_reasons: Int[Array, "prompts samples"]
    behavior_logprobs: Float[Array, "prompts samples time"]
    sampling_logprobs: Float[Array, "prompts samples time"]
    policy_logprobs: Float[Array, "prompts samples time"]
    prompt_routes: UInt16[Array, "prompts length layers k"] | None = None
    routes: UInt16[Array, "prompts samples time layers k"] | None = None


def sample(
    model: Transformer | Weights,
    prompts: Sequence[Sequence[int]] | Int[Array, "prompts length"],
    params: SamplingParams,
    *,
    key: Array,
    group_size: int = 1,
    prompt_lengths: Int[Array, " prompts"] | None = None,
    eos_ids: Sequence[int] | None = None,
    positions: Int[Array, " prompts"] | None = None,
    attempt: int = 0,
    max_concurrent: int | None = None,
    cache_dtype: str | None = None,
    decode: Callable[[list[int]], str] | None = None,
    routes: bool = False,
) -> Samples:
    """Draws completions of each prompt.

    Args:
        model: the policy, or `prepared(model)` to share its preparation between calls.
        prompts: token lists, or a right-padded [prompts, length] array with `prompt_lengths`. An
            empty list begins at the model's beginning-of-text token.
        params: of the distribution of a token. Its numbers are traced, so others compile
            nothing.
        key: JAX random key of the kind "threefry2x32", which is JAX's default.
        group_size: completions per prompt (K).
        prompt_lengths: [prompts] lengths, needed with an array; neither is checked.
        eos_ids: tokens that end a completion; the model's own if None.
        positions: [prompts] part of the address of each draw, of which 32 bits count; 0, 1, 2, ...
            if None.
        attempt: part of the address too: another gives fresh draws of the same prompts.
        max_concurrent: most completions decoded side by side; all if None. Fewer need less memory.
        cache_dtype: "float32" or "bfloat16" for the KV cache; the activations' if None.
        decode: the tokenizer's, from token ids to text; needed with params.stop. Completions are
            cut after they are drawn, so tokens beyond a stop string cost time.
        routes: record the experts of every token, of a mixture of experts.

    Returns:
        Completions [prompts, K, params.max_new_tokens]; NumPy arrays if params.stop is given.

    Raises:
        ValueError: an argument outside its domain, an empty prompt for a model without a
            beginning-of-text token, or stop strings without `decode`; named in the message.

    Examples:
        Four completions for each of two prompts, of at most three tokens:

        >>> import jax
        >>> from grre_jax import models, sampling
        >>> config = models.ModelConfig(
        ...     vocab_size=16, hidden_size=8, intermediate_size=16,
        ...     num_layers=1, num_heads=2, num_kv_heads=1, head_dim=4, eos_ids=(15,),
        ... )
        >>> params = sampling.SamplingParams(max_new_tokens=3)
        >>> prompts = [[3, 4], [5]]
        >>> samples = sampling.sample(
        ...     models.init(config), prompts, params, key=jax.random.key(0), group_size=4
        ... )
        >>> samples.tokens.shape, samples.lengths.shape, int(samples.lengths.max()) <= 3
        ((2, 4, 3), (2, 4), True)
    """
    check_decode(params, decode)
    weights = model if isinstance(model, Weights) else prepared(model)
    batch = make_prompt_batch(
        weights.model.config,
        prompts,
        group_size,
        params.max_new_tokens,
        key,
        prompt_lengths=prompt_lengths,
        eos_ids=eos_ids,
        positions=positions,
        attempt=attempt,
    )
    distribution = SamplingDistribution.of(params)
    config = weights.model.config
    shape = (batch.shards, batch.prompts_per_shard, batch.samples)
    of_token = (config.num_layers, config.experts_per_token) if routes else ()
    out = _no_samples(shape, batch.max_new_tokens, batch.prompts.shape[1], of_token)
    call = SamplerCall(weights, batch, distribution, max_concurrent, cache_dtype, routes=routes)
    for trace in call:
        out = _collected(out, trace)
    for which, of_prompts in call.prompt_routes:
        out = _with_prompts(out, which, of_prompts)
    samples = _finished(out, batch.given)
    return cut_at_stops(jax.device_get(samples), params.stop, decode) if params.stop else samples


def check_decode(params: SamplingParams, decode: Callable[[list[int]], str] | None) -> None:
    """Checks that stop strings can be found in text.

    Raises:
        ValueError: stop strings without `decode`.
    """
    if params.stop and decode is None:
        raise ValueError("decode must be given with params.stop: pass tokenizer.decode")


def cut_at_stops(
    samples: Samples, stop: Sequence[str], decode: Callable[[list[int]], str]
) -> Samples:
    """Returns samples whose completions end with the token that completes their first stop string.

    Args:
        samples: on the host.
        stop: the strings; none changes nothing.
        decode: the tokenizer's, from token ids to text.
    """
    if not stop:
        return samples
    stops = StopStrings(stop, decode)
    lengths = np.array(samples.lengths)
    reasons = np.array(samples.finish_reasons)
    for at in np.ndindex(lengths.shape):
        kept = stops.kept(samples.tokens[at][: lengths[at]])
        if kept is not None:
            lengths[at] = kept
            reasons[at] = FINISH_STOP
    live = np.arange(samples.tokens.shape[-1]) < lengths[..., None]
    cut = {"lengths": lengths, "finish_reasons": reasons}
    for name in ("tokens", *(f"{score}_logprobs" for score in SCORES)):
        values = getattr(samples, name)
        cut[name] = np.where(live, values, np.zeros((), values.dtype))
    return samples._replace(**cut)


@partial(jax.jit, static_argnums=(0, 1, 2, 3))
def _no_samples(
    shape: tuple[int, ...], time: int, prompt: int, of_token: tuple[int, ...]
) -> Samples:
    """Returns the results before anything is drawn, [shards, prompts, samples, ...]; with routes of
    the shape `of_token` a token, if it is given.
    """
    samples = Samples(
        jnp.zeros((*shape, time), jnp.int32),
        jnp.zeros(shape, jnp.int32),
        jnp.zeros(shape, jnp.int32),
        *(jnp.zeros((*shape, time), jnp.float32) for _ in SCORES),
    )
    if of_token:
        samples = samples._replace(
            prompt_routes=jnp.full((*shape[:2], prompt, *of_token), UNKNOWN, jnp.uint16),
            routes=jnp.full((*shape, time, *of_token), UNKNOWN, jnp.uint16),
        )
    return jax.tree.map(lambda x: meshes.constrain(x, "rows"), samples)


@partial(jax.jit, donate_argnums=0)
def _collected(out: Samples, trace: Trace) -> Samples:
    """Writes the trace's draws to their completions."""
    prompts = out.tokens.shape[1]
    time = out.tokens.shape[3]

    def one(out, integers, scores, routes):
        tokens, prompt, sample, index, code = (integers[:, i].reshape(-1) for i in range(5))
        # JAX would take NONE, -1, as the last prompt; a number out of range is dropped.
        prompt = jnp.where(prompt == NONE, prompts, prompt)
        ended = (jnp.where(code == RUNNING, prompts, prompt), sample)

        def put(name, new, at=(prompt, sample, index)):
            return getattr(out, name).at[at].set(new, mode="drop")

        new = {
            "tokens": put("tokens", tokens),
            "lengths": put("lengths", index + 1, ended),
            "finish_reasons": put(
                "finish_reasons", jnp.where(code == STOPPED, FINISH_STOP, FINISH_LENGTH), ended
            ),
        }
        for i, name in enumerate(SCORES):
            new[f"{name}_logprobs"] = put(f"{name}_logprobs", scores[:, i].reshape(-1))
        if routes is not None:
            # Those of the token before, which the draw continued.
            before = (prompt, sample, jnp.where(index > 0, index - 1, time))
            new["routes"] = put("routes", routes.reshape(-1, *routes.shape[2:]), before)
        return out._replace(**new)

    integers, scores = (jnp.moveaxis(x, 2, 0) for x in (trace.integers, trace.scores))
    routes = None if trace.routes is None else jnp.moveaxis(trace.routes, 1, 0)
    return jax.vmap(one)(out, integers, scores, routes)


@partial(jax.jit, donate_argnums=0)
def _with_prompts(out: Samples, which: Array, routes: Array) -> Samples:
    """Writes the experts of some prompts' tokens; `which` is out of range for none."""
    return out._replace(prompt_routes=placed(out.prompt_routes, which, routes))


@partial(jax.jit, static_argnums=1)
def _finished(out: Samples, given: int) -> Samples:
    """Returns the completions of the prompts that were given, without those that pad a shape."""
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:])[:given], out)
