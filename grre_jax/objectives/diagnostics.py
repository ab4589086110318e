"""Diagnostics: the distance of the policy from the data, the share of the batch that is clipped,
and the groups whose rewards do not vary.

The metrics of `policy_loss` are means over the tokens of the global batch, so that the
contributions of micro-batches add up; names ending in `_max` combine by maximum instead. All are
functions of the data and are not differentiated.
"""

from itertools import zip_longest

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from grre_jax.objectives.batch import (
    Batch,
    Gate,
    Ids,
    Responses,
    Scalar,
    Tokens,
    judged_groups,
    live_tokens,
    segment_groups,
)
from grre_jax.objectives.inputs import LossInputs
from grre_jax.objectives.parts.ratios import limited

# Nats between the policy and the behaviour log-probs beyond which a token's ratio, e^20 = 5e8 or
# its inverse, shows that they are not log-probs of a policy near this one.
OUT_OF_BOUNDS = 20.0


def ratio_metrics(x: LossInputs, log_ratio: Tokens) -> dict[str, Scalar]:
    """Computes statistics over tokens of the ratio rho = e^d of the policy to the behaviour policy.

    Args:
        x: the batch.
        log_ratio: [tokens] d = l - q, finite.

    Returns:
        ratio_mean: mean rho (1 in expectation under the behaviour policy).
        ratio_second_moment: mean rho^2; see `effective_sample_size`.
        ratio_max: largest rho (0 without tokens).
        ratio_out_of_bounds: share of the tokens with |d| above `OUT_OF_BOUNDS`.
        kl_behavior_k1, kl_behavior_k2, kl_behavior_k3: see `kl_metrics`; of KL(behaviour ||
            policy), on the behaviour policy's tokens.
    """
    ratio = jnp.exp(limited(log_ratio))
    return {
        "ratio_mean": x.share(ratio),
        "ratio_second_moment": x.share(ratio**2),
        "ratio_max": jnp.max(jnp.where(x.mask, ratio, 0), initial=0),
        "ratio_out_of_bounds": x.share(jnp.abs(log_ratio) > OUT_OF_BOUNDS),
    } | kl_metrics(x, log_ratio, "kl_behavior")


def kl_metrics(x: LossInputs, gap: Tokens, name: str) -> dict[str, Scalar]:
    """Estimates KL(p || r) over tokens that p sampled.

    Args:
        x: the batch.
        gap: [tokens] log r - log p, finite.
        name: of the metrics.

    Returns:
        name_k1: mean of -gap, nats a token; unbiased, may be negative. name_k2: mean of gap^2 / 2;
            biased, of small variance. name_k3: mean of e^gap - 1 - gap; unbiased, never negative.
    """
    return {
        f"{name}_k1": x.share(-gap),
        f"{name}_k2": x.share(gap**2) / 2,
        # Near 0 this is gap^2 / 2: e^gap - 1 written out would lose it to rounding.
        f"{name}_k3": x.share(jnp.expm1(limited(gap)) - gap),
    }


def clip_metrics(x: LossInputs, unclipped: Gate) -> dict[str, Scalar]:
    """Computes the shares of all tokens whose gradient the mask M stops.

    Args:
        x: the batch.
        unclipped: [tokens] the mask M.

    Returns:
        clip_fraction, and its two parts clip_fraction_positive and clip_fraction_negative by the
        sign of A (a zero advantage is never clipped).
    """
    positive = x.share(~unclipped & (x.advantages > 0))
    negative = x.share(~unclipped & (x.advantages < 0))
    return {
        "clip_fraction": positive + negative,
        "clip_fraction_positive": positive,
        "clip_fraction_negative": negative,
    }


QUANTILES = {"q01": 0.01, "q50": 0.5, "q99": 0.99}
# Lower ends of the histogram's bins, in policy versions; the last is open.
STALENESS_BINS = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256)


def batch_diagnostics(logprobs: Float[Array, "..."], batch: Batch) -> dict[str, Scalar]:
    """Computes the metrics that do not add up over micro-batches, in one pass over the log-probs
    of the whole batch.

    Empty without behaviour log-probs. An expert's tokens have ratio 1.

    Args:
        logprobs: the policy's log-probs of all tokens, in any shape that flattens to [tokens].
        batch: the global batch.

    Returns:
        effective_sample_size: of the tokens' ratios as a share of the tokens, (sum rho)^2 / (N sum
            rho^2), in (0, 1].
        effective_sample_size_responses: the same of the responses' W.
        log_ratio_q01, log_ratio_q50, log_ratio_q99: quantiles of d over tokens, before any limit or
            truncation.
        And where the batch has the age of its responses, for each bin of the histogram, named
        by its first and last version (staleness_0, staleness_1, staleness_2_3, ...,
        staleness_256_up), the share of tokens in it, and kl_behavior_k3_staleness_... the mean of
        rho - 1 - d over them, 0 without any; and over the tokens of the policy itself
        (staleness 0), which only differ by how the sampler and the learner compute (rounding, and
        what a narrower dtype loses): sampler_gap_mean and sampler_gap_max of |d|, and
        sampler_gap_kl, the mean of rho - 1 - d.
    """
    if batch.old_logprobs is None:
        return {}
    logprobs = jax.lax.stop_gradient(jnp.asarray(logprobs).reshape(-1))
    mask = live_tokens(batch)
    # No policy of the run sampled an expert's tokens: their ratio is 1.
    sampled = mask
    if batch.expert is not None:
        sampled &= ~jnp.asarray(batch.expert, bool)[batch.response_ids]
    log_ratio = jnp.where(sampled, logprobs - jnp.asarray(batch.old_logprobs), 0)
    sums = jax.ops.segment_sum(log_ratio, batch.response_ids, batch.group_ids.size)
    metrics = {
        "effective_sample_size": _share_that_counts(log_ratio, mask),
        "effective_sample_size_responses": _share_that_counts(
            sums, jnp.asarray(batch.group_ids) >= 0
        ),
    }
    # A selection of the tokens that count would have a shape that depends on the data.
    levels = jnp.array([*QUANTILES.values()])
    quantiles = jnp.nanquantile(jnp.where(mask, log_ratio, jnp.nan), levels)
    quantiles = jnp.where(mask.any(), quantiles, 0)
    metrics |= {f"log_ratio_{name}": quantiles[i] for i, name in enumerate(QUANTILES)}
    return metrics | ({} if batch.staleness is None else _by_staleness(log_ratio, mask, batch))


def _share_that_counts(log_weights: Tokens, chosen: Gate) -> Scalar:
    """Computes (sum w)^2 / (N sum w^2) of the chosen weights w = e^x, shifted by the largest such
    that none overflows; 1 without any.
    """
    largest = jnp.max(jnp.where(chosen, log_weights, -jnp.inf), initial=-jnp.inf)
    # A common factor of the weights cancels in the share.
    shifted = log_weights - jnp.where(jnp.isfinite(largest), largest, 0)
    weights = jnp.where(chosen, jnp.exp(shifted), 0)
    count = jnp.sum(chosen)
    share = jnp.sum(weights) ** 2 / jnp.maximum(count * jnp.sum(weights**2), 1e-30)
    return jnp.where(count > 0, share, 1)


def _by_staleness(log_ratio: Tokens, mask: Gate, batch: Batch) -> dict[str, Scalar]:
    staleness = jnp.asarray(batch.staleness)[batch.response_ids]
    bins = jnp.searchsorted(jnp.asarray(STALENESS_BINS), staleness, side="right") - 1
    # [tokens, 2]: for the counts, and for the sums of k3.
    k3 = jnp.expm1(limited(log_ratio)) - log_ratio
    terms = jnp.stack([jnp.ones_like(log_ratio), k3], axis=1)
    # [tokens, bins]; a token that does not count has a number past the last bin.
    inside = jnp.where(mask, bins, len(STALENESS_BINS))[:, None] == jnp.arange(len(STALENESS_BINS))
    counts, divergences = jnp.sum(jnp.where(inside[:, :, None], terms[:, None, :], 0), axis=0).T
    tokens = jnp.maximum(jnp.sum(mask), 1)
    gap = jnp.where(mask & (staleness == 0), jnp.abs(log_ratio), 0)
    # The first bin is staleness 0 alone, since the second begins at 1.
    count = jnp.maximum(counts[0], 1)
    metrics = {
        "sampler_gap_mean": jnp.sum(gap) / count,
        "sampler_gap_max": jnp.max(gap, initial=0),
        "sampler_gap_kl": divergences[0] / count,
    }
    for index, (first, following) in enumerate(zip_longest(STALENESS_BINS, STALENESS_BINS[1:])):
        last = "_up" if following is None else f"_{following - 1}" * (following - 1 > first)
        name = f"staleness_{first}{last}"
        metrics[name] = counts[index] / tokens
        metrics[f"kl_behavior_k3_{name}"] = divergences[index] / jnp.maximum(counts[index], 1)
    return metrics


def zero_variance_groups(rewards: Responses, groups: Ids) -> Scalar:
    """Computes the share of groups whose rewards are all equal, from which a mean baseline learns
    nothing.

    Args:
        rewards: [responses], NaN without a verdict.
        groups: [responses] group ids, -1 on padding.

    Returns:
        [] a share of the live groups with a signal to compare, as `shape_data` has them (0 without
        any).

    Examples:
        Of two prompts the second was always answered right:

        >>> import jax
        >>> import numpy as np
        >>> from grre_jax import objectives
        >>> rewards, groups = np.array([1.0, 0.0, 1.0, 1.0]), np.array([0, 0, 1, 1])
        >>> float(jax.jit(objectives.zero_variance_groups)(rewards, groups))
        0.5
    """
    rewards = jnp.asarray(rewards)
    rewards = rewards.astype(jnp.promote_types(rewards.dtype, jnp.float32))
    partition = segment_groups(judged_groups(rewards, jnp.asarray(groups)))
    # Each group's responses share its one vote.
    vote = jnp.where(
        partition.live & partition.alike(rewards), 1 / jnp.maximum(partition.sizes, 1), 0
    )
    return jnp.sum(vote) / jnp.maximum(partition.count, 1)
