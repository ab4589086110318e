"""REP: additive regularisers of plain REINFORCE, and the KL penalties users expect.

A penalty is a per-token or a per-response term that `policy_loss` adds before it aggregates. Where a term's gradient is not that of its
value as written (a bound acts), `with_gradient` states both, so that nothing is hidden in a stop-gradient.
"""

from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from grre_jax.objectives.weights import limit_log_ratio

Number = float | Float[Array, ""]
Tokens = Float[Array, " tokens"]
Responses = Float[Array, " responses"]


def with_gradient(value: Tokens, slope: Tokens, logprobs: Tokens) -> Tokens:
    """A term whose value is `value` and whose gradient is, by definition, `slope` times the gradient of `logprobs`."""
    return jax.lax.stop_gradient(value) + jax.lax.stop_gradient(slope) * (logprobs - jax.lax.stop_gradient(logprobs))


def squared_log_ratio(logprobs: Tokens, anchor_logprobs: Tokens, coefficient: Number) -> Tokens:
    """c (l - l_old)^2 a token: OPMD per token, as the experiments of https://arxiv.org/abs/2509.24203 (the usual 1/2 is absorbed in c).

    Args:
      logprobs: [tokens] l under the policy.
      anchor_logprobs: [tokens] l_old, data.
      coefficient: c, at least 0.

    Returns:
      [tokens] the penalty.
    """
    return coefficient * (logprobs - jax.lax.stop_gradient(anchor_logprobs)) ** 2


def squared_response_log_ratio(log_ratio_sums: Responses, tau: Number) -> Responses:
    """(tau / 2) (l_i - l_old,i)^2 a response, with l_i the sum over its tokens: OPMD of Kimi k1.5 (https://arxiv.org/abs/2501.12599).

    Args:
      log_ratio_sums: [responses] S_i, the sum of l - l_old over a response's tokens (0 for a response with none here).
      tau: the temperature of the surrogate it derives from, positive, in units of reward.

    Returns:
      [responses] the penalty.
    """
    return tau / 2 * log_ratio_sums**2


def kl_penalty(logprobs: Tokens, anchor_logprobs: Tokens, estimator: str) -> Tokens:
    """Schulman's estimators of KL(policy || anchor), one value a token (http://joschu.net/blog/kl-approx.html).

    With x = log anchor - log policy: k1 = -x; k2 = x^2 / 2; k3 = e^x - 1 - x. As losses, k1 has no gradient on-policy in expectation, k2
    has that of the reverse KL, and k3 a forward-KL-like one. The e^x of k3 is bounded by `weights.LOG_RATIO_LIMIT`.

    Args:
      logprobs: [tokens] log policy.
      anchor_logprobs: [tokens] log anchor, data.
      estimator: "k1", "k2" or "k3".

    Returns:
      [tokens] the estimates.
    """
    gap = jax.lax.stop_gradient(anchor_logprobs - logprobs)
    if estimator == "k1":
        return with_gradient(-gap, jnp.ones_like(gap), logprobs)
    if estimator == "k2":
        return with_gradient(gap**2 / 2, -gap, logprobs)
    growth = jnp.expm1(limit_log_ratio(gap)[0])
    return with_gradient(growth - gap, -growth, logprobs)


def _kl(estimator: str) -> Callable[[Tokens, Tokens, Mapping[str, Number]], Tokens]:
    return lambda logprobs, anchor, n: n["kl_coef"] * kl_penalty(logprobs, anchor, estimator)


KL_ESTIMATORS = ("k1", "k2", "k3")
KL_REFERENCES = ("reference", "behavior")

# name -> function of (logprobs, anchor log-probs, numbers). The anchor is the behaviour policy, or the reference where the name ends in
# "_reference".
TOKEN_PENALTIES: dict[str, Callable[[Tokens, Tokens, Mapping[str, Number]], Tokens]] = {
    "token_square": lambda logprobs, anchor, n: squared_log_ratio(logprobs, anchor, n["coefficient"]),
    **{f"kl_{estimator}_{reference}": _kl(estimator) for estimator in KL_ESTIMATORS for reference in KL_REFERENCES},
}
# name -> function of (sums over each response of its token log-ratios to the behaviour policy, numbers).
RESPONSE_PENALTIES: dict[str, Callable[[Responses, Mapping[str, Number]], Responses]] = {
    "response_square": lambda sums, n: squared_response_log_ratio(sums, n["tau"]),
}
