"""Diagnostics: how far the policy is from the data, how much of the batch is clipped, and whether the rewards say anything.

The metrics of `policy_loss` are means over the tokens of the global batch, so that the contributions of micro-batches add up; names
ending in `_max` combine by maximum instead. All are functions of the data and are not differentiated.
"""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from grre_jax.objectives.groups import segment_groups
from grre_jax.objectives.weights import limit_log_ratio

Tokens = Float[Array, " tokens"]
Scalar = Float[Array, ""]


def masked_share(values: Tokens, mask: Bool[Array, " tokens"], tokens: Scalar) -> Scalar:
    """The sum of `values` where `mask`, over `tokens` (the global count): this micro-batch's part of a token mean. Divides first, so the
    sum cannot overflow.
    """
    return jnp.sum(jnp.where(mask, values, 0) / jnp.maximum(tokens, 1))


def ratio_metrics(log_ratio: Tokens, mask: Bool[Array, " tokens"], tokens: Scalar) -> dict[str, Scalar]:
    """Statistics of the ratio rho = e^d of the policy to the behaviour policy, over tokens.

    Args:
      log_ratio: [tokens] d = l - q, finite.
      mask: [tokens] which tokens count.
      tokens: [] their number in the global batch.

    Returns:
      ratio_mean: mean rho (1 in expectation under the behaviour policy).
      ratio_second_moment: mean rho^2; see `effective_sample_size`.
      ratio_max: largest rho (0 where there is no token).
      log_ratio_second_moment: mean d^2.
      kl_behavior_k1: mean of q - l, nats a token; unbiased for KL(behaviour || policy) on the behaviour policy's tokens, may be negative.
      kl_behavior_k3: mean of rho - 1 - d; of the same KL, unbiased too, never negative.
    """
    limited, _ = limit_log_ratio(log_ratio)
    ratio = jnp.exp(limited)
    return {
        "ratio_mean": masked_share(ratio, mask, tokens),
        "ratio_second_moment": masked_share(ratio**2, mask, tokens),
        "ratio_max": jnp.max(jnp.where(mask, ratio, 0), initial=0),
        "log_ratio_second_moment": masked_share(log_ratio**2, mask, tokens),
        "kl_behavior_k1": masked_share(-log_ratio, mask, tokens),
        "kl_behavior_k3": masked_share(jnp.expm1(limited) - log_ratio, mask, tokens),
    }


def reference_metrics(gap: Tokens, mask: Bool[Array, " tokens"], tokens: Scalar) -> dict[str, Scalar]:
    """KL from the policy to the reference, over tokens (the estimates are of KL(policy || reference) on the policy's own tokens).

    Args:
      gap: [tokens] x = log reference - log policy, finite.
      mask: [tokens] which tokens count.
      tokens: [] their number in the global batch.

    Returns:
      kl_reference_k1: mean of -x, nats a token. kl_reference_k3: mean of e^x - 1 - x.
    """
    return {
        "kl_reference_k1": masked_share(-gap, mask, tokens),
        "kl_reference_k3": masked_share(jnp.expm1(limit_log_ratio(gap)[0]) - gap, mask, tokens),
    }


def clip_metrics(passes: Bool[Array, " tokens"], advantages: Tokens, mask: Bool[Array, " tokens"], tokens: Scalar) -> dict[str, Scalar]:
    """Shares of all tokens whose gradient the mask M stops.

    Args:
      passes: [tokens] the mask M.
      advantages: [tokens] A of each token's response.
      mask: [tokens] which tokens count.
      tokens: [] their number in the global batch.

    Returns:
      clip_fraction, and its two parts clip_fraction_positive and clip_fraction_negative by the sign of A (a zero advantage is never
      clipped).
    """
    positive = masked_share((~passes & (advantages > 0)).astype(tokens.dtype), mask, tokens)
    negative = masked_share((~passes & (advantages < 0)).astype(tokens.dtype), mask, tokens)
    return {"clip_fraction": positive + negative, "clip_fraction_positive": positive, "clip_fraction_negative": negative}


def effective_sample_size(metrics: Mapping[str, Scalar]) -> Scalar:
    """The effective sample size of the token ratios as a share of the tokens: (mean rho)^2 / mean rho^2, in (0, 1].

    Args:
      metrics: of `policy_loss`, summed over the micro-batches first: this one does not add up.

    Returns:
      [] the share; 1 when all ratios are equal.
    """
    return metrics["ratio_mean"] ** 2 / metrics["ratio_second_moment"]


def log_ratio_quantiles(
    log_ratio: Tokens, mask: Bool[Array, " tokens"], quantiles: Float[Array, " quantiles"]
) -> Float[Array, " quantiles"]:
    """Quantiles of d over the tokens that count, before any limit or truncation: the tails that a mean hides.

    Args:
      log_ratio: [tokens] d = l - q; anything where the mask is False.
      mask: [tokens] which tokens count.
      quantiles: [quantiles] in [0, 1].

    Returns:
      [quantiles]; NaN where no token counts.
    """
    return jnp.nanquantile(jax.lax.stop_gradient(jnp.where(mask, log_ratio, jnp.nan)), jnp.asarray(quantiles))


def no_signal_groups(rewards: Float[Array, " responses"], groups: Int[Array, " responses"]) -> Scalar:
    """The share of groups whose rewards are all equal, from which a mean baseline learns nothing.

    Args:
      rewards: [responses].
      groups: [responses] group ids, -1 on padding.

    Returns:
      [] a share of the live groups (0 where there is none).
    """
    partition = segment_groups(groups)
    rewards = jnp.asarray(rewards)
    rewards = rewards.astype(jnp.promote_types(rewards.dtype, jnp.float32))
    # Each group's responses share its one vote.
    vote = jnp.where(partition.live & partition.alike(rewards), 1 / jnp.maximum(partition.sizes, 1), 0)
    return jnp.sum(vote) / jnp.maximum(partition.count, 1)
